"""The three basis functions of a corpus, and the leading terms that are composed of them (paper A, Section 4).

Notation, for N sequences of T tokens over V words: X_i, Y_i are the one-hot inputs and targets of sequence i (T x V),
U holds 1/V everywhere, A0 is uniform causal attention (row t holds 1/t in its first t entries). Nothing here forms a
one-hot matrix: a sequence is described by its distinct tokens (about 95 of 200 positions), so that sums over pairs of
positions become small dense blocks.

The sums over sequences are kept by two accumulators, `BigramAndContext` and, in a second pass that needs the result of
the first, `AttentionAndPosition`. Sequences are added batch by batch, and accumulators of parts of a corpus add up to
that of the whole: a corpus may be larger than memory, or spread over processes.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, fields
from typing import Self, TypeVar

import torch
from torch import Tensor

from assoc import distributed
from assoc.checks import check_numbers
from assoc.errors import InputError, whole_number

CHUNK_ELEMENTS = 1_000_000  # numbers in the largest array of a chunk of sequences: 8 MB in float64, near cache size
PREFIX_STEP = 50  # positions from one of the `prefixes` to the next: shorter ones save more, and multiply more slowly


@dataclass(frozen=True)
class BasisFunctions:
    """The six statistics of a corpus that the weights are made of early in training, float64 unless asked otherwise.

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


