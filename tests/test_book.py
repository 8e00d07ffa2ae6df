"""The built pages: all of them there, every figure shown and described, no dead link, no trace of a failure.

The book is built here by the command behind `make book`; chapters that were executed before come from its cache.
"""

import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import nbformat
import pytest
import yaml

import book
import notebooks

VOID = {"area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "track", "wbr"}


@dataclass
class Page:
    """What the checks need to know of one HTML page."""

    identifiers: set[str] = field(default_factory=set)
    links: list[str] = field(default_factory=list)
    figures: list[dict[str, str]] = field(default_factory=list)  # src, alt, caption of each picture in the article
    text: str = ""


class Reader(HTMLParser):
    """Collects a `Page` from HTML; text, figures and captions only from the article, links from everywhere."""

    def __init__(self) -> None:
        super().__init__()
        self.page = Page()
        self._open: list[str] = []
        self._figure: list[dict[str, str]] = []  # pictures of the figure that is open, for its caption

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attributes}
        if tag not in VOID:
            self._open.append(tag)
        self.page.identifiers.update(values[name] for name in ("id", "name") if values.get(name))
        self.page.links.extend(values[name] for name in ("href", "src") if values.get(name))
        if tag == "figure":
            self._figure = []
        if tag == "img" and "article" in self._open:
            picture = {"src": values.get("src", ""), "alt": values.get("alt", ""), "caption": ""}
            self.page.figures.append(picture)
            if "figure" in self._open:
                self._figure.append(picture)

    def handle_endtag(self, tag: str) -> None:
        if tag in self._open:
            while self._open.pop() != tag:
                pass

    def handle_data(self, data: str) -> None:
        if "article" in self._open and not {"script", "style"} & set(self._open):
            self.page.text += data
        if "figcaption" in self._open:
            for picture in self._figure:
                picture["caption"] += data


def read_page(path: Path) -> Page:
    reader = Reader()
    reader.feed(path.read_text(encoding="utf-8"))
    reader.close()
    return reader.page


def toc_pages() -> list[str]:
    """Every page of the table of contents, as `book/name`."""
    toc = yaml.safe_load((notebooks.ROOT / "_toc.yml").read_text())
    return [toc["root"], *(chapter["file"] for part in toc["parts"] for chapter in part["chapters"])]


def missing_pages(site: Path) -> list[str]:
    return [f"{name}.html is missing" for name in toc_pages() if not (site / f"{name}.html").is_file()]


def dead_links(site: Path) -> list[str]:
    """Every reference inside the site, of a page, an anchor, a picture, a script or a style, that leads nowhere."""
    pages = {path.resolve(): read_page(path) for path in sorted(site.rglob("*.html")) if "_static" not in path.parts}
    dead = []
    for path, page in pages.items():
        for link in sorted(set(page.links)):
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:  # of the world outside; nothing is fetched here
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            where = f"{path.relative_to(site.resolve())} -> {link}"
            if not target.is_file():
                dead.append(f"{where}: there is no such file")
            elif parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].identifiers:
                dead.append(f"{where}: there is no such anchor")
    return dead


def figure_problems(site: Path, source: Path) -> Iterator[str]:
    """Pictures of a chapter that its page lacks, or shows without description or caption."""
    name = f"book/{source.stem}.html"
    cells = nbformat.read(source.with_suffix(".ipynb"), as_version=4).cells
    expected = sum(notebooks.image_count(cell) for cell in cells)
    figures = read_page(site / name).figures
    if len([figure for figure in figures if "_images/" in figure["src"]]) < expected:
        yield f"{name} shows {len(figures)} figures, its notebook has {expected}"
    for figure in figures:
        if not figure["alt"].strip():
            yield f"{name} shows {figure['src']} without alt text"
        if not figure["caption"].strip():
            yield f"{name} shows {figure['src']} without a caption"


def traces_of_failure(site: Path) -> list[str]:
    """Words on a page that only an accident puts there."""
    accident = re.compile(
        r"Traceback \(most recent call last\)|\bundefined\b|\bNaN%|\{(?:numref|eq|cite|doc|ref|term)\}`"
    )
    found = []
    for name in toc_pages():
        text = read_page(site / f"{name}.html").text
        found += [
            f"{name}.html: ...{text[max(0, m.start() - 40) : m.end() + 40]!r}..." for m in accident.finditer(text)
        ]
    return found


def test_every_page_of_the_contents_exists(site: Path) -> None:
    assert missing_pages(site) == []
    assert (site / "index.html").is_file()


def test_every_chapter_is_in_the_contents() -> None:
    assert {f"book/{source.stem}" for source in notebooks.chapters()} <= set(toc_pages())


def test_links_and_anchors_resolve(site: Path) -> None:
    assert dead_links(site) == []


