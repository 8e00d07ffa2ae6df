"""The claims ledger: every claim that a run can decide has one, and none differs from what the ledger expects."""

from dataclasses import replace
from pathlib import Path

import nbformat
import pytest
from IPython.core.formatters import DisplayFormatter

import ledger
from assoc.errors import InputError
from assoc.ledger import METADATA, Claim, Entry, enter, load_claims, shown, verdict
from ledger import Evidence

CLAIM = Claim("A-x", "A", "Table 1", "It holds.", "authors", "holds", "cosine", "0.99", 0.9, 1.0)
BARE = Claim("B-y", "B", "Figure 3", "So does this.", "authors", "holds in part")


def test_the_books_ledger_is_whole() -> None:
    claims = load_claims(ledger.CLAIMS)
    assert len(claims) > 60
    assert ledger.problems(claims, ledger.evidence()) == []


def test_every_chapter_with_entries_has_the_heading_that_links_go_to() -> None:
    chapters = {piece.chapter for _, piece in ledger.entries()}
    assert chapters
    for chapter in chapters:
        assert f"\n## {ledger.SECTION}\n" in (ledger.BOOK / f"{chapter}.md").read_text(), chapter


@pytest.mark.parametrize(
    ("claims", "pieces", "words"),
    [
        ([CLAIM], {}, "no chapter enters"),
        ([CLAIM], {"A-x": Entry(0.5, "holds")}, "0.5 is outside 0.9 to 1"),
        ([CLAIM], {"A-x": Entry(0.95, "does not hold")}, "the ledger expects 'holds'"),
        ([CLAIM], {"A-x": Entry(0.95, "perhaps")}, "the verdict is 'perhaps'"),
        ([CLAIM], {"A-x": Entry(None, "holds")}, "the claim has a number"),
        ([BARE], {"B-y": Entry(0.95, "holds in part")}, "the claim has no number"),
        ([], {"A-x": Entry(0.95, "holds")}, "no such claim"),
        ([replace(BARE, answer="So.", chapter="9-none")], {}, "no chapter 9-none"),
    ],
)
def test_each_thing_that_is_wrong_is_found(claims: list[Claim], pieces: dict[str, Entry], words: str) -> None:
    found = {name: [Evidence("1a", entry)] for name, entry in pieces.items()}
    (problem,) = ledger.problems({claim.id: claim for claim in claims}, found)
    assert words in problem


def test_what_is_right_is_left_in_peace() -> None:
    found = {"A-x": [Evidence("1a", Entry(0.95, "holds"))], "B-y": [Evidence("1b", Entry(None, "holds in part"))]}
    claims = {"A-x": CLAIM, "B-y": BARE}
    assert ledger.problems(claims, found) == []
    assert ledger.counts(claims, found)[-1] == ["all", "2", "1", "1", "0", "0", "2"]


def test_the_table_is_of_a_paper_that_there_is() -> None:
    assert [ledger.known_paper(paper) for paper in ("A", "B", "AB")] == ["A", "B", "AB"]
    for other in ("C", "a", "", None):
        with pytest.raises(ValueError, match="is not among A, B, AB"):
            ledger.known_paper(other)


@pytest.fixture
def book(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "claims.yml").write_text(
        "- {id: A-x, paper: A, place: Table 1, text: It holds., says: authors, verdict: holds, measured: cosine, "
        "low: 0.9, high: 1, digits: .2f}\n"
    )
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_an_entry_travels_with_the_output_of_its_cell(book: Path) -> None:
    entered = enter({"A-x": (0.987654321, "holds", "3 | 4 seeds")})
    data, metadata = DisplayFormatter().format(entered)
    assert "cosine: 0.99; 3 \\| 4 seeds" in data["text/markdown"]
    output = nbformat.v4.new_output("display_data", data=data, metadata=metadata)
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("enter", outputs=[output])])
    nbformat.write(notebook, book / "1a-x.ipynb")
    assert ledger.evidence(book) == {"A-x": [Evidence("1a-x", Entry(0.9877, "holds", "3 | 4 seeds"))]}
    assert METADATA in metadata


