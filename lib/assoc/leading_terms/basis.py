"""The three basis functions of a corpus, and the leading terms that are composed of them (paper A, Section 4).

Notation, for N sequences of T tokens over V words: X_i, Y_i are the one-hot inputs and targets of sequence i (T x V),
U holds 1/V everywhere, A0 is uniform causal attention (row t holds 1/t in its first t entries). Nothing here forms a
one-hot matrix: a sequence is described by its distinct tokens (about 95 of 200 positions), so that sums over pairs of
positions become small dense blocks.
"""

from collections.abc import Iterator
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from assoc.errors import InputError, whole_number

CHUNK_ELEMENTS = (
    1_000_000  # numbers in the largest temporary array of a chunk of sequences: 8 MB in float64, near cache size
)


@dataclass(frozen=True)
class BasisFunctions:
    """The six statistics of a corpus that the weights are made of early in training, all float64.

    Attributes:
        bigram: B = (1/NT) sum_i X_i'(Y_i - U), (V, V). B[i, j] = P(i) P(j|i) - P(i)/V; its rows sum to 0. Leading term
            of the output matrix W_O.
        interchangeability: S = B'B, (V, V). Words are close if the same words come before them.
        context: Phi = (1/NT) sum_i (Y_i - U)' A0 X_i, (V, V). Row: the word predicted; column: a word of its prefix.
            Its columns sum to 0.
        value: Phi'B', (V, V). Leading term of every value matrix V_l.
        attention: Q = (1/NT) sum_i X_i' Q_i X_i, (V, V), row = query, column = key. Q_i[t, m] is
            (g_i[t, m] - mean over m' <= t of g_i[t, m'])/t for m <= t, with g_i[t, m] = (S Phi)[y_t, x_m]. Leading
            term of every attention matrix W_l.
        position: Delta[k] = (1/NT) sum_i sum_t Q_i[t, t - k], (T,). Leading term of every position vector P_l.
    """

    bigram: Tensor
    interchangeability: Tensor
    context: Tensor
    value: Tensor
    attention: Tensor
    position: Tensor

    def leading_term(self, name: str) -> Tensor:
        """The leading term of a kind of weight: "output" (B), "value", "attention" or "position"."""
        if name not in ("output", "value", "attention", "position"):
            raise InputError(f"no kind of weight {name!r}: choose output, value, attention or position")
        return self.bigram if name == "output" else getattr(self, name)

    def items(self) -> Iterator[tuple[str, Tensor]]:
        """Pairs of name and tensor, in the order of the attributes."""
        return ((field.name, getattr(self, field.name)) for field in fields(self))


def check_tokens(inputs: Tensor, targets: Tensor, vocab_size: int) -> None:
    """Raise InputError unless inputs and targets are int64 (N, T) with N, T >= 1 and values in 0 .. vocab_size - 1."""
    whole_number("vocab_size", vocab_size, minimum=1)
    if not (isinstance(inputs, Tensor) and isinstance(targets, Tensor)):
        raise InputError("inputs and targets must be torch tensors: convert with torch.as_tensor")
    if inputs.ndim != 2 or inputs.shape != targets.shape or inputs.numel() == 0:
        raise InputError(
            f"inputs and targets must be two non-empty (N, T) tensors of one shape; got {tuple(inputs.shape)} and "
            f"{tuple(targets.shape)}"
        )
    for name, tokens in (("inputs", inputs), ("targets", targets)):
        if tokens.dtype != torch.int64:
            raise InputError(f"{name} must be int64 token numbers; got {tokens.dtype}: convert with .long()")
        low, high = int(tokens.min()), int(tokens.max())
        if low < 0 or high >= vocab_size:
            raise InputError(
                f"{name} hold tokens from {low} to {high}; vocab_size={vocab_size} allows 0 to {vocab_size - 1}"
            )


