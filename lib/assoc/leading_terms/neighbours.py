"""The words that a basis function ties most strongly to a word (paper A, Figure 5)."""

from typing import NamedTuple

import torch
from torch import Tensor

from assoc.corpus.tokens import word_index
from assoc.errors import InputError, whole_number
from assoc.leading_terms.basis import BasisFunctions

BASIS_NAMES = ("bigram", "interchangeability", "context")


class Neighbour(NamedTuple):
    """A word and how strongly it is tied to the word asked for."""

    word: str
    strength: float


def association(basis: BasisFunctions, name: str, normalised: bool = False) -> Tensor:
    """A basis function as a table of associations, (V, V): row i ranks the words j tied to word i.

    Raw, these are B, S and Phi themselves, where frequent words (punctuation, "the") top most rows. Normalised, column
    j is divided by the size of word j, so that frequent words lose their head start: for B and Phi the norm of column
    j; for S = B'B the norms of columns i and j of B, which makes it their cosine.

    Args:
        name: "bigram", "interchangeability" or "context".
    """
    if name not in BASIS_NAMES:
        raise InputError(f"no basis function {name!r}; choose one of {', '.join(BASIS_NAMES)}")
    table = getattr(basis, name)
    if not normalised:
        return table
    if name == "interchangeability":
        sizes = table.diagonal().clamp(min=0).sqrt()
        return _divide(_divide(table, sizes), sizes[:, None])
    return _divide(table, table.norm(dim=0))


def _divide(table: Tensor, sizes: Tensor) -> Tensor:
    """table / sizes, with 0 where a size is 0 (a word that never occurs there has no associations)."""
    return torch.where(sizes > 0, table / sizes, 0.0)


def strongest(strengths: Tensor, vocabulary: list[str], top: int, leave_out: int | None = None) -> list[Neighbour]:
    """The `top` strongest entries above 0 of one row, strongest first; ties go to the earlier word.

    Entries at or below 0 are no ties: such words come no more often than by chance, or never.

    Args:
        strengths: (V,). leave_out: an index to skip (a word is always interchangeable with itself).
    """
    order = strengths.argsort(descending=True, stable=True).tolist()
    kept = [index for index in order if index != leave_out and strengths[index] > 0][:top]
    return [Neighbour(vocabulary[index], float(strengths[index])) for index in kept]


def neighbours(
    basis: BasisFunctions, vocabulary: list[str], word: str, name: str, top: int = 10, normalised: bool = False
) -> list[Neighbour]:
    """The words most strongly tied to `word` by a basis function, the word itself left out of S.

    bigram: words that follow it. interchangeability: words preceded by the same words. context: words that occur
    somewhere before it (its prefix). Fewer than `top`, or none, where the data ties fewer words to it.

    Raises:
        InputError: the word is not in the vocabulary, `name` is no basis function, or top < 1.
    """
    if len(vocabulary) != len(basis.bigram):
        raise InputError(f"the vocabulary has {len(vocabulary)} words, the basis functions {len(basis.bigram)}")
    top = whole_number("top", top, minimum=1)
    index = word_index(vocabulary, word)
    row = association(basis, name, normalised)[index]
    return strongest(row, vocabulary, top, leave_out=index if name == "interchangeability" else None)