@pytest.mark.parametrize(
    ("entries", "words"),
    [
        ({"A-z": (1.0, "holds")}, "no claim 'A-z'"),
        ({"A-x": (0.1, "holds")}, "outside"),
        ({"A-x": ("0.95", "holds")}, "give a number"),
        ({"A-x": (True, "holds")}, "give a number"),
        ({"A-x": (float("nan"), "holds")}, "outside"),
        ({"A-x": (0.95,)}, "an entry of the ledger is"),
        ({"A-x": 0.95}, "an entry of the ledger is"),
        ({"A-x": (0.95, "holds", "two\nlines")}, "one line"),
        ({"A-x": (0.95, "holds", 3)}, "one line"),
        ({"A-x": (0.95, "does not hold")}, "the run says 'does not hold'"),
    ],
)
def test_entries_that_contradict_the_ledger_stop_the_chapter(book: Path, entries: dict, words: str) -> None:
    with pytest.raises(InputError, match=words):
        enter(entries)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("- {id: A-x}\n", "cannot read claims"),
        ("- [\n", "cannot read claims"),
        ("- {id: a, paper: C, place: p, text: t, says: us, verdict: holds}\n", "does not know"),
        ("- {id: a, paper: A, place: p, text: t, says: us, verdict: holds, low: 1}\n", "give low, high"),
        ("- {id: a, paper: A, place: p, text: t, says: us, verdict: holds, answer: x}\n", "needs the chapter"),
        ("- {id: a, paper: A, place: p, text: t, says: us, verdict: holds}\n" * 2, "one id"),
        ("- {id: a, paper: A, place: 3, text: t, says: us, verdict: holds}\n", "place is 3"),
        ("- {id: a, paper: A, place: p, text: 't\n\n  u', says: us, verdict: holds}\n", "one line"),
        ("- {id: a, paper: A, place: p, text: t, says: us, verdict: holds, low: x, high: 1}\n", "low is 'x'"),
        (
            "- {id: a, paper: A, place: p, text: t, says: us, verdict: holds, measured: c, low: 2, high: 1}\n",
            "the smaller one first",
        ),
    ],
)
def test_a_broken_file_of_claims_is_a_one_line_error(book: Path, text: str, words: str) -> None:
    (book / "claims.yml").write_text(text)
    with pytest.raises(InputError, match=words):
        load_claims()


def test_a_file_of_claims_that_is_no_text_is_a_one_line_error(book: Path) -> None:
    (book / "claims.yml").write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match="cannot read claims"):
        load_claims()


def test_numbers_are_shown_with_what_they_are() -> None:
    assert shown(CLAIM, Entry(0.98765, "holds", "five seeds")) == "cosine: 0.988; five seeds"
    assert shown(BARE, Entry(None, "holds in part")) == ""
    assert [verdict(True), verdict(False, True), verdict(False)] == ["holds", "holds in part", "does not hold"]
    cells = ledger.row(CLAIM, [Evidence("1a-basis", Entry(0.95, "holds"))])
    assert cells[-1] == "[1A](1a-basis.ipynb#for-the-claims-ledger)"


def test_a_number_in_running_text_is_the_one_that_a_chapter_entered() -> None:
    role = ledger.ClaimNumber()
    role.text = "A-table1-frequency"
    ((node,), messages) = role.run()
    entered = ledger.evidence()[role.text][-1].entry.value
    assert node.astext() == f"{entered:.3f}"
    assert messages == []


def test_chapters_show_the_claims_as_they_read_now() -> None:
    claims = load_claims(ledger.CLAIMS)
    for path in sorted(ledger.BOOK.glob("[0-9]*.ipynb")):
        for cell in nbformat.read(path, as_version=4).cells:
            for output in cell.get("outputs", []):
                for kept in output.get("metadata", {}).get(METADATA, []):
                    assert claims[kept["id"]].text in output.data["text/markdown"], (path.stem, kept["id"])
