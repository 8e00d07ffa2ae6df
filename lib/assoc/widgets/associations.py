"""Paper A, Figure 5: the words tied to a word by each of the three basis functions."""

from collections.abc import Sequence
from html import escape
from itertools import zip_longest

from ipywidgets import Text
from torch import Tensor

from assoc.corpus.tokens import word_index
from assoc.errors import InputError, whole_number
from assoc.leading_terms.basis import BasisFunctions
from assoc.leading_terms.neighbours import BASIS_NAMES, Neighbour, association, neighbours, strongest
from assoc.widgets.explorer import Explorer, choice, live_box
from assoc.widgets.pictures import bar, table

MEANINGS = {
    "bigram": "follow it (bigram B)",
    "interchangeability": "share what precedes them (interchangeability S)",
    "context": "stand somewhere before it (context Φ)",
}


def association_table(word: str, found: dict[str, list[Neighbour]], normalised: bool) -> str:
    """Neighbours of a word under each basis function, side by side, as an HTML table; bars compare with the first.

    Args:
        found: name of a basis function -> its neighbours, strongest first.
    """
    columns = [[_cell(neighbour, column[0].strength) for neighbour in column] for column in found.values()]
    rows = [[str(rank), *cells] for rank, cells in enumerate(zip_longest(*columns, fillvalue=""), start=1)]
    kind = "normalised strengths: frequent words lose their head start" if normalised else "raw strengths"
    return table(f"Words that ... “{word}”, {kind}", ["", *(MEANINGS[name] for name in found)], rows)


def _cell(neighbour: Neighbour, largest: float) -> str:
    share = neighbour.strength / largest if largest > 0 else 0.0
    return f"{escape(neighbour.word)} <small>{neighbour.strength:.2g}</small>{bar(share)}"


def association_explorer(
    basis: BasisFunctions, vocabulary: list[str], words: Sequence[str] | None = None, top: int = 8
) -> Explorer:
    """Choose a word; see its neighbours under B, S and Phi side by side, raw or normalised.

    With a kernel, any word of the vocabulary can be typed.

    Args:
        basis: V x V basis functions. vocabulary: the V words, most frequent first.
        words: those to choose from. Default: the 60 most frequent that are made of letters.
        top: neighbours of each.

    Raises:
        InputError: no words, a word outside the vocabulary or given twice, sizes that do not fit.
    """
    if len(vocabulary) != len(basis.bigram):
        raise InputError(f"the vocabulary has {len(vocabulary)} words, the basis functions {len(basis.bigram)}")
    top = whole_number("top", top, minimum=1)
    if words is None:
        words = [word for word in vocabulary if word.isalpha()][:60]
    chosen = [(vocabulary[index], index) for index in (word_index(vocabulary, word) for word in words)]
    tables = {normalised: _associations(basis, normalised) for normalised in (False, True)}

    def draw(index: int, normalised: bool) -> str:
        found = {
            name: strongest(rows[index], vocabulary, top, leave_out=index if name == "interchangeability" else None)
            for name, rows in tables[normalised].items()
        }
        return association_table(vocabulary[index], found, normalised)

    def any_word(word: str, normalised: bool) -> str:
        if not word.strip():
            return ""
        found = {name: neighbours(basis, vocabulary, word.strip(), name, top, normalised) for name in BASIS_NAMES}
        return association_table(word.strip(), found, normalised)

    word = choice("word", chosen, "the word whose neighbours are shown")
    strength = choice("strength", [("raw", False), ("normalised", True)], "as they are, or frequent words held back")
    other = Text(
        description="any other word",
        placeholder=f"one of {len(vocabulary):,}",
        tooltip="a word of the vocabulary, then Enter",
        continuous_update=False,
        style={"description_width": "initial"},
    )
    return Explorer(
        "Association explorer",
        "Choose a word and see which words each basis function of the corpus ties to it.",
        [word, strength],
        draw,
        live=[live_box([other, strength], any_word)],
    )


def _associations(basis: BasisFunctions, normalised: bool) -> dict[str, Tensor]:
    return {name: association(basis, name, normalised) for name in BASIS_NAMES}