@pytest.mark.parametrize("source", notebooks.chapters(), ids=lambda path: path.stem)
def test_figures_are_shown_described_and_captioned(site: Path, source: Path) -> None:
    assert list(figure_problems(site, source)) == []


def test_no_page_shows_a_failure(site: Path) -> None:
    assert traces_of_failure(site) == []


@pytest.mark.parametrize("source", notebooks.chapters(), ids=lambda path: path.stem)
def test_each_chapter_can_be_downloaded(site: Path, source: Path) -> None:
    downloads = [link for link in read_page(site / f"book/{source.stem}.html").links if link.endswith(".ipynb")]
    assert downloads
    offered = (site / "book" / downloads[0]).resolve()
    assert offered.read_bytes() == source.with_suffix(".ipynb").read_bytes()


def test_run_times_of_all_chapters_are_shown(site: Path) -> None:
    text = read_page(site / "book/run-times.html").text
    assert all(f"book/{source.stem}" in text for source in notebooks.chapters())


# --- the checks on a copy of the site that is spoilt


@pytest.fixture
def copy(site: Path, tmp_path: Path) -> Path:
    return shutil.copytree(site, tmp_path / "site")


def replace_once(path: Path, old: str, new: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new, 1), encoding="utf-8")


def test_a_missing_page_is_found(copy: Path) -> None:
    (copy / "book/glossary.html").unlink()
    assert missing_pages(copy) == ["book/glossary.html is missing"]
    assert any("glossary.html: there is no such file" in problem for problem in dead_links(copy))


def test_a_dead_link_and_a_dead_anchor_are_found(copy: Path) -> None:
    replace_once(
        copy / "book/glossary.html", "</article>", '<a href="nowhere.html">x</a><a href="#nowhere">y</a></article>'
    )
    assert dead_links(copy) == [
        "book/glossary.html -> #nowhere: there is no such anchor",
        "book/glossary.html -> nowhere.html: there is no such file",
    ]


def test_lost_pictures_and_words_are_found(tmp_path: Path) -> None:
    source = tmp_path / "chapter.md"
    picture = nbformat.v4.new_output("display_data", data={"image/png": "AAAA"})
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("draw()", outputs=[picture])])
    nbformat.write(notebook, source.with_suffix(".ipynb"))
    page = tmp_path / "book/chapter.html"
    page.parent.mkdir()
    sound = '<article><figure><img src="_images/a.png" alt="Words"><figcaption>Words</figcaption></figure></article>'
    page.write_text(sound)
    assert list(figure_problems(tmp_path, source)) == []
    for spoilt, words in (
        ("<article></article>", "shows 0 figures, its notebook has 1"),
        (sound.replace("Words", "", 1), "without alt text"),
        (sound.replace("<figcaption>Words</figcaption>", ""), "without a caption"),
    ):
        page.write_text(spoilt)
        (problem,) = figure_problems(tmp_path, source)
        assert words in problem


def test_traces_of_failure_are_found(copy: Path) -> None:
    replace_once(copy / "book/glossary.html", "</article>", "<p>Traceback (most recent call last): x</p></article>")
    (found,) = traces_of_failure(copy)
    assert "book/glossary.html" in found


# --- the installation and the execution cache


def test_pins_agree_with_the_lock() -> None:
    def pins(name: str) -> dict[str, str]:
        lines = (notebooks.ROOT / name).read_text().splitlines()
        requirements = [line for line in lines if line and not line.startswith("#")]
        assert all(re.fullmatch(r"[\w.-]+==[\w.]+", line) for line in requirements), name
        return {re.sub(r"[-_.]+", "-", line.split("==")[0]).lower(): line.split("==")[1] for line in requirements}

    direct, locked = pins("requirements.txt"), pins("requirements.lock")
    assert direct.items() <= locked.items()
    assert len(locked) > len(direct)


def test_the_execution_cache_goes_when_the_library_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = tmp_path / "lib/assoc/module.py"
    cached = tmp_path / "_build/.jupyter_cache/global.db"
    for path in (module, cached, tmp_path / "requirements.lock"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("1")
    for name, value in {"ROOT": tmp_path, "BUILD": tmp_path / "_build", "CACHE": cached.parent}.items():
        monkeypatch.setattr(book, name, value)
    monkeypatch.setattr(book, "STAMP", tmp_path / "_build/executed-with")
    monkeypatch.setattr(book, "HTML", tmp_path / "_build/html")

    def survives() -> bool:
        cached.parent.mkdir(exist_ok=True)
        cached.write_text("1")
        book.drop_stale()
        return cached.exists()

    assert not survives()  # nobody knows what it was made with
    assert survives()
    module.write_text("2")
    assert not survives()
    assert survives()
    (tmp_path / "requirements.lock").write_text("2")
    assert not survives()
    assert survives()
