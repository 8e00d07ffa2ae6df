"""The claims ledger as a page: book/claims.yml with what the chapters' committed outputs say of each claim.

As an extension of Sphinx it has a role, {claim}`ID`, for a claim's number in running text, and two directives:
`claims-ledger` with the option `paper` (A, B or AB) makes a table, `claims-count` one of verdicts. `problems` is
what the tests ask.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective, SphinxRole

from assoc.ledger import METADATA, PAPERS, VERDICTS, Claim, Entry, load_claims, shown
from notebooks import BOOK, read_notebook

CLAIMS = BOOK / "claims.yml"
SECTION = "For the claims ledger"
"""The heading that stands above a chapter's entries, for links to them."""


@dataclass(frozen=True)
class Evidence:
    """An entry and the chapter it is from."""

    chapter: str
    entry: Entry


def entries(book: Path = BOOK) -> Iterator[tuple[str, Evidence]]:
    """Claim and evidence of every entry in the committed outputs of all chapters."""
    for path in sorted(book.glob("[0-9]*.ipynb")):
        for cell in read_notebook(path).cells:
            for output in cell.get("outputs", []):
                for kept in output.get("metadata", {}).get(METADATA, []):
                    yield kept["id"], Evidence(path.stem, Entry(kept["value"], kept["verdict"], kept["remark"]))


def evidence(book: Path = BOOK) -> dict[str, list[Evidence]]:
    """All evidence for each claim that has some."""
    found: dict[str, list[Evidence]] = {}
    for name, piece in entries(book):
        found.setdefault(name, []).append(piece)
    return found


def problems(claims: dict[str, Claim], found: dict[str, list[Evidence]], book: Path = BOOK) -> list[str]:
    """Claims without evidence, evidence without claim, numbers and verdicts that are not what the ledger expects."""
    lines = [f"{name}: no such claim in {CLAIMS.name}" for name in found if name not in claims]
    for name, claim in claims.items():
        pieces = found.get(name, [])
        if claim.needs_evidence and not pieces:
            lines.append(f"{name}: no chapter enters a number or a verdict")
        if claim.chapter and not (book / f"{claim.chapter}.md").exists():
            lines.append(f"{name}: there is no chapter {claim.chapter}")
        found_problems = ((piece.chapter, claim.problem(piece.entry.value, piece.entry.verdict)) for piece in pieces)
        lines += [f"{chapter}: {problem}" for chapter, problem in found_problems if problem]
    return lines


def link(chapter: str, has_entries: bool) -> str:
    """A link to a chapter's entries, or to the chapter; its text is the chapter's number."""
    anchor = f"#{SECTION.lower().replace(' ', '-')}" if has_entries else ""
    return f"[{chapter.split('-')[0].upper()}]({chapter}.ipynb{anchor})"


def row(claim: Claim, pieces: list[Evidence]) -> list[str]:
    """The cells of one claim, in MyST."""
    here = "<br>".join(dict.fromkeys(filter(None, (shown(claim, piece.entry) for piece in pieces))))
    links = ", ".join(link(chapter, True) for chapter in dict.fromkeys(piece.chapter for piece in pieces))
    who = {"us": " *(ours)*", "reviews": " *(asked)*", "authors": ""}[claim.says]
    verdict = "answered" if claim.says == "reviews" else claim.verdict
    return [f"{claim.text} ({claim.place}){who}", claim.paper_number, here or claim.answer, verdict,
            links or link(claim.chapter, False)]  # fmt: skip


def markdown(header: list[str], rows: list[list[str]]) -> str:
    """A table in MyST."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines)


def counts(claims: dict[str, Claim], found: dict[str, list[Evidence]]) -> list[list[str]]:
    """Rows of the table of verdicts: who claims it, how many claims, each verdict, how many rest on a run."""
    groups = [("paper A", lambda claim: claim.says == "authors" and claim.paper == "A"),
              ("paper B", lambda claim: claim.says == "authors" and claim.paper == "B"),
              ("this book", lambda claim: claim.says == "us"),
              ("all", lambda claim: claim.says != "reviews")]  # fmt: skip
    rows = []
    for name, belongs in groups:
        chosen = [claim for claim in claims.values() if belongs(claim)]
        verdicts = Counter(claim.verdict for claim in chosen)
        with_run = sum(claim.id in found for claim in chosen)
        rows.append([name, str(len(chosen)), *(str(verdicts[verdict]) for verdict in VERDICTS), str(with_run)])
    return rows


class ClaimNumber(SphinxRole):
    """{claim}`ID`: the number that a chapter entered for a claim, the last one if several did."""

    def run(self) -> tuple[list[nodes.Node], list[nodes.system_message]]:
        claim, pieces = load_claims(CLAIMS)[self.text], evidence()[self.text]
        return [nodes.inline("", f"{pieces[-1].entry.value:{claim.digits}}")], []


class FromMarkdown(SphinxDirective):
    """A directive that is replaced by parsed MyST."""

    def text(self) -> str:
        raise NotImplementedError

    def run(self) -> list[nodes.Node]:
        for path in (CLAIMS, *sorted(BOOK.glob("[0-9]*.ipynb"))):
            self.env.note_dependency(str(path))
        return self.parse_text_to_nodes(self.text())


def known_paper(given: str | None) -> str:
    """The option `paper`. Raises ValueError, which Sphinx reports with its place, for any other."""
    if given not in PAPERS:
        raise ValueError(f"{given!r} is not among {', '.join(PAPERS)}")
    return given


class ClaimsLedger(FromMarkdown):
    """`claims-ledger` with `:paper:`."""

    option_spec = {"paper": known_paper}  # noqa: RUF012

    def text(self) -> str:
        found = evidence()
        rows = [
            row(claim, found.get(claim.id, []))
            for claim in load_claims(CLAIMS).values()
            if claim.paper == self.options["paper"]
        ]
        return markdown(["claim", "paper", "here", "verdict", "chapter"], rows)


class ClaimsCount(FromMarkdown):
    """`claims-count`, without options."""

    def text(self) -> str:
        return markdown(
            ["who says it", "claims", *VERDICTS, "decided by a run"], counts(load_claims(CLAIMS), evidence())
        )


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_role("claim", ClaimNumber())
    app.add_directive("claims-ledger", ClaimsLedger)
    app.add_directive("claims-count", ClaimsCount)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
