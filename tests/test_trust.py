"""Whatever goes wrong with the book is found: each test here spoils one thing, and the check that guards it must fail.

Beside these, checks are tried on spoilt input where they stand: the pair check in test_notebooks.py, those of built
pages in test_book.py and test_browser.py, the ledger's rules in test_ledger.py.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import nbformat
import pytest
import yaml
from nbformat import NotebookNode

import ledger
import notebooks
import test_book
import test_ledger
import test_notebooks
from assoc.ledger import METADATA, Entry, load_claims, shown

HEADER = """---
jupytext:
  text_representation:
    extension: .md
    format_name: myst
kernelspec:
  display_name: Python 3
  language: python
  name: python3
---

"""
CHAPTER = "1b-bigram-task"


def code(text: str) -> str:
    return f"```{{code-cell}} ipython3\n{text}\n```\n\n"


def fails(test: Callable[..., None], *arguments: object) -> str:
    """The words with which a test fails; it must."""
    with pytest.raises(AssertionError) as caught:
        test(*arguments)
    return str(caught.value)


# --- outputs that do not come again


MARKDOWN = "from IPython.display import HTML, Markdown, display\n\ndisplay(Markdown('| cosine |\\n| --- |\\n| {} |'))"
CELLS = {  # what the cell does, what it did when it was committed, whether nbval must object
    "as committed": ("print(6 * 7)", None, False),
    "another text": ("print(6 * 8)", "print(6 * 7)", True),
    "another last digit": ("0.1 + 0.25", "0.1 + 0.26", True),
    "another number in a table": (MARKDOWN.format("0.98"), MARKDOWN.format("0.99"), True),
    "another number in HTML": ("HTML('<b>0.98</b>')", "HTML('<b>0.99</b>')", True),
    "a warning": ("import warnings\nwarnings.warn('careful')\nprint(1)", "print(1)", True),
    "words on stderr": ("import sys\nprint('careful', file=sys.stderr)\nprint(1)", "print(1)", True),
    "nothing any more": ("pass", "print(1)", True),
    "something more": ("print(1)", "pass", True),
    "a second output": ("display(1)\ndisplay(2)", "display(1)", True),
    "raises": ("1 / 0", "print(1)", True),
    "as committed, at the end": ("print('the end')", None, False),
}


def test_nbval_objects_to_every_kind_of_change(tmp_path: Path) -> None:
    """All cells in one notebook; each must fail or pass by itself."""
    source = tmp_path / "chapter.md"
    source.write_text(HEADER + "# Title\n\n" + "".join(code(before or now) for now, before, _ in CELLS.values()))
    notebooks.prepare_kernels()
    notebooks.execute(source)
    twin = source.with_suffix(".ipynb")
    notebook = nbformat.read(twin, as_version=4)
    for cell, (now, _, _) in zip(notebook.cells[1:], CELLS.values(), strict=True):
        cell.source = now
    nbformat.write(notebook, twin)
    found = test_notebooks.validate(twin, tmp_path / "report.xml")
    failed = {int(re.search(r"Cell (\d+)", failure)[1]) for failure in found.failures}
    assert failed == {index for index, (_, _, wrong) in enumerate(CELLS.values()) if wrong}
    assert found.code_cells == len(CELLS)


# --- pairs and contents, by the test functions themselves


@pytest.fixture
def copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The pair of a chapter in a book of its own."""
    for suffix in (".md", ".ipynb"):
        shutil.copy(notebooks.BOOK / f"{CHAPTER}{suffix}", tmp_path)
    monkeypatch.setattr(notebooks, "BOOK", tmp_path)
    source = tmp_path / f"{CHAPTER}.md"
    test_notebooks.test_both_files_of_a_pair_agree(source)
    return source


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("**Question.** ", "**Question.** Now. "),
        ("\n## Exercises\n", "\n## Questions\n"),
        ("    caption: >-\n", "    caption: >-\n      New.\n"),
        ("manual_seed(0)", "manual_seed(3)"),
        ("\n+++\n", "\nwords\n"),
    ],
)
def test_an_edited_source_without_its_twin_fails(copy: Path, old: str, new: str) -> None:
    text = copy.read_text()
    assert old in text
    copy.write_text(text.replace(old, new, 1))
    assert "differs from its twin" in fails(test_notebooks.test_both_files_of_a_pair_agree, copy)