def distinct_tokens(sequences: Tensor) -> tuple[Tensor, Tensor]:
    """Distinct tokens of each sequence, and the slot among them that each position holds.

    Args:
        sequences: tokens, int64 (N, T).

    Returns:
        tokens (N, U) in the order in which they first occur, padded with token 0, where U is the largest number of
        distinct tokens; slots (N, T) with tokens[i, slots[i, t]] == sequences[i, t].
    """
    ordered, order = sequences.sort(dim=1, stable=True)  # equal tokens side by side, in the order of their positions
    is_new = torch.ones_like(ordered, dtype=torch.bool)
    is_new[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    places = torch.arange(sequences.shape[1], device=sequences.device)
    starts = (places * is_new).cummax(dim=1).values
    first = torch.empty_like(order).scatter_(1, order, order.gather(1, starts))  # where each token first occurred
    ranks = (first == places).cumsum(dim=1) - 1
    slots = ranks.gather(1, first)
    tokens = sequences.new_zeros(len(sequences), int(ranks[:, -1].max()) + 1).scatter_(1, slots, sequences)
    return tokens, slots


def one_hot_slots(slots: Tensor, n_slots: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """One-hot rows over the distinct tokens: (N, T, U) with a one at [i, t, slots[i, t]]."""
    return torch.zeros(*slots.shape, n_slots, dtype=dtype, device=slots.device).scatter_(2, slots.unsqueeze(2), 1.0)


def prefix_averages(slots: Tensor, n_slots: int) -> Tensor:
    """A0 X over the distinct tokens: (N, T, U), row t holds each token's share of the first t positions."""
    averages = one_hot_slots(slots, n_slots).cumsum_(dim=1)
    return averages.div_(torch.arange(1, slots.shape[1] + 1, dtype=torch.float64)[:, None])


def _add_blocks(total: Tensor, rows: Tensor, columns: Tensor, blocks: Tensor) -> None:
    """total[rows[i, a], columns[i, b]] += blocks[i, a, b] for every sequence i."""
    index = rows.unsqueeze(2) * total.shape[1] + columns.unsqueeze(1)
    total.view(-1).scatter_add_(0, index.reshape(-1), blocks.reshape(-1))


def _chunks(inputs: Tensor, targets: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Chunks of sequences whose (n, T, T) arrays stay within CHUNK_ELEMENTS numbers."""
    size = max(1, CHUNK_ELEMENTS // inputs.shape[1] ** 2)
    return zip(inputs.split(size), targets.split(size), strict=True)


def bigram_frequencies(inputs: Tensor, targets: Tensor, vocab_size: int) -> Tensor:
    """(1/NT) sum_i X_i'Y_i as a sparse (V, V) tensor: entry [i, j] is P(i) P(j|i), absent where j never follows i."""
    pairs, counts = (inputs * vocab_size + targets).unique(return_counts=True)
    index = torch.stack([pairs // vocab_size, pairs % vocab_size])
    size = (vocab_size, vocab_size)
    return torch.sparse_coo_tensor(
        index, counts.double() / inputs.numel(), size, is_coalesced=True, check_invariants=False
    )


def context(inputs: Tensor, targets: Tensor, vocab_size: int) -> Tensor:
    """Phi = (1/NT) sum_i (Y_i - U)' A0 X_i (paper A, Section 4), (V, V) float64.

    The part of U takes each column's mean away, because the rows of Y_i - U sum to 0.
    """
    check_tokens(inputs, targets, vocab_size)
    phi = torch.zeros(vocab_size, vocab_size, dtype=torch.float64)
    for x, y in _chunks(inputs, targets):
        (tokens, slots), (predicted, predicted_slots) = distinct_tokens(x), distinct_tokens(y)
        averages = prefix_averages(slots, tokens.shape[1])
        blocks = one_hot_slots(predicted_slots, predicted.shape[1]).transpose(1, 2) @ averages
        _add_blocks(phi, predicted, tokens, blocks)
    phi /= inputs.numel()
    return phi.sub_(phi.mean(dim=0))


def sub_diagonal_sums(matrix: Tensor) -> Tensor:
    """(T,): entry k is the sum of matrix[t, t - k] over t, for a (T, T) matrix."""
    return torch.stack([matrix.diagonal(-k).sum() for k in range(len(matrix))])


def attention_and_position(inputs: Tensor, targets: Tensor, association: Tensor) -> tuple[Tensor, Tensor]:
    """Q and Delta (paper A, Section 4): how far each earlier token's association with the next exceeds the mean.

    Args:
        inputs, targets: int64 (N, T).
        association: S Phi, (V, V) float64, row = word predicted, column = word of the prefix.

    Returns:
        Q (V, V), row = query, and Delta (T,), entry k for keys k positions back.
    """
    vocab_size, length = len(association), inputs.shape[1]
    check_tokens(inputs, targets, vocab_size)
    attention = torch.zeros(vocab_size, vocab_size, dtype=torch.float64)
    scores_sum = torch.zeros(length, length, dtype=torch.float64)  # sum over sequences of g_i[t, m] - mean
    for x, y in _chunks(inputs, targets):
        tokens, slots = distinct_tokens(x)
        n_slots = tokens.shape[1]
        averages = prefix_averages(slots, n_slots)
        scores = association[y.unsqueeze(2), tokens.unsqueeze(1)]  # g over the distinct tokens, (n, T, U)
        scores -= (averages * scores).sum(dim=2, keepdim=True)
        scores_sum += scores.gather(2, slots.unsqueeze(1).expand(-1, length, -1)).sum(dim=0)
        # A token's share of the prefix is its count over t: multiplying by it sums Q_i over the positions that hold it.
        blocks = one_hot_slots(slots, n_slots).transpose(1, 2) @ scores.mul_(averages)
        _add_blocks(attention, tokens, tokens, blocks)
    by_position = scores_sum.tril_() / torch.arange(1, length + 1, dtype=torch.float64)[:, None]
    return attention / inputs.numel(), sub_diagonal_sums(by_position) / inputs.numel()


def basis_functions(inputs: Tensor, targets: Tensor, vocab_size: int) -> BasisFunctions:
    """All six statistics of a corpus (paper A, Section 4), exact in float64.

    Cost: the pairs of a sequence's distinct tokens, N U^2, instead of N T^2 pairs of positions. The three products of
    V x V matrices are cheaper than V^3, since B is a sparse matrix C of pair frequencies minus p u', where p are the
    word frequencies and u = (1/V, .., 1/V): with columns of Phi that sum to 0, B Phi = C Phi, and S Phi = B'(B Phi).

    Args:
        inputs, targets: token numbers, int64 (N, T); targets[i, t] is the token after inputs[i, t].
        vocab_size: V.

    Raises:
        InputError: shapes differ, nothing in them, not int64, or a token outside 0 .. V - 1.
    """
    check_tokens(inputs, targets, vocab_size)
    frequencies = bigram_frequencies(inputs, targets, vocab_size)
    transposed = frequencies.t().coalesce()
    p = inputs.flatten().bincount(minlength=vocab_size).double() / inputs.numel()
    bigram = frequencies.to_dense().sub_(p[:, None] / vocab_size)

    def bigram_transposed_times(matrix: Tensor) -> Tensor:
        return torch.sparse.mm(transposed, matrix).sub_((p @ matrix) / vocab_size)

    phi = context(inputs, targets, vocab_size)
    value_transposed = torch.sparse.mm(frequencies, phi)  # B Phi
    attention, position = attention_and_position(inputs, targets, bigram_transposed_times(value_transposed))
    return BasisFunctions(
        bigram=bigram,
        interchangeability=bigram_transposed_times(bigram),
        context=phi,
        value=value_transposed.t().contiguous(),
        attention=attention,
        position=position,
    )
