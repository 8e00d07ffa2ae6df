"""The scripts that pages load: fetched once, checked, and replaced by a network's where they cannot be had."""

import base64
import hashlib
import io
import json
import subprocess
import tarfile
from pathlib import Path
from types import SimpleNamespace

import pytest

import assets
import book

NAME = "@scope/package"


def archive(files: dict[str, str]) -> bytes:
    """An npm package."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz") as members:
        for path, text in files.items():
            member = tarfile.TarInfo(f"package/{path}")
            member.size = len(text.encode())
            members.addfile(member, io.BytesIO(text.encode()))
    return content.getvalue()


PACKAGE = archive({"dist/a.js": "a", "dist/b.css": "b", "fonts/c.woff": "c", "fonts/../../../d.woff": "d"})


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict:
    """A pin of PACKAGE, no other packages, and no programs but npm, which `npm` below writes."""
    digest = base64.b64encode(hashlib.sha512(PACKAGE).digest()).decode()
    pin = {"version": "1.2.3", "integrity": f"sha512-{digest}", "files": ["dist/a.js", "fonts/*.woff"]}
    monkeypatch.setattr(assets, "PINS", {NAME: pin})
    monkeypatch.setattr(assets, "PAGES", {NAME: "dist/a.js"})
    monkeypatch.setattr(assets, "FOLDER", tmp_path / "assets")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    return pin


def npm(folder: Path, delivered: bytes | None, says: str = "") -> None:
    """A program `npm` that delivers these bytes as the package it is asked for, or fails with these words."""
    (folder / "bin").mkdir(exist_ok=True)
    (folder / "package.tgz").write_bytes(delivered or b"")
    work = f"/bin/cp '{folder}/package.tgz' scope-package-1.2.3.tgz" if delivered else f"echo '{says}' >&2; exit 1"
    program = folder / "bin/npm"
    program.write_text(
        f'#!/bin/sh\ncase "$1 $2" in "view {NAME}@1.2.3" | "pack {NAME}@1.2.3") ;; *) exit 9 ;; esac\n{work}\n'
    )
    program.chmod(0o755)


def test_a_package_is_fetched_once_and_only_what_is_needed_of_it(tmp_path: Path, package: dict) -> None:
    npm(tmp_path, PACKAGE)
    assert assets.fetch([NAME]) == ""
    (tmp_path / "package.tgz").unlink()
    files = {path.relative_to(assets.unpacked(NAME)).as_posix() for path in assets.unpacked(NAME).rglob("*.*")}
    assert files == {"dist/a.js", "fonts/c.woff"}
    assert not list(tmp_path.rglob("d.woff"))
    assert not list(tmp_path.rglob("*.tgz"))
    (tmp_path / "bin/npm").unlink()
    assert assets.fetch([NAME]) == ""
    package["version"] = "1.2.4"
    assert assets.fetch([NAME]) == "npm is not installed"


def test_a_package_with_another_hash_is_refused(tmp_path: Path, package: dict) -> None:
    npm(tmp_path, archive({"dist/a.js": "evil", "fonts/c.woff": "c"}))
    with pytest.raises(assets.AssetError, match="its hash differs"):
        assets.fetch([NAME])
    assert not assets.is_present(NAME)
    assert not list(tmp_path.rglob("a.js"))


def test_a_package_that_lacks_a_file_is_refused(tmp_path: Path, package: dict) -> None:
    npm(tmp_path, PACKAGE)
    package["files"].append("dist/z.js")
    with pytest.raises(assets.AssetError, match=r"has no dist/z\.js"):
        assets.fetch([NAME])
    assert not assets.is_present(NAME)


@pytest.mark.parametrize(
    ("says", "reason"),
    [
        ("npm error code ENOTFOUND", f"npm could not get {NAME}@1.2.3: code ENOTFOUND"),
        ("", f"npm could not get {NAME}@1.2.3: status 1"),
    ],
)
def test_the_reason_why_a_package_cannot_be_had(says: str, reason: str, tmp_path: Path, package: dict) -> None:
    assert assets.fetch([NAME]) == "npm is not installed"
    npm(tmp_path, None, says)
    assert assets.fetch([NAME]) == reason


def test_pages_are_pointed_at_files_of_their_own_or_at_the_same_version_in_the_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(assets, "FOLDER", tmp_path)

    def pointed() -> tuple[list[str], list[str]]:
        config = SimpleNamespace(html_static_path=["own"])
        assets.point(None, config)
        return config.html_static_path, [*config.nb_ipywidgets_js, config.mathjax_path]

    folders, scripts = pointed()
    assert folders == ["own"]
    for name, script in zip(assets.PAGES, scripts[1:], strict=True):
        assert script == f"{assets.NETWORK}/{name}@{assets.PINS[name]['version']}/{assets.PAGES[name]}"
    for name in assets.PAGES:
        assets.unpacked(name).mkdir(parents=True)
        (assets.unpacked(name) / "version").write_text(json.dumps(assets.PINS[name]))
    folders, scripts = pointed()
    assert folders == ["own", str(tmp_path / "pages")]
    assert scripts == ["widgets.js", *(f"{name}/{script}" for name, script in assets.PAGES.items())]


def test_every_package_is_pinned_by_a_strong_hash() -> None:
    assert set(assets.PINS) == {*assets.PAGES, assets.AXE}
    for pin in assets.PINS.values():
        assert len(base64.b64decode(pin["integrity"].removeprefix("sha512-"))) == 64
        assert pin["version"].count(".") == 2


# --- what the build says


@pytest.fixture
def small_site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A finished site in place of a build."""
    site = tmp_path / "site"
    for path, text in {
        "index.html": "x" * 400,
        "book/a.html": '<script type="application/vnd.jupyter.widget-state+json">{"é": 1}</script>' + "x" * 4000,
        "_static/page.html": "x" * 9000,
    }.items():
        (site / path).parent.mkdir(parents=True, exist_ok=True)
        (site / path).write_text(text, encoding="utf-8")
    monkeypatch.setattr(book, "HTML", site)
    monkeypatch.setattr(book, "drop_stale", lambda: None)
    monkeypatch.setattr(book.subprocess, "run", lambda *_, **__: subprocess.CompletedProcess([], 0))
    return site


def test_the_build_tells_sizes(small_site: Path) -> None:
    assert book.widget_data(small_site / "book/a.html") == len('{"é": 1}'.encode())
    assert book.size_report(small_site) == [
        "2 pages, 0.0 MB in all (0.0 MB of it scripts, styles and fonts); the largest is book/a.html with 4 kB.",
        "Data of widgets: book/a.html 0 kB.",
    ]


def test_the_build_says_why_pages_need_a_network(
    small_site: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setattr(assets, "fetch", lambda: "npm is not installed")
    assert book.build() == 0
    said = capsys.readouterr().out.splitlines()
    assert (
        "Without a network the pages lack widgets and formulas, whose scripts come from a CDN (npm is not installed)."
        in said
    )
    monkeypatch.setattr(assets, "fetch", lambda: "")
    assert book.build() == 0
    assert "CDN" not in capsys.readouterr().out


def test_the_build_refuses_a_package_that_is_not_the_pinned_one(
    small_site: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    def fetch() -> str:
        raise assets.AssetError("its hash differs")

    monkeypatch.setattr(assets, "fetch", fetch)
    assert book.build() == 1
    assert capsys.readouterr().err == "error: its hash differs\n"