def spoil(source: Path, change: Callable[[NotebookNode], None]) -> None:
    """Change the twin of a chapter, in its first cell with an output."""
    twin = source.with_suffix(".ipynb")
    notebook = nbformat.read(twin, as_version=4)
    change(next(cell for cell in notebook.cells if cell.get("outputs")))
    nbformat.write(notebook, twin)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda cell: cell.update(source="print(1)"), "differs from its twin in its source"),
        (lambda cell: cell.update(outputs=[nbformat.v4.new_output("error", ename="E", evalue="")]), "holds an error"),
        (lambda cell: cell.update(outputs=[nbformat.v4.new_output("stream", name="stderr", text="x")]), "stderr"),
        (lambda cell: cell.update(execution_count=None), "was never executed"),
    ],
)
def test_an_edited_twin_fails(copy: Path, change: Callable[[NotebookNode], None], words: str) -> None:
    spoil(copy, change)
    assert words in fails(test_notebooks.test_both_files_of_a_pair_agree, copy)


def test_half_a_pair_fails(copy: Path) -> None:
    copy.rename(copy.with_name("9-other.md"))
    assert "has no .md source" in fails(test_notebooks.test_the_book_has_chapters)
    assert "is missing" in fails(test_notebooks.test_both_files_of_a_pair_agree, copy.with_name("9-other.md"))


def test_a_chapter_that_the_contents_lack_fails(copy: Path) -> None:
    test_book.test_every_chapter_is_in_the_contents()
    copy.rename(copy.with_name("9-other.md"))
    assert "book/9-other" in fails(test_book.test_every_chapter_is_in_the_contents)


# --- claims


def entered_otherwise_than_shown(book: Path) -> Iterable[str]:
    """Claims whose entry, which the ledger shows, is not what its chapter shows, which nbval compares with the run."""
    claims = load_claims(ledger.CLAIMS)
    for path in sorted(book.glob("[0-9]*.ipynb")):
        for cell in notebooks.read_notebook(path).cells:
            for output in cell.get("outputs", []):
                lines = output.get("data", {}).get("text/markdown", "").replace(r"\|", "|").splitlines()
                for kept in output.get("metadata", {}).get(METADATA, []):
                    claim, entry = claims[kept["id"]], Entry(kept["value"], kept["verdict"], kept["remark"])
                    end = f"| {shown(claim, entry)} | {entry.verdict} |"
                    if not any(f" {claim.text} " in line and line.endswith(end) for line in lines):
                        yield f"{path.stem}: {claim.id} is shown otherwise than {end!r}"


def test_the_ledger_has_what_chapters_show() -> None:
    assert list(entered_otherwise_than_shown(ledger.BOOK)) == []


def first_entry(book: Path) -> tuple[Path, NotebookNode, NotebookNode]:
    """The first notebook with an entry that has a number, and that entry."""
    for path in sorted(book.glob("[0-9]*.ipynb")):
        notebook = nbformat.read(path, as_version=4)
        for cell in notebook.cells:
            for output in cell.get("outputs", []):
                for kept in output.get("metadata", {}).get(METADATA, []):
                    if kept["value"] is not None:
                        return path, notebook, kept
    raise AssertionError("no chapter enters a number")


@pytest.mark.parametrize("change", [{"value": 0.123}, {"verdict": "does not hold"}, {"remark": "in all seeds"}])
def test_an_entry_that_was_changed_by_hand_fails(change: dict, tmp_path: Path) -> None:
    path, notebook, kept = first_entry(ledger.BOOK)
    kept.update(change)
    nbformat.write(notebook, tmp_path / path.name)
    (problem,) = entered_otherwise_than_shown(tmp_path)
    assert kept["id"] in problem


