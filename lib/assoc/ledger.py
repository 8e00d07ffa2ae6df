"""The claims ledger: every claim of both papers, with the number that a chapter's run gives for it.

The claims are data (`book/claims.yml`). A chapter enters what it measured with `enter`; the entry is stored with the
cell's output, where the ledger's page and the tests find it. So no number of the ledger is typed.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from numbers import Real
from pathlib import Path
from typing import Any

import yaml

from assoc.errors import InputError

VERDICTS = ("holds", "holds in part", "does not hold", "not tested here")
SAYS = ("authors", "us", "reviews")
PAPERS = ("A", "B", "AB")
METADATA = "assoc-claims"
"""The key of an output's metadata under which entries are kept."""


@dataclass(frozen=True)
class Claim:
    """One row of the ledger.

    Attributes:
        id: short and unique, "A-table1-attention".
        paper: one of `PAPERS`; "AB" for what concerns both.
        place: in the paper, "Table 1"; or which program or review.
        text: what is claimed, in one sentence.
        says: who, one of `SAYS`: the "authors"; "us", for findings of this book; "reviews", for what readers of
            reviews asked.
        measured: what our number is, with its unit; "" for a claim without one.
        paper_number: what the paper has for it, "" if nothing.
        verdict: what our run is expected to say, one of `VERDICTS`.
        low, high: where our number must lie, ends included; None where there is no number.
        digits: format of our number.
        answer: for a claim that no run of this book can decide, why; and what a question is answered with.
        chapter: for such a claim, the page that explains it.
    """

    id: str
    paper: str
    place: str
    text: str
    says: str
    verdict: str
    measured: str = ""
    paper_number: str = ""
    low: float | None = None
    high: float | None = None
    digits: str = ".3g"
    answer: str = ""
    chapter: str = ""

    @property
    def needs_evidence(self) -> bool:
        """Whether a run must decide it."""
        return not self.answer

    def problem(self, value: float | None, verdict: str) -> str:
        """What is wrong with an entry for this claim, in one line; "" if nothing is."""
        if verdict not in VERDICTS:
            return f"{self.id}: the verdict is {verdict!r}; choose {', '.join(VERDICTS)}"
        if verdict != self.verdict:
            return f"{self.id}: the run says '{verdict}', the ledger expects '{self.verdict}'"
        if (value is None) != (self.low is None):
            return f"{self.id}: the claim {'has a' if self.low is not None else 'has no'} number, the entry differs"
        if value is not None and not self.low <= value <= self.high:
            return f"{self.id}: {value:{self.digits}} is outside {self.low:g} to {self.high:g}, the ledger's range"
        return ""


@dataclass(frozen=True)
class Entry:
    """What a run says of one claim: its number (None without one), its verdict, and a remark such as the spread."""

    value: float | None
    verdict: str
    remark: str = ""


def load_claims(path: str | Path = "claims.yml") -> dict[str, Claim]:
    """The claims of a file, by their ids and in its order.

    Raises:
        InputError: no such file, or a claim that is not whole.
    """
    try:
        rows = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
        claims = [Claim(**row) for row in rows]
    except (OSError, ValueError, yaml.YAMLError, TypeError) as error:
        raise InputError(f"cannot read claims from '{path}': {error}") from error
    if not claims:
        raise InputError(f"'{path}' holds no claims: give a list of them")
    for claim in claims:
        for name, value in vars(claim).items():
            if name in ("low", "high"):
                if value is not None and not (_is_number(value) and math.isfinite(value)):
                    raise InputError(f"claim {claim.id}: {name} is {value!r}; give a finite number")
            elif not _is_line(value):
                raise InputError(f"claim {claim.id}: {name} is {value!r}; give one line of text, in quotes")
        if claim.says not in SAYS or claim.verdict not in VERDICTS or claim.paper not in PAPERS:
            raise InputError(f"claim {claim.id}: says, verdict or paper has a value that the ledger does not know")
        if (claim.low is None) != (claim.high is None) or (claim.low is not None and not claim.measured):
            raise InputError(f"claim {claim.id}: give low, high and what is measured, or none of them")
        if claim.low is not None and claim.low > claim.high:
            raise InputError(f"claim {claim.id}: low is {claim.low}, high {claim.high}; give the smaller one first")
        if not _is_format(claim.digits):
            raise InputError(f"claim {claim.id}: digits is {claim.digits!r}; give the format of a number, such as .3g")
        if claim.answer and not claim.chapter:
            raise InputError(f"claim {claim.id}: an answer needs the chapter that explains it")
    if len({claim.id for claim in claims}) != len(claims):
        raise InputError(f"two claims in '{path}' have one id")
    return {claim.id: claim for claim in claims}


