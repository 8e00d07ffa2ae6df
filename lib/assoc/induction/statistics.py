"""What drawn sequences are like: whether they follow the distributions they should, and which are caught in a ring."""

from typing import NamedTuple

import torch
from torch import Tensor

from assoc.checks import check_chosen, check_numbers, check_whole
from assoc.errors import InputError, finite_number, whole_number


class ChiSquare(NamedTuple):
    """Pearson's statistic, its degrees of freedom, and the probability of a larger one if the distributions hold."""

    statistic: float
    freedom: int
    p_value: float


def transition_counts(inputs: Tensor, targets: Tensor, where: Tensor, vocab_size: int) -> Tensor:
    """How often token j (column) follows token i (row) at the positions chosen by `where` (bool), float64 (N, N).

    Raises InputError for tokens that are not int64 (B, T) from 0 to N - 1, or another shape of `where`.
    """
    vocab_size = whole_number("vocab_size", vocab_size, minimum=1)
    check_whole("inputs", inputs, (None, None), below=vocab_size)
    check_whole("targets", targets, inputs.shape, below=vocab_size)
    check_chosen("where", where, inputs.shape)
    pairs = inputs[where] * vocab_size + targets[where]
    return pairs.bincount(minlength=vocab_size**2).view(vocab_size, vocab_size).double()


def row_chi_square(counts: Tensor, distributions: Tensor, least: float = 5.0) -> ChiSquare:
    """Chi-square test of counts against one distribution for each row: sum (observed - expected)^2 / expected.

    Cells that expect fewer than `least` are merged with the likeliest cell of their row, as the approximation by the
    chi-square distribution needs. A count where the probability is 0 refutes the distributions at once: p = 0.

    Args:
        counts: (R, C), how often each outcome was seen. Row totals may differ, and may be 0.
        distributions: (R, C), rows that sum to 1.

    Raises:
        InputError: shapes differ, a number is below 0 or not finite, or there is nothing to compare: no row with two
            cells that expect enough.
    """
    least = finite_number("least", least, minimum=0)
    if counts.shape != distributions.shape or counts.ndim != 2:
        raise InputError(
            f"counts and distributions must be two (R, C) tables of one shape; got {tuple(counts.shape)} and "
            f"{tuple(distributions.shape)}"
        )
    observed, probabilities = counts.double(), distributions.double()
    for name, table in (("counts", observed), ("distributions", probabilities)):
        check_numbers(name, table, (None, None))
        if (table < 0).any():
            raise InputError(f"{name} hold a number below 0: give counts, and probabilities")
    expected = observed.sum(dim=1, keepdim=True) * probabilities
    small, likeliest = expected < least, probabilities.argmax(dim=1, keepdim=True)

    def merged(table: Tensor) -> Tensor:
        kept = table.masked_fill(small, 0)
        return kept.scatter_add(1, likeliest, (table - kept).sum(dim=1, keepdim=True))

    expected_merged = merged(expected)
    cells = expected_merged > 0
    freedom = int(cells.sum() - cells.any(dim=1).sum())  # each row's total is given
    if freedom == 0:
        raise InputError(f"too few counts to compare: no row has two outcomes that expect at least {least:g}")
    if (observed[probabilities == 0] > 0).any():
        return ChiSquare(torch.inf, freedom, 0.0)
    statistic = ((merged(observed) - expected_merged)[cells] ** 2 / expected_merged[cells]).sum()
    p_value = torch.special.gammaincc(torch.tensor(freedom / 2, dtype=torch.float64), statistic / 2)
    return ChiSquare(float(statistic), freedom, float(p_value))


def is_caught(occurrence: Tensor, n_triggers: int) -> Tensor:
    """Which sequences end in a ring of triggers, each the output of the one before, for ever; bool (B,).

    More than K output positions in a row must hold one trigger twice, and what follows a trigger is always the same.
    Caught sequences are full of repeated outputs that need no look at the context: with o_k = q_k, the same again.

    Args:
        occurrence: of a `Batch`, int64 (B, T).
        n_triggers: K, below T.

    Raises:
        InputError: sequences of K positions or fewer, in which a ring cannot be told; occurrences of another kind.
    """
    check_whole("occurrence", occurrence, (None, None))
    n_triggers = whole_number("n_triggers", n_triggers, minimum=1)
    if n_triggers >= occurrence.shape[1]:
        raise InputError(f"{occurrence.shape[1]} positions are too few for rings of {n_triggers} triggers: give more")
    return (occurrence[:, -n_triggers - 1 :] >= 1).all(dim=1)