@pytest.mark.parametrize(
    ("change", "words", "test"),
    [
        ({"verdict": "not tested here"}, "the ledger expects 'not tested here'", "whole"),
        ({"low": 1e6, "high": 2e6}, "is outside 1e+06 to 2e+06", "whole"),
        ({"id": "A-other"}, "no such claim", "whole"),
        ({"text": "It holds for every model."}, "It holds for every model.", "shown"),
        (None, "no such claim", "whole"),
    ],
)
def test_a_claim_that_was_changed_fails(
    change: dict | None, words: str, test: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = first_entry(ledger.BOOK)[2]["id"]
    claims = yaml.safe_load(ledger.CLAIMS.read_text())
    spoilt = tmp_path / "claims.yml"
    spoilt.write_text(
        yaml.safe_dump(
            [
                claim | (change or {}) if claim["id"] == name else claim
                for claim in claims
                if change is not None or claim["id"] != name
            ]
        )
    )
    monkeypatch.setattr(ledger, "CLAIMS", spoilt)
    tests = {
        "whole": test_ledger.test_the_books_ledger_is_whole,
        "shown": test_ledger.test_chapters_show_the_claims_as_they_read_now,
    }
    assert words in fails(tests[test])


# --- builds of a small book, which has one thing wrong


INDEX = "# A small book\n\n(here)=\n## A place\n\nWords.\n"
GLOSSARY = """# Glossary

```{glossary}
memory
    **기억**. A matrix.
```

## More of it

{cite}`bietti2023birth`

```{bibliography}
```
"""
LINKS = {  # what an author may write, and a word of the place that is not there
    "{doc}`gone-1`": "gone-1",
    "{ref}`gone-2`": "gone-2",
    "[words](gone-3.md)": "gone-3",
    "[words](#gone-4)": "gone-4",
    "[words](glossary.md#gone-5)": "gone-5",
    "[words](gone-6.ipynb#part)": "gone-6",
    "{download}`words <gone-7.csv>`": "gone-7",
    "![words](gone-8.png)": "gone-8",
    "{numref}`gone-9`": "gone-9",
    "{eq}`gone-10`": "gone-10",
    "{cite}`gone11`": "gone11",
    "{term}`gone-12`": "gone-12",
}
SOUND = """
{doc}`glossary`, {ref}`here`, [](glossary.md), [words](#another-place), [words](glossary.md#more-of-it),
{cite}`im2026leading`, {term}`memory`.

## Another place
"""


def build(folder: Path, pages: dict[str, str | None]) -> tuple[int, str]:
    """Build a book of an index, a glossary and other pages with tools/book.py; return its status and its words."""
    root = notebooks.ROOT
    for part in ("_config.yml", "requirements.lock"):
        shutil.copy(root / part, folder)
    for part in ("tools", "book/_static"):
        shutil.copytree(root / part, folder / part, ignore=shutil.ignore_patterns("__pycache__"))
    for part in ("references.bib", "claims.yml"):
        shutil.copy(root / "book" / part, folder / "book")
    for name, text in ({"index": INDEX, "glossary": GLOSSARY} | pages).items():
        if text is not None:
            (folder / f"book/{name}.md").write_text(text)
    contents = {"format": "jb-book", "root": "book/index", "parts": [{"caption": "Pages", "chapters": []}]}
    contents["parts"][0]["chapters"] = [{"file": f"book/{name}"} for name in ("glossary", *pages)]
    (folder / "_toc.yml").write_text(yaml.safe_dump(contents))
    environment = os.environ | {"PATH": str(Path(sys.executable).parent)}  # no npm
    run = subprocess.run(
        [sys.executable, "tools/book.py"], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    return run.returncode, run.stdout + run.stderr


def test_a_sound_book_is_built(tmp_path: Path) -> None:
    status, said = build(tmp_path, {"page": "# Page\n" + SOUND, "cells": HEADER + "# Cells\n\n" + code("print(6 * 7)")})
    assert status == 0, said
    site = tmp_path / "_build/html"
    assert test_book.dead_links(site) == []
    assert ">42\n" in (site / "book/cells.html").read_text()


def test_every_dead_link_stops_the_build(tmp_path: Path) -> None:
    status, said = build(tmp_path, {"page": "# Page\n" + SOUND + "\n\n".join(LINKS)})
    assert status == 1
    assert "error: the book was not built" in said
    warnings = [line for line in said.splitlines() if "WARNING" in line or "ERROR" in line]
    missed = [link for link, word in LINKS.items() if not any(re.search(rf"{word}\b", line) for line in warnings)]
    assert missed == []


@pytest.mark.parametrize(
    ("cell", "words"),
    [
        ("1 / 0", "ZeroDivisionError"),
        ("import sys\nprint('careful', file=sys.stderr)", "stderr was found in the cell outputs"),
    ],
)
def test_a_cell_that_fails_stops_the_build(cell: str, words: str, tmp_path: Path) -> None:
    status, said = build(tmp_path, {"cells": HEADER + "# Cells\n\n" + code(cell)})
    assert status == 1
    assert words in said


def test_a_page_of_the_contents_without_a_file_stops_the_build(tmp_path: Path) -> None:
    status, said = build(tmp_path, {"page": None})
    assert status == 1
    assert "book/page" in said
