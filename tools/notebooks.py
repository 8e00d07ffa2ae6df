"""The chapters as pairs: book/NAME.md is the source, book/NAME.ipynb is made from it, with executed outputs.

    python tools/notebooks.py execute FILES... | --all    write each .ipynb from its .md, with outputs
    python tools/notebooks.py prose FILES... | --all      the same for changed prose alone: the outputs are kept
    python tools/notebooks.py check FILES... | --all      say where the two differ, or what a committed output lacks

Either file of a pair may be named. The commands exit with status 1 if there is a problem, one line for each.
"""

import argparse
import hashlib
import os
import re
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import jupytext
import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError
from nbformat import NotebookNode

from assoc.files import write_atomically

ROOT = Path(__file__).resolve().parent.parent
BOOK = ROOT / "book"
CELL_TIMEOUT = 300  # seconds: far above what a cell takes on two free cores, for machines that do other work too
WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"

# What a kernel reports about itself changes with the machine; readers and Sphinx need no more than this.
NOTEBOOK_METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {
        "file_extension": ".py",
        "mimetype": "text/x-python",
        "name": "python",
        "pygments_lexer": "ipython3",
    },
}


class NotebookError(Exception):
    """A notebook that cannot be written or trusted; the message is one line, `details` may hold a traceback."""

    def __init__(self, message: str, details: str = "") -> None:
        super().__init__(message)
        self.details = details


def prepare_kernels() -> None:
    """Set the environment that every kernel of the book inherits, and make slow first-time caches.

    No progress bars (they go to stderr, which must stay empty), no start-up files or kernels of the user, no notice
    that kernel and client talk in plain text on this machine, and matplotlib's font cache is there before a cell can
    complain that it has to be built.
    """
    settings = ROOT / "_build" / "ipython"
    write_atomically(settings / "profile_default" / "ipython_kernel_config.py", "c.IPKernelApp.log_level = 'ERROR'\n")
    os.environ["TQDM_DISABLE"] = "1"
    os.environ["JUPYTER_PREFER_ENV_PATH"] = "1"
    os.environ["IPYTHONDIR"] = str(settings)
    os.environ["PYDEVD_DISABLE_FILE_VALIDATION"] = "1"
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")  # torch's threads wait briefly, then sleep: see the Makefile
    os.environ.pop("MPLBACKEND", None)  # the kernel chooses inline figures
    import matplotlib.font_manager  # noqa: F401


def shown(path: Path) -> str:
    """The path as messages show it: from the project's root where it lies inside."""
    return str(path.relative_to(ROOT) if path.is_relative_to(ROOT) else path)


def place(index: int, cell: NotebookNode) -> str:
    """How messages name a cell: its number, counted from 1 over all cells, and how it starts."""
    start = cell.source.strip().split("\n")[0]
    return f"cell {index + 1} ({start[:50]!r})"


def chapters() -> list[Path]:
    """The .md sources of all pairs: the files in book/ whose names start with a digit, or that have an .ipynb twin."""
    return [path for path in sorted(BOOK.glob("*.md")) if path.name[0].isdigit() or path.with_suffix(".ipynb").exists()]


def read_source(source: Path) -> NotebookNode:
    """The notebook that an .md source stands for, without outputs, in the one form that is committed.

    Cell identities are derived from the cells' text, so that an edit leaves those of the other cells alone.
    """
    try:
        notebook = jupytext.read(source, fmt="md:myst")
    except Exception as error:  # jupytext lets the errors of its parsers through, whatever they are
        message = str(error).strip() or type(error).__name__
        raise NotebookError(f"{shown(source)} cannot be read as a MyST notebook: {message.splitlines()[0]}") from error
    if notebook.metadata.get("kernelspec", {}).get("name") != NOTEBOOK_METADATA["kernelspec"]["name"]:
        raise NotebookError(f"{shown(source)} has no `kernelspec: name: python3` in its header: copy another chapter's")
    kept = {key: value for key, value in notebook.metadata.items() if key not in ("jupytext", "kernelspec")}
    notebook.metadata = nbformat.from_dict(kept | NOTEBOOK_METADATA)
    seen: Counter[str] = Counter()
    for cell in notebook.cells:
        digest = hashlib.sha256(f"{cell.cell_type}\n{cell.source}".encode()).hexdigest()[:8]
        seen[digest] += 1
        cell.id = digest if seen[digest] == 1 else f"{digest}-{seen[digest]}"
    return notebook


