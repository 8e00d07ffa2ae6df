"""Build the book: execute every chapter that changed, write the HTML pages, say where they are and how large.

    python tools/book.py

Any warning of Sphinx, any error or stderr output of a cell makes it exit with status 1.
"""

import hashlib
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import assets
from assoc.files import write_atomically
from notebooks import ROOT, prepare_kernels

BUILD = ROOT / "_build"
HTML = BUILD / "html"
CACHE = BUILD / ".jupyter_cache"
STAMP = BUILD / "executed-with"
WIDGET_STATE = re.compile(r'<script type="application/vnd.jupyter.widget-state\+json">(.*?)</script>', re.DOTALL)


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


def widget_data(page: Path) -> int:
    """Bytes of a page that are the data of its widgets: their pictures and links."""
    return sum(len(state.encode()) for state in WIDGET_STATE.findall(page.read_text(encoding="utf-8")))


def size_report(site: Path) -> list[str]:
    """Lines on the site's size, its largest page, and the data of every page with widgets."""
    sizes = {path.relative_to(site): path.stat().st_size for path in site.rglob("*") if path.is_file()}
    pages = [path for path in sizes if path.suffix == ".html" and path.parts[0] != "_static"]
    largest = max(pages, key=sizes.__getitem__)
    static = sum(size for path, size in sizes.items() if path.parts[0] == "_static")
    total = sum(sizes.values())
    lines = [
        f"{len(pages)} pages, {total / 1e6:.1f} MB in all ({static / 1e6:.1f} MB of it scripts, styles and fonts); "
        f"the largest is {largest} with {sizes[largest] / 1e3:.0f} kB."
    ]
    data = {page.as_posix(): widget_data(site / page) for page in sorted(pages)}
    shown = [f"{page} {size / 1e3:.0f} kB" for page, size in data.items() if size]
    return [*lines, f"Data of widgets: {', '.join(shown) or 'none'}."]


def build() -> int:
    """Build the HTML pages into _build/html; return the exit status."""
    started = time.perf_counter()
    prepare_kernels()
    try:
        missing = assets.fetch()
    except assets.AssetError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    drop_stale()
    plain = "" if sys.stdout.isatty() else "from sphinx.util.console import nocolor; nocolor(); "
    command = [sys.executable, "-c", f"{plain}from jupyter_book.cli.main import main; main()"]
    command += ["build", "--all", "--warningiserror", "--nitpick", "--keep-going", str(ROOT)]
    status = subprocess.run(command, cwd=ROOT, check=False).returncode
    if status:
        print("error: the book was not built; the lines with WARNING or ERROR above say why", file=sys.stderr)
        return 1
    print(*size_report(HTML), sep="\n")
    if missing:
        print(f"Without a network the pages lack widgets and formulas, whose scripts come from a CDN ({missing}).")
        print("To have these scripts in the book, build it once with npm and a network.")
    print(f"The book was built in {time.perf_counter() - started:.1f} s. Open {HTML / 'index.html'}")
    return 0


if __name__ == "__main__":
    sys.exit(build())