def prefixes(slots: Tensor) -> Iterator[tuple[slice, int]]:
    """Positions in a few parts, each with how many slots (of `distinct_tokens`) are in use up to its end.

    A prefix holds only the words that occurred so far: what is multiplied part by part skips the others.
    """
    length = slots.shape[1]
    parts = max(1, length // PREFIX_STEP)
    for start, stop in itertools.pairwise(length * part // parts for part in range(parts + 1)):
        yield slice(start, stop), int(slots[:, :stop].max()) + 1


def one_hot_slots(slots: Tensor, n_slots: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """One-hot rows over the distinct tokens: (N, T, U) with a one at [i, t, slots[i, t]]."""
    return torch.zeros(*slots.shape, n_slots, dtype=dtype, device=slots.device).scatter_(2, slots.unsqueeze(2), 1.0)


def prefix_averages(slots: Tensor, n_slots: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """A0 X over the distinct tokens: (N, T, U), row t holds each token's share of the first t positions."""
    averages = one_hot_slots(slots, n_slots, dtype).cumsum_(dim=1)
    return averages.div_(torch.arange(1, slots.shape[1] + 1, dtype=dtype, device=slots.device)[:, None])


def _add_blocks(total: Tensor, rows: Tensor, columns: Tensor, blocks: Tensor) -> None:
    """total[rows[i, a], columns[i, b]] += blocks[i, a, b] for every sequence i."""
    index = rows.unsqueeze(2) * total.shape[1] + columns.unsqueeze(1)
    total.view(-1).scatter_add_(0, index.reshape(-1), blocks.reshape(-1))


def _chunks(inputs: Tensor, targets: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Chunks of sequences whose (n, T, T) arrays stay within CHUNK_ELEMENTS numbers."""
    size = max(1, CHUNK_ELEMENTS // inputs.shape[1] ** 2)
    return zip(inputs.split(size), targets.split(size), strict=True)


def _count_pairs(counts: Tensor, inputs: Tensor, targets: Tensor) -> None:
    """counts[i, j] += how often word j follows word i; counts: (V, V) int32."""
    pairs = (inputs * len(counts) + targets).flatten()
    counts.view(-1).scatter_add_(0, pairs, torch.ones_like(pairs, dtype=torch.int32))


def _frequencies(counts: Tensor, n_positions: int, dtype: torch.dtype) -> Tensor:
    """The non-zero counts (V, V) over N T as a sparse tensor."""
    found = counts.to_sparse()
    values = found.values().to(dtype) / n_positions
    return torch.sparse_coo_tensor(
        found.indices(), values, counts.shape, device=counts.device, is_coalesced=True, check_invariants=False
    )


def bigram_frequencies(inputs: Tensor, targets: Tensor, vocab_size: int) -> Tensor:
    """(1/NT) sum_i X_i'Y_i as a sparse (V, V) tensor: entry [i, j] is P(i) P(j|i), absent where j never follows i."""
    counts = torch.zeros(vocab_size, vocab_size, dtype=torch.int32, device=inputs.device)
    _count_pairs(counts, inputs, targets)
    return _frequencies(counts, inputs.numel(), torch.float64)


def sub_diagonal_sums(matrix: Tensor) -> Tensor:
    """(T,): entry k is the sum of matrix[t, t - k] over t, for a (T, T) matrix."""
    return torch.stack([matrix.diagonal(-k).sum() for k in range(len(matrix))])


class _Accumulator:
    """Sums over sequences: `sums` lists the tensors, n_positions counts the N T positions that went into them."""

    sums: tuple[str, ...]

    def __init__(self, vocab_size: int) -> None:
        self.vocab_size = whole_number("vocab_size", vocab_size, minimum=1)
        self.n_positions = 0

    def add(self, inputs: Tensor, targets: Tensor) -> Self:
        """Take in some sequences, int64 (N, T); N may be 0. Returns self.

        Raises:
            InputError: shapes differ, not int64, or a token outside 0 .. V - 1.
        """
        if isinstance(inputs, Tensor) and inputs.ndim == 2 and len(inputs) == 0 and inputs.shape == targets.shape:
            return self
        check_tokens(inputs, targets, self.vocab_size)
        self.n_positions += inputs.numel()
        for x, y in _chunks(inputs, targets):
            self._add_chunk(x, y)
        return self

    def _add_chunk(self, inputs: Tensor, targets: Tensor) -> None:
        raise NotImplementedError

    def _check_fits(self, other: Self) -> None:
        if type(self) is not type(other) or any(
            getattr(self, name).shape != getattr(other, name).shape for name in self.sums
        ):
            raise InputError("only accumulators of one kind, vocabulary and length add up: make both alike")

    def __iadd__(self, other: Self) -> Self:
        self._check_fits(other)
        for name in self.sums:
            getattr(self, name).add_(getattr(other, name))
        self.n_positions += other.n_positions
        return self

    def over_processes(self) -> Self:
        """Add up what all processes (`assoc.distributed`) have; every one of them must call this. Returns self."""
        n_positions = torch.tensor(self.n_positions, device=getattr(self, self.sums[0]).device)
        distributed.add_up([getattr(self, name) for name in self.sums] + [n_positions])
        self.n_positions = int(n_positions)
        return self

    def _count(self) -> int:
        if not self.n_positions:
            raise InputError("no sequence was added: add some before asking for statistics")
        return self.n_positions


Accumulator = TypeVar("Accumulator", bound=_Accumulator)


class BigramAndContext(_Accumulator):
    """First pass over a corpus: what B and Phi are made of.

    Attributes:
        pairs: how often word j followed word i, int32 (V, V).
        predictions: sum_i Y_i' A0 X_i, (V, V).
    """

    sums = ("pairs", "predictions")

    def __init__(
        self, vocab_size: int, dtype: torch.dtype = torch.float64, device: torch.device | str | None = None
    ) -> None:
        super().__init__(vocab_size)
        if not dtype.is_floating_point:
            raise InputError(f"dtype is {dtype}: give torch.float64 or torch.float32")
        self.pairs = torch.zeros(vocab_size, vocab_size, dtype=torch.int32, device=device)
        self.predictions = torch.zeros(vocab_size, vocab_size, dtype=dtype, device=device)

    def _add_chunk(self, inputs: Tensor, targets: Tensor) -> None:
        _count_pairs(self.pairs, inputs, targets)
        (tokens, slots), (predicted, predicted_slots) = distinct_tokens(inputs), distinct_tokens(targets)
        dtype = self.predictions.dtype
        averages = prefix_averages(slots, tokens.shape[1], dtype)
        blocks = one_hot_slots(predicted_slots, predicted.shape[1], dtype).transpose(1, 2) @ averages
        _add_blocks(self.predictions, predicted, tokens, blocks)

    def frequencies(self) -> Tensor:
        """(1/NT) sum_i X_i'Y_i as a sparse (V, V) tensor."""
        return _frequencies(self.pairs, self._count(), self.predictions.dtype)

    def bigram(self) -> Tensor:
        """B = (1/NT) sum_i X_i'(Y_i - U), (V, V): each row of frequencies minus P(i)/V."""
        bigram = self.pairs.to(self.predictions.dtype).div_(self._count())
        return bigram.sub_(bigram.sum(dim=1, keepdim=True) / self.vocab_size)

    def context(self) -> Tensor:
        """Phi = (1/NT) sum_i (Y_i - U)' A0 X_i, (V, V).

        The part of U takes each column's mean away, because the rows of Y_i - U sum to 0.
        """
        phi = self.predictions / self._count()
        return phi.sub_(phi.mean(dim=0))


class AttentionAndPosition(_Accumulator):
    """Second pass over a corpus: what Q and Delta are made of.

    Args:
        association: S Phi of the whole corpus, (V, V), row = word predicted, column = word of the prefix. Parts of a
            corpus add up only if they share it.
        length: T of the longest sequences.

    Raises:
        InputError: an association that is not (V, V), or not finite; a length below 1.

    Attributes:
        attention: sum_i X_i' Q_i X_i, (V, V).
        excess: sum over sequences of g_i[t, m] minus its mean over m' <= t, (T, T); only m <= t counts.
    """

    sums = ("attention", "excess")

    def __init__(self, association: Tensor, length: int) -> None:
        check_numbers("association", association, (None, None))
        if association.shape[0] != association.shape[1]:
            raise InputError(f"association must be (V, V), words by words; got {tuple(association.shape)}")
        super().__init__(len(association))
        self.association, self.length = association, whole_number("length", length, minimum=1)
        self.attention = torch.zeros_like(association)
        self.excess = association.new_zeros(length, length)

    def _add_chunk(self, inputs: Tensor, targets: Tensor) -> None:
        length = inputs.shape[1]
        if length > self.length:
            raise InputError(f"sequences of {length} tokens are longer than length={self.length}: cut them")
        tokens, slots = distinct_tokens(inputs)
        held = one_hot_slots(slots, tokens.shape[1], self.association.dtype)
        averages = prefix_averages(slots, tokens.shape[1], self.association.dtype)
        blocks = held.new_zeros(len(tokens), tokens.shape[1], tokens.shape[1])
        for t, seen in prefixes(slots):
            shares = averages[:, t, :seen]
            scores = self.association[targets[:, t].unsqueeze(2), tokens[:, :seen].unsqueeze(1)]  # g, (n, t, seen)
            scores -= (shares * scores).sum(dim=2, keepdim=True)
            keys = slots[:, : t.stop].unsqueeze(1).expand(-1, scores.shape[1], -1)
            self.excess[t, : t.stop] += scores.gather(2, keys).sum(dim=0)
            # A share is a token's count over t: multiplying by it sums Q_i over the positions that hold the token.
            blocks[:, :seen, :seen] += held[:, t, :seen].transpose(1, 2) @ scores.mul_(shares)
        _add_blocks(self.attention, tokens, tokens, blocks)

    def _check_fits(self, other: Self) -> None:
        super()._check_fits(other)
        if not torch.equal(self.association, other.association):
            raise InputError("these parts were added up with different S Phi: give all that of the whole corpus")

    def statistics(self) -> tuple[Tensor, Tensor]:
        """Q (V, V), row = query, and Delta (T,), entry k for keys k positions back."""
        rows = torch.arange(1, self.length + 1, dtype=self.excess.dtype, device=self.excess.device)
        by_position = self.excess.tril() / rows[:, None]
        return self.attention / self._count(), sub_diagonal_sums(by_position) / self._count()


def context(inputs: Tensor, targets: Tensor, vocab_size: int) -> Tensor:
    """Phi (paper A, Section 4) of int64 (N, T) tokens, (V, V) float64."""
    check_tokens(inputs, targets, vocab_size)
    return BigramAndContext(vocab_size, device=inputs.device).add(inputs, targets).context()


def attention_and_position(inputs: Tensor, targets: Tensor, association: Tensor) -> tuple[Tensor, Tensor]:
    """Q and Delta (paper A, Section 4): how far each earlier token's association with the next exceeds the mean.

    Args:
        inputs, targets: int64 (N, T).
        association: S Phi, (V, V) float64, row = word predicted, column = word of the prefix.

    Returns:
        Q (V, V), row = query, and Delta (T,), entry k for keys k positions back.
    """
    check_tokens(inputs, targets, len(association))
    return AttentionAndPosition(association, inputs.shape[1]).add(inputs, targets).statistics()


def compose(first: BigramAndContext, second_pass: Callable[[Tensor], AttentionAndPosition]) -> BasisFunctions:
    """The six statistics from the sums of a first pass and a function that makes the second, given S Phi.

    The three products of V x V matrices are cheaper than V^3, since B is a sparse matrix C of pair frequencies minus
    p u', where p are the word frequencies and u = (1/V, .., 1/V): with columns of Phi that sum to 0, B Phi = C Phi, and
    S Phi = B'(B Phi).
    """
    frequencies, bigram, phi = first.frequencies(), first.bigram(), first.context()
    del first  # the largest temporary, where the caller does not need it any more
    transposed = frequencies.t().coalesce()
    p = torch.sparse.sum(frequencies, dim=1).to_dense()

    def bigram_transposed_times(matrix: Tensor) -> Tensor:
        return torch.sparse.mm(transposed, matrix).sub_((p @ matrix) / len(p))

    value_transposed = torch.sparse.mm(frequencies, phi)  # B Phi
    attention, position = second_pass(bigram_transposed_times(value_transposed)).statistics()
    return BasisFunctions(
        bigram=bigram,
        interchangeability=bigram_transposed_times(bigram),
        context=phi,
        value=value_transposed.t().contiguous(),
        attention=attention,
        position=position,
    )


def basis_functions(
    inputs: Tensor, targets: Tensor, vocab_size: int, dtype: torch.dtype = torch.float64
) -> BasisFunctions:
    """All six statistics of a corpus (paper A, Section 4), exact in float64.

    Cost: the pairs of a sequence's distinct tokens, N U^2, instead of N T^2 pairs of positions.

    Args:
        inputs, targets: token numbers, int64 (N, T); targets[i, t] is the token after inputs[i, t].
        vocab_size: V.
        dtype: float32 halves the memory, and is good to about 1e-6.

    Raises:
        InputError: shapes differ, nothing in them, not int64, or a token outside 0 .. V - 1.
    """
    check_tokens(inputs, targets, vocab_size)
    return basis_functions_of_batches([(inputs, targets)], vocab_size, inputs.shape[1], dtype)


def basis_functions_of_batches(
    batches: Iterable[tuple[Tensor, Tensor]],
    vocab_size: int,
    length: int,
    dtype: torch.dtype = torch.float64,
    over_processes: bool = False,
) -> BasisFunctions:
    """The same for a corpus that comes batch by batch and need not fit into memory.

    Args:
        batches: pairs of inputs and targets, int64 (n, T) each; gone through twice, so a list or an object whose
            `__iter__` starts anew, not a generator.
        vocab_size: V. length: T of the longest sequences. dtype: of the statistics.
        over_processes: each process (`assoc.distributed`) brings batches of its own, and all get the statistics of
            them all.

    Raises:
        InputError: as `basis_functions`, or if the batches cannot be gone through twice.
    """
    if isinstance(batches, Iterator):
        raise InputError("the batches are gone through twice: give a list or an object whose __iter__ starts anew")

    def filled(sums: Accumulator) -> Accumulator:
        for inputs, targets in batches:
            sums.add(inputs, targets)
        return sums.over_processes() if over_processes else sums

    device = next((getattr(inputs, "device", None) for inputs, _ in batches), None)
    return compose(
        filled(BigramAndContext(vocab_size, dtype, device)),
        lambda association: filled(AttentionAndPosition(association, length)),
    )