def tidy_header(source: Path) -> None:
    """Take jupytext's version numbers, which saving in Jupyter Lab writes, out of a header: no edit changed them."""
    text = source.read_text(encoding="utf-8")
    header, end, body = text.partition("\n---\n")
    tidy = re.sub(r"\n +(?:format_version|jupytext_version): .*", "", header)
    if end and tidy != header:
        write_atomically(source, tidy + end + body)


def read_notebook(path: Path) -> NotebookNode:
    """A committed .ipynb."""
    try:
        return nbformat.read(path, as_version=4)
    except FileNotFoundError:
        raise NotebookError(f"{shown(path)} is missing: run make notebooks") from None
    except Exception as error:  # broken JSON, missing keys: nbformat has no common class for them
        raise NotebookError(f"{shown(path)} is not a notebook: {type(error).__name__}; run make notebooks") from error


def strip_volatile(notebook: NotebookNode) -> None:
    """Drop what differs from run to run: widget state and identities, timings, metadata of the kernel."""
    notebook.metadata = nbformat.from_dict(
        {key: value for key, value in notebook.metadata.items() if key != "widgets"} | NOTEBOOK_METADATA
    )
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
        for output in cell.get("outputs", []):
            output.get("data", {}).pop(WIDGET_VIEW, None)
            output.get("metadata", {}).pop(WIDGET_VIEW, None)


def execute(source: Path) -> float:
    """Execute a source, write its .ipynb twin and return the seconds it took.

    Nothing is written if a cell raises, runs too long or writes to stderr.
    """
    tidy_header(source)
    notebook = read_source(source)
    client = NotebookClient(
        notebook,
        timeout=CELL_TIMEOUT,
        kernel_name=NOTEBOOK_METADATA["kernelspec"]["name"],
        resources={"metadata": {"path": str(source.parent)}},
        store_widget_state=False,
        record_timing=False,
        coalesce_streams=True,  # else the pieces that printed text comes in depend on the machine's pace
    )
    started = time.perf_counter()
    try:
        client.execute()
    except CellExecutionError as error:
        where = next(
            (place(i, cell) for i, cell in enumerate(notebook.cells) if "error" in output_types(cell)), "a cell"
        )
        message = f"{shown(source)}: {where} raised {error.ename}: {error.evalue}"
        raise NotebookError(message.splitlines()[0], details=str(error)) from error
    except CellTimeoutError as error:
        raise NotebookError(f"{shown(source)}: a cell ran longer than {CELL_TIMEOUT} s; make it do less") from error
    except DeadKernelError as error:
        raise NotebookError(f"{shown(source)}: the kernel died, probably for want of memory") from error
    seconds = time.perf_counter() - started
    strip_volatile(notebook)
    for problem in output_problems(notebook):
        raise NotebookError(f"{shown(source)}: {problem}")
    write_atomically(source.with_suffix(".ipynb"), nbformat.writes(notebook, indent=1) + "\n")
    return seconds


def update_prose(source: Path) -> None:
    """Write the .ipynb twin anew with its outputs kept: for changes of text, captions and metadata.

    Raises NotebookError if the code differs, whose outputs would no longer belong to it.
    """
    notebook, twin = read_source(source), read_notebook(source.with_suffix(".ipynb"))
    code, old_code = ([cell for cell in nb.cells if cell.cell_type == "code"] for nb in (notebook, twin))
    if [cell.source for cell in code] != [cell.source for cell in old_code]:
        raise NotebookError(f"{shown(source)}: the code has changed too; execute it")
    for cell, old in zip(code, old_code, strict=True):
        cell.outputs, cell.execution_count = old.outputs, old.execution_count
    write_atomically(source.with_suffix(".ipynb"), nbformat.writes(notebook, indent=1) + "\n")


def output_types(cell: NotebookNode) -> set[str]:
    """Output types of a code cell, with stderr as a type of its own."""
    outputs = cell.get("outputs", [])
    return {"stderr" if output.get("name") == "stderr" else output.output_type for output in outputs}


def image_count(cell: NotebookNode) -> int:
    """How many outputs of a cell are pictures."""
    return sum(any(kind.startswith("image/") for kind in output.get("data", {})) for output in cell.get("outputs", []))