def _is_number(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def _is_format(digits: str) -> bool:
    try:
        return bool(f"{1.0:{digits}}")
    except ValueError:
        return False


def _is_line(value: object) -> bool:
    return isinstance(value, str) and "\n" not in value


@dataclass(frozen=True)
class Entered:
    """A table of entries, whose display carries them in its metadata."""

    entries: Mapping[str, Entry]
    claims: Mapping[str, Claim] = field(repr=False)

    def _repr_mimebundle_(self, **_: Any) -> tuple[dict[str, str], dict[str, Any]]:
        lines = ["| claim | paper | here | verdict |", "| --- | --- | --- | --- |"]
        kept = []
        for name, entry in self.entries.items():
            claim = self.claims[name]
            cells = (f"{claim.text} ({claim.place})", claim.paper_number, shown(claim, entry), entry.verdict)
            lines.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
            kept.append({"id": name, "value": entry.value, "verdict": entry.verdict, "remark": entry.remark})
        data = {"text/markdown": "\n".join(lines), "text/plain": f"{len(kept)} entries of the claims ledger"}
        return data, {METADATA: kept}


def shown(claim: Claim, entry: Entry) -> str:
    """An entry's number as readers see it, with what it is and its remark."""
    number = "" if entry.value is None else f"{entry.value:{claim.digits}}"
    what = f"{claim.measured}: {number}" if number else ""
    return "; ".join(part for part in (what, entry.remark) if part)


def enter(entries: Mapping[str, tuple[float | None, str] | tuple[float | None, str, str] | Entry]) -> Entered:
    """Enter what a chapter measured into the ledger, and show it as a table.

    Args:
        entries: id of a claim -> its number (None if it has none), its verdict, and perhaps a remark (the spread, ..).

    Raises:
        InputError: an entry of another form; an unknown claim, another verdict than the ledger expects, or a number
            outside its range: then either the run or the ledger is wrong, and somebody must look.
    """
    claims = load_claims()
    try:
        made = {name: entry if isinstance(entry, Entry) else Entry(*entry) for name, entry in entries.items()}
    except (TypeError, AttributeError):
        raise InputError("an entry of the ledger is (number or None, verdict) or (number, verdict, remark)") from None
    for name, entry in made.items():
        if name not in claims:
            raise InputError(f"the ledger has no claim {name!r}: add it to claims.yml")
        if entry.value is not None and not _is_number(entry.value):
            raise InputError(f"{name}: the number is {entry.value!r}; give a number or None")
        if not _is_line(entry.remark):
            raise InputError(f"{name}: the remark is {entry.remark!r}; give one line of text")
        made[name] = entry = _rounded(entry)
        if problem := claims[name].problem(entry.value, entry.verdict):
            raise InputError(problem)
    return Entered(made, claims)


def _rounded(entry: Entry) -> Entry:
    """The entry with as many digits as are kept, before it is shown: else the ledger could show it otherwise."""
    return entry if entry.value is None else replace(entry, value=float(f"{entry.value:.4g}"))


def verdict(holds: bool, in_part: bool = False) -> str:
    """The word for a check: "holds" if it does, else "holds in part" if that is so, else "does not hold"."""
    return "holds" if holds else "holds in part" if in_part else "does not hold"
