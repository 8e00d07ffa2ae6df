"""Build the book: execute every chapter that changed, write the HTML pages, say where they are.

    python tools/book.py

Any warning of Sphinx, any error or stderr output of a cell makes it exit with status 1.
"""

import hashlib
import shutil
import subprocess
import sys
import time

from assoc.files import write_atomically
from notebooks import ROOT, prepare_kernels

BUILD = ROOT / "_build"
HTML = BUILD / "html"
CACHE = BUILD / ".jupyter_cache"
STAMP = BUILD / "executed-with"


def fingerprint() -> str:
    """A hash of what decides a chapter's outputs besides its own cells: the library, the locked packages, Python."""
    digest = hashlib.sha256(sys.version.encode())
    library = [path for path in (ROOT / "lib" / "assoc").rglob("*") if path.is_file() and path.suffix != ".pyc"]
    for path in sorted([*library, ROOT / "requirements.lock"]):
        content = path.read_bytes()
        digest.update(f"\n{path.relative_to(ROOT).as_posix()} {len(content)}\n".encode())
        digest.update(content)
    return digest.hexdigest()


def drop_stale() -> None:
    """Remove what an earlier build left and this one must not trust.

    The execution cache knows the cells alone, so it goes when the library or a package has changed. Pages and parsed
    documents always go: a page that is no longer in the table of contents would stay, and the warnings of a document
    that is not read again would be lost.
    """
    current = fingerprint()
    if not STAMP.exists() or STAMP.read_text() != current:
        shutil.rmtree(CACHE, ignore_errors=True)
        write_atomically(STAMP, current)
    for folder in (HTML, BUILD / ".doctrees", BUILD / "jupyter_execute"):
        shutil.rmtree(folder, ignore_errors=True)


def build() -> int:
    """Build the HTML pages into _build/html; return the exit status."""
    started = time.perf_counter()
    prepare_kernels()
    drop_stale()
    plain = "" if sys.stdout.isatty() else "from sphinx.util.console import nocolor; nocolor(); "
    command = [sys.executable, "-c", f"{plain}from jupyter_book.cli.main import main; main()"]
    command += ["build", "--all", "--warningiserror", "--nitpick", "--keep-going", str(ROOT)]
    status = subprocess.run(command, cwd=ROOT, check=False).returncode
    if status:
        print("error: the book was not built; the lines with WARNING or ERROR above say why", file=sys.stderr)
        return 1
    print(f"The book was built in {time.perf_counter() - started:.1f} s. Open {HTML / 'index.html'}")
    return 0


if __name__ == "__main__":
    sys.exit(build())
