"""What the pages load besides themselves: scripts of widgets and formulas, served from the book where npm can get them.

`fetch` has npm download the exact versions of assets.json, trusts nothing whose hash differs from the one there, and
unpacks the files that are needed into _build/assets. As an extension of Sphinx this module points the pages at these
files, or at a content delivery network where they are missing. Either way a page loads only what it needs: widget
scripts where it has widgets, MathJax where it has formulas.
"""

import base64
import hashlib
import io
import json
import shutil
import subprocess
import tarfile
from collections.abc import Iterable
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from assoc.files import write_atomically

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "_build" / "assets"
PINS = json.loads(Path(__file__).with_suffix(".json").read_text())
WIDGETS, MATHJAX, AXE = "@jupyter-widgets/html-manager", "mathjax", "axe-core"
# What readers load; axe-core is for the tests. This build of MathJax has all of its TeX, so it never loads more of it.
PAGES = {WIDGETS: "dist/embed.js", MATHJAX: "es5/tex-chtml-full.js"}
NETWORK = "https://cdn.jsdelivr.net/npm"
# A network that is cut fails at once, one that swallows packets never: so npm first asks what a package is, and has
# this many seconds, twice, for the answer.
ANSWER_TIME = 10
DOWNLOAD_TIME = 180  # seconds for one package


class AssetError(Exception):
    """A package that is not what assets.json says; the message is one line."""


def unpacked(name: str) -> Path:
    """The folder of a package's files; it is there only when all of them are, in the pinned version.

    The folder for the pages is _build/assets/pages, which becomes part of their _static folder.
    """
    return FOLDER / ("pages" if name in PAGES else "tests") / name


def is_present(name: str) -> bool:
    stamp = unpacked(name) / "version"
    return stamp.is_file() and stamp.read_text() == json.dumps(PINS[name])


def fetch(names: Iterable[str] = PAGES) -> str:
    """Make the packages' files present; return "" or, where they cannot be had, the reason in a few words.

    Raises:
        AssetError: npm delivered something whose hash is not the pinned one, or that lacks a file.
    """
    for name in names:
        if is_present(name):
            continue
        archive, reason = download(name)
        if reason:
            return reason
        unpack(name, archive)
    return ""


def download(name: str) -> tuple[bytes, str]:
    """The archive of a package's pinned version, and "" or the reason why there is none."""
    npm = shutil.which("npm")
    if npm is None:
        return b"", "npm is not installed"
    downloads = FOLDER / "downloads"
    downloads.mkdir(parents=True, exist_ok=True)
    package = f"{name}@{PINS[name]['version']}"
    reason = ""
    for command, seconds in (("view", ANSWER_TIME), ("pack", DOWNLOAD_TIME // 3)):
        reason = reason or npm_failure([npm, command, package], downloads, seconds)
    archive = downloads / f"{name.lstrip('@').replace('/', '-')}-{PINS[name]['version']}.tgz"
    if not (reason or archive.is_file()):
        reason = "there is no archive"
    if reason:
        return b"", f"npm could not get {package}: {reason}"
    content = archive.read_bytes()
    archive.unlink()
    return content, ""


def npm_failure(command: list[str], folder: Path, seconds: int) -> str:
    """Run npm, which may wait so long for an answer, twice; return "" or the reason why it failed."""
    patience = ["--fetch-retries=1", "--fetch-retry-mintimeout=1000", f"--fetch-timeout={seconds}000"]
    try:
        run = subprocess.run(
            [*command, "--ignore-scripts", "--loglevel=error", *patience],
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=3 * seconds,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return type(error).__name__
    said = [line for line in run.stderr.splitlines() if line.strip()] or [f"status {run.returncode}"]
    return said[0].removeprefix("npm error ").strip() if run.returncode else ""


def unpack(name: str, archive: bytes) -> None:
    """Check the archive's hash, then write the files of it that assets.json lists."""
    pin = PINS[name]
    algorithm, expected = pin["integrity"].split("-", 1)
    if base64.b64encode(hashlib.new(algorithm, archive).digest()).decode() != expected:
        raise AssetError(f"{name}@{pin['version']} is not the package that tools/assets.json pins: its hash differs")
    folder = unpacked(name)
    shutil.rmtree(folder, ignore_errors=True)
    found = set()
    with tarfile.open(fileobj=io.BytesIO(archive)) as members:
        for member in members:
            path = member.name.partition("/")[2]  # the first folder is "package"
            patterns = {pattern for pattern in pin["files"] if fnmatch(path, pattern)}
            content = members.extractfile(member) if patterns and ".." not in Path(path).parts else None
            if content is not None:
                write_atomically(folder / path, content.read())
                found |= patterns
    if missing := sorted(set(pin["files"]) - found):
        raise AssetError(f"{name}@{pin['version']} has no {missing[0]}: correct its files in tools/assets.json")
    write_atomically(folder / "version", json.dumps(pin))


def point(app: Any, config: Any) -> None:
    """Have Sphinx serve the scripts from the pages' _static folder, or name their place in the network."""
    served = all(map(is_present, PAGES))
    if served:
        config.html_static_path.append(str(FOLDER / "pages"))
    place = {name: name if served else f"{NETWORK}/{name}@{PINS[name]['version']}" for name in PAGES}
    # widgets.js names the sliders for assistive technology, so it has to be there when they are drawn.
    config.nb_ipywidgets_js = {"widgets.js": {}, f"{place[WIDGETS]}/{PAGES[WIDGETS]}": {"defer": "defer"}}
    config.mathjax_path = f"{place[MATHJAX]}/{PAGES[MATHJAX]}"


def setup(app: Any) -> dict[str, bool]:
    app.connect("config-inited", point)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