def output_problems(notebook: NotebookNode) -> Iterator[str]:
    """What is wrong with the committed outputs, by themselves: cells that never ran, errors, stderr, widget state,
    figures without caption, name or alternative text."""
    if "widgets" in notebook.metadata:
        yield "widget state is stored in the notebook"
    executed = 0
    for index, cell in enumerate(notebook.cells):
        if cell.cell_type != "code":
            continue
        where = place(index, cell)
        executed += 1
        if cell.source.rstrip().endswith(";"):
            yield f"{where} hides its value with a semicolon, which nbval does not heed: assign it to _ instead"
        if cell.execution_count is None:
            yield f"{where} was never executed"
        elif cell.execution_count != executed:
            yield f"{where} was executed out of order"
        types = output_types(cell)
        if "error" in types:
            yield f"{where} holds an error"
        if "stderr" in types:
            text = next(output.text for output in cell.outputs if output.get("name") == "stderr")
            yield f"{where} writes to stderr: {text.strip().splitlines()[-1] if text.strip() else 'blank lines'}"
        if any(WIDGET_VIEW in output.get("data", {}) for output in cell.outputs):
            yield f"{where} refers to the state of a widget"
        figure = cell.metadata.get("mystnb", {}).get("figure", {})
        images = image_count(cell)
        if images or figure:
            if images != 1:
                yield f"{where} should show one figure, but shows {images}"
            alt = cell.metadata.get("mystnb", {}).get("image", {}).get("alt")
            for name, value in (
                ("a caption", figure.get("caption")),
                ("a name", figure.get("name")),
                ("alt text", alt),
            ):
                if not str(value or "").strip():
                    yield f"{where} shows a figure without {name}"


def drift(source: Path) -> Iterator[str]:
    """Every difference between an .md source and its .ipynb twin that is not an output."""
    expected, found = read_source(source), read_notebook(source.with_suffix(".ipynb"))
    if found.metadata != expected.metadata:
        keys = expected.metadata.keys() | found.metadata.keys()
        differing = sorted(key for key in keys if expected.metadata.get(key) != found.metadata.get(key))
        yield f"the notebooks' metadata differ in {', '.join(differing)}"
    if len(found.cells) != len(expected.cells):
        yield f"{len(expected.cells)} cells in the .md, {len(found.cells)} in the .ipynb"
    for index, (cell, twin) in enumerate(zip(expected.cells, found.cells, strict=False)):
        for part in ("cell_type", "source", "metadata", "id"):
            if cell.get(part) != twin.get(part):
                yield f"{place(index, cell)} differs from its twin in its {part.replace('cell_type', 'type')}"
                break


def problems(source: Path) -> list[str]:
    """Everything that makes a pair untrustworthy, one line each; nothing is executed."""
    try:
        found = [*drift(source), *output_problems(read_notebook(source.with_suffix(".ipynb")))]
    except NotebookError as error:
        return [str(error)]
    return [f"{shown(source)}: {problem}" for problem in found]


def orphans() -> list[str]:
    """Notebooks of the book that no .md source stands behind."""
    missing = [path for path in sorted(BOOK.glob("*.ipynb")) if not path.with_suffix(".md").exists()]
    return [f"{shown(path)} has no .md source: write one, or remove it" for path in missing]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("command", choices=("execute", "prose", "check"))
    parser.add_argument("files", nargs="*", type=Path, help="either file of a pair")
    parser.add_argument("--all", action="store_true", help="every chapter in book/")
    options = parser.parse_args(arguments)
    if bool(options.files) == options.all:
        parser.error("name some chapters, or say --all")
    sources = chapters() if options.all else [path.resolve().with_suffix(".md") for path in options.files]

    failed = False
    if options.command == "execute":
        prepare_kernels()
    for source in sources:
        if not source.exists():
            print(f"error: {shown(source)} does not exist", file=sys.stderr)
            failed = True
        elif options.command == "check":
            found = problems(source)
            failed |= bool(found)
            print("\n".join(f"error: {problem}" for problem in found) or f"{shown(source)}: the pair agrees")
        else:
            try:
                if options.command == "prose":
                    update_prose(source)
                else:
                    print(f"{shown(source)}: {execute(source):.1f} s", flush=True)
            except NotebookError as error:
                print(f"{error.details}\nerror: {error}".lstrip(), file=sys.stderr)
                failed = True
    for problem in orphans() if options.all else []:
        print(f"error: {problem}", file=sys.stderr)
        failed = True
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
