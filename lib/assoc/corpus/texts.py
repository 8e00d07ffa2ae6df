"""Where texts come from: the embedded stories, a text file, a folder of `.txt` files, or the Hugging Face hub."""

import os
import re
import ssl
import urllib.error
import urllib.request
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path

from assoc.errors import InputError, whole_number
from assoc.progress import progress

END_OF_TEXT = "<|endoftext|>"
STORIES = Path(__file__).parent / "stories"

# The arguments of `datasets.load_dataset`. The branch refs/convert/parquet holds the hub's own copy in plain data
# files of sets that are published as a loading script, which the library no longer runs.
HUB_CORPORA = {
    "tinystories": {"path": "roneneldan/TinyStories"},
    "shakespeare": {
        "path": "karpathy/tiny_shakespeare",
        "revision": "refs/convert/parquet",
        "data_files": "*/*train/*.parquet",
    },
    "openwebtext": {
        "path": "Skylion007/openwebtext",
        "revision": "refs/convert/parquet",
        "data_files": "*/*train/*.parquet",
    },
    "fineweb": {"path": "HuggingFaceFW/fineweb", "name": "sample-10BT"},
}
CORPUS_NAMES = ("stories", *HUB_CORPORA)
HUB_MAX_TEXTS = 20_000
HUB_TIMEOUT_SECONDS = 5.0


@dataclass(frozen=True)
class Texts:
    """Texts in the order they were read, each stripped and with at least one visible character.

    Attributes:
        texts: the texts.
        topics: one label per text (the theme of a story, the name of a text's file), or None without labels.
    """

    texts: list[str]
    topics: list[str] | None

    def __len__(self) -> int:
        return len(self.texts)


def load_texts(name_or_path: str | Path = "stories", max_texts: int | None = None) -> Texts:
    """Read the texts of a corpus.

    A file holds several texts, separated by `<|endoftext|>` where that occurs in it and by blank lines otherwise; a
    file with neither is one text. Files are UTF-8. The `.txt` files of a folder are read in the order of their names;
    if there are several, the name of a text's file without its leading number (`01-pond.txt`: "pond") is its topic.

    Args:
        name_or_path: `"stories"` (embedded: 64 themes of 32 stories), `"tinystories"`, `"shakespeare"`,
            `"openwebtext"`, `"fineweb"` (streamed from the hub; needs the network and the optional library
            `datasets`), or the path of a text file or of a folder of `.txt` files. A name wins over a file of the
            same name: write `./stories` for a file, or pass a `Path`.
        max_texts: read at most so many texts, the first ones. Default: all, but 20,000 from the hub, from which no
            more than the texts asked for are fetched.

    Raises:
        InputError: no such corpus; no text in it; a file that is not UTF-8 text; library or network missing.
    """
    max_texts = None if max_texts is None else whole_number("max_texts", max_texts, minimum=1)
    if isinstance(name_or_path, str) and name_or_path in HUB_CORPORA:
        return _hub_texts(name_or_path, max_texts or HUB_MAX_TEXTS)
    files = _text_files(STORIES if name_or_path == "stories" else name_or_path)
    labelled = [(text, _topic(file)) for file in files for text in _split_texts(_read_text(file))][:max_texts]
    if not labelled:
        raise InputError(f"'{name_or_path}' holds no text: give a file or folder with at least one non-blank line")
    texts, topics = (list(column) for column in zip(*labelled, strict=True))
    return Texts(texts, topics if len(files) > 1 else None)


def _text_files(path: str | Path) -> list[Path]:
    if not os.path.exists(path):  # unlike Path.exists, False for whatever can't be a path: "", a whole text
        raise InputError(
            f"no corpus '{str(path)[:80]}', and no file or folder of that name: use one of {', '.join(CORPUS_NAMES)}, "
            "or the path of a text file or of a folder of .txt files"
        )
    path = Path(path)
    if path.is_dir():
        files = sorted(file for file in path.glob("*.txt") if file.is_file())
        if not files:
            raise InputError(f"folder '{path}' holds no .txt file: give a text file or a folder of .txt files")
        return files
    return [path]


def _topic(file: Path) -> str:
    return re.sub(r"^\d+[-_. ]*", "", file.stem) or file.stem


def _read_text(file: Path) -> str:
    try:
        content = file.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise InputError(f"'{file}' is not UTF-8 text: save it as plain UTF-8 text first") from None
    except OSError as error:
        raise InputError(f"cannot read '{file}' ({error.strerror}): check that it is a readable text file") from error
    if "\0" in content:
        raise InputError(f"'{file}' is a binary file: give a plain UTF-8 text file")
    return content


def _split_texts(content: str) -> list[str]:
    parts = content.split(END_OF_TEXT) if END_OF_TEXT in content else re.split(r"\n\s*\n", content)
    return [stripped for part in parts if (stripped := part.strip())]


def _hub_texts(name: str, max_texts: int) -> Texts:
    """Stream texts from the hub; Tiny Shakespeare is a single row there and is split like a file."""
    elsewhere = "or give the path of a local text file, or use 'stories', the embedded corpus"
    try:
        import datasets
    except ImportError:
        raise InputError(
            f"corpus '{name}' needs the library datasets: run pip install -e '.[hub]' (or pip install datasets), "
            f"{elsewhere}"
        ) from None
    try:
        _reach_hub()
        rows = datasets.load_dataset(**HUB_CORPORA[name], split="train", streaming=True)
        per_row = (_split_texts(row["text"]) if name == "shakespeare" else [row["text"].strip()] for row in rows)
        visible = filter(None, chain.from_iterable(per_row))
        found = list(progress(islice(visible, max_texts), f"texts of {name}", total=max_texts))
    except Exception as error:  # whatever the library, its network layers or its file formats may raise
        reason = f"{type(error).__name__}: {' '.join(str(error).split())}"[:160]
        raise InputError(
            f"could not fetch corpus '{name}' from the Hugging Face hub ({reason}): check the network and try again, "
            f"{elsewhere}"
        ) from error
    if not found:
        raise InputError(f"corpus '{name}' came back empty from the Hugging Face hub: try again later, {elsewhere}")
    return Texts(found, None)


def _reach_hub() -> None:
    """Fail within seconds where the hub can't be reached: the library itself retries, noisily, for half a minute."""
    endpoint = os.environ.get("HF_ENDPOINT", "https://huggingface.co")
    try:
        urllib.request.urlopen(urllib.request.Request(endpoint, method="HEAD"), timeout=HUB_TIMEOUT_SECONDS).close()
    except urllib.error.HTTPError as error:
        error.close()  # an answer, so the hub is there
    except urllib.error.URLError as error:
        if not isinstance(error.reason, ssl.SSLError):  # the library brings certificates of its own
            raise
