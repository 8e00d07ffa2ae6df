"""The bigram task with triggers: data in which the weights and the context each hold half of the answer.

Paper B, Section 3. Most transitions follow one global bigram table, which can be learned into the weights. After a
*trigger* comes an *output* that every sequence draws anew, which can only be read off the context, from the trigger's
second occurrence on. The two kinds of knowledge can so be measured apart.
"""

from collections.abc import Iterable
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from assoc.checks import check_whole
from assoc.errors import InputError, whole_number

# Tokens are drawn by comparing integers of 48 bits. That is exact: a transition of probability zero is never drawn, and
# no row falls short of 1 by rounding. 48 bits leave 14 of an int64 for the number of tokens; memory ends before that:
# with 2^12 tokens the tables of a task take 0.4 GB.
RESOLUTION = 1 << 48
MAX_VOCAB_SIZE = 1 << 12


class Batch(NamedTuple):
    """Sequences for training: inputs z_1 .. z_T, targets z_2 .. z_{T+1} and occurrence, each int64 (B, T).

    occurrence[b, t] is 0 where the input is no trigger of sequence b, and n where it is this trigger's n-th occurrence
    in it: output positions have occurrence >= 1, and from occurrence 2 on the target is known from the context.
    """

    inputs: Tensor
    targets: Tensor
    occurrence: Tensor


class Sequences(NamedTuple):
    """A `Batch` and what its sequences were made of: triggers q_k and outputs o_k, each int64 (B, K)."""

    inputs: Tensor
    targets: Tensor
    occurrence: Tensor
    triggers: Tensor
    outputs: Tensor


class BigramTask:
    """Sequences from a global bigram table, with K trigger tokens whose successor is redrawn for every sequence.

    Paper B, Section 3. For every sequence: triggers q_1 .. q_K, distinct; outputs o_k ~ pi_o(.|q_k); z_1 ~ pi_u; then
    z_{t+1} = o_k if z_t = q_k, else z_{t+1} ~ pi_b(.|z_t).

    Args:
        unigram: pi_u, (N,), the distribution of the first token and of random triggers (pi_q = pi_u).
        bigram: pi_b, (N, N), row i is the distribution of the token after i.
        length: T, inputs of a sequence; at least 2, or no trigger could occur twice.
        n_triggers: K.
        triggers: "fixed": the K most frequent tokens under pi_u, the same in all sequences. "random": K tokens drawn
            from pi_u without repeats, anew for every sequence.
        outputs: pi_o. "uniform": any token with probability 1/N. "bigram": pi_b(.|q_k).
        trigger_offset: with fixed triggers, skip that many of the most frequent tokens (rarer triggers).
        vocabulary: the N tokens as strings, for `decode`.

    Attributes:
        unigram, bigram: float64, normalised. Make a new task rather than change them: sequences are drawn from tables
        that are made of them once, here. vocab_size: N. fixed_triggers: int64 (K,), or None if they are random.
        The arguments under their own names.

    Raises:
        InputError: tables that are not distributions of matching shapes, or numbers out of range.
    """

    def __init__(
        self,
        unigram: Tensor,
        bigram: Tensor,
        *,
        length: int,
        n_triggers: int,
        triggers: Literal["fixed", "random"] = "fixed",
        outputs: Literal["uniform", "bigram"] = "uniform",
        trigger_offset: int = 0,
        vocabulary: list[str] | None = None,
    ) -> None:
        self.unigram = _distribution("unigram", unigram, n_dimensions=1)
        self.bigram = _distribution("bigram", bigram, n_dimensions=2)
        self.vocab_size = len(self.unigram)
        self.length = whole_number("length", length, minimum=2)
        self.n_triggers = whole_number("n_triggers", n_triggers, minimum=1)
        self.trigger_offset = whole_number("trigger_offset", trigger_offset, minimum=0)
        self.triggers, self.outputs, self.vocabulary = triggers, outputs, vocabulary
        self._check()
        by_frequency = self.unigram.sort(descending=True, stable=True).indices
        is_fixed = triggers == "fixed"
        chosen = by_frequency[self.trigger_offset : self.trigger_offset + self.n_triggers]
        self.fixed_triggers = chosen if is_fixed else None
        # Rows of the alias tables: N for pi_b, and one for pi_u.
        self._share, self._alias = _alias_tables(torch.cat([self.bigram, self.unigram[None]]))

    def _check(self) -> None:
        if self.bigram.shape != (self.vocab_size, self.vocab_size):
            raise InputError(
                f"bigram must be (N, N) with N = {self.vocab_size} as in unigram; got {tuple(self.bigram.shape)}"
            )
        if self.vocab_size > MAX_VOCAB_SIZE:
            raise InputError(f"{self.vocab_size} tokens are too many: at most {MAX_VOCAB_SIZE} can be drawn exactly")
        if self.triggers not in ("fixed", "random"):
            raise InputError(f"triggers is {self.triggers!r}: choose 'fixed' or 'random'")
        if self.outputs not in ("uniform", "bigram"):
            raise InputError(f"outputs is {self.outputs!r}: choose 'uniform' or 'bigram'")
        if self.trigger_offset and self.triggers == "random":
            raise InputError("trigger_offset chooses fixed triggers: leave it at 0 with triggers='random'")
        n_possible = int((self.unigram > 0).sum())
        if self.trigger_offset + self.n_triggers > n_possible:
            raise InputError(
                f"n_triggers = {self.n_triggers} with trigger_offset = {self.trigger_offset} is too many: "
                f"only {n_possible} tokens have a probability above 0 in unigram"
            )
        if self.vocabulary is not None:
            if len(self.vocabulary) != self.vocab_size:
                raise InputError(f"vocabulary must have {self.vocab_size} tokens; got {len(self.vocabulary)}")
            if not all(isinstance(token, str) for token in self.vocabulary):
                raise InputError("vocabulary must be a list of texts: give the tokens as readers see them")

    def __repr__(self) -> str:
        offset = f", trigger_offset={self.trigger_offset}" if self.trigger_offset else ""
        return (
            f"BigramTask(N={self.vocab_size}, length={self.length}, n_triggers={self.n_triggers}, "
            f"triggers={self.triggers!r}, outputs={self.outputs!r}{offset})"
        )

    @classmethod
    def from_text(
        cls, text: str | Iterable[str], *, length: int, n_triggers: int, **options: str | int
    ) -> "BigramTask":
        """The task over the characters of a text: pi_u and pi_b are its character unigrams and bigrams.

        Paper B uses Tiny Shakespeare (65 characters). Line breaks are characters like any other. Of several texts,
        bigrams are counted within each, not from the end of one to the start of the next. A character that is only
        ever the last of a text has no successor; it is followed by the unigram distribution.

        Args:
            text: one text, or several.
            length, n_triggers, options: as for the class itself.

        Raises:
            InputError: no text, or one with halves of characters; no two characters in a row anywhere in it; a
                vocabulary among the options; options out of range.
        """
        if "vocabulary" in options:
            raise InputError("the characters of the text are the vocabulary: leave out vocabulary")
        is_one = isinstance(text, str | bytes) or not isinstance(text, Iterable)
        points = [_code_points(part) for part in ([text] if is_one else text)]
        if not any(len(part) > 1 for part in points):
            raise InputError("the text has no two characters in a row: give a longer text")
        characters, numbers = np.unique(np.concatenate(points), return_inverse=True)
        N = len(characters)
        ends = np.cumsum([len(part) for part in points])
        has_successor = np.ones(len(numbers), dtype=bool)
        has_successor[ends[ends > 0] - 1] = False
        starts = np.flatnonzero(has_successor)
        pairs = np.bincount(numbers[starts] * N + numbers[starts + 1], minlength=N * N).reshape(N, N)
        unigram = np.bincount(numbers, minlength=N) / len(numbers)
        totals = pairs.sum(axis=1, keepdims=True)
        bigram = np.where(totals > 0, pairs / np.maximum(totals, 1), unigram)
        vocabulary = [chr(point) for point in characters]
        return cls(
            torch.from_numpy(unigram),
            torch.from_numpy(bigram),
            length=length,
            n_triggers=n_triggers,
            vocabulary=vocabulary,
            **options,
        )

    def decode(self, tokens: Tensor) -> str:
        """The text of a row of token numbers. Raises InputError for others, or if the task has no vocabulary."""
        if self.vocabulary is None:
            raise InputError("this task has no vocabulary: pass vocabulary= when making it")
        numbers = tokens.tolist()
        if tokens.ndim != 1 or tokens.is_floating_point() or any(not 0 <= n < self.vocab_size for n in numbers):
            raise InputError(f"tokens must be a row of whole numbers from 0 to {self.vocab_size - 1}; got {numbers}")
        return "".join(self.vocabulary[n] for n in numbers)

    def sample(self, batch_size: int, generator: torch.Generator | None = None) -> Batch:
        """Fresh sequences: inputs, targets and occurrence, each int64 (batch_size, T).

        Args:
            batch_size: B, at least 1.
            generator: source of randomness; the same state gives the same batch. Default: torch's global one.

        Raises:
            InputError: batch_size below 1.
        """
        return Batch(*self.sample_sequences(batch_size, generator)[:3])

    def sample_sequences(self, batch_size: int, generator: torch.Generator | None = None) -> Sequences:
        """The same as `sample`, with the triggers and outputs of every sequence, each int64 (batch_size, K)."""
        batch_size = whole_number("batch_size", batch_size, minimum=1)
        triggers = self._sample_triggers(batch_size, generator)
        outputs = self._sample_outputs(triggers, generator)
        N, T = self.vocab_size, self.length
        columns, levels = _draws((T + 1, batch_size), N, generator)
        # What must follow token i in sequence b: output_of[b * N + i] if that is a trigger's output, else -1.
        output_of = torch.full((batch_size, N), -1).scatter_(1, triggers, outputs).flatten().numpy()
        first_cell = np.arange(batch_size) * N
        tokens = np.empty((T + 1, batch_size), dtype=np.int64)
        tokens[0] = self._pick(np.full(batch_size, N), columns[0], levels[0])
        # One pass over positions, each for the whole batch; in numpy, whose small operations start no threads.
        for t in range(T):
            output = output_of[first_cell + tokens[t]]
            free = self._pick(tokens[t], columns[t + 1], levels[t + 1])
            tokens[t + 1] = np.where(output < 0, free, output)
        tokens = torch.from_numpy(np.ascontiguousarray(tokens.T))
        inputs, targets = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
        is_trigger = torch.from_numpy(output_of)[torch.from_numpy(first_cell)[:, None] + inputs] >= 0
        return Sequences(inputs, targets, _count_so_far(inputs) * is_trigger, triggers, outputs)

    def _pick(self, rows: np.ndarray, columns: np.ndarray, levels: np.ndarray) -> np.ndarray:
        """A token of each given row of the alias tables: the drawn column, or its alias at levels above its share."""
        cells = rows * self.vocab_size + columns
        return np.where(levels < self._share[cells], columns, self._alias[cells])

    def _sample_triggers(self, batch_size: int, generator: torch.Generator | None) -> Tensor:
        if self.fixed_triggers is not None:
            return self.fixed_triggers.repeat(batch_size, 1)
        # The K first arrivals of exponential clocks with rates pi_q are K draws from pi_q without repeats, in order.
        arrivals = torch.empty(batch_size, self.vocab_size, dtype=torch.float64).exponential_(generator=generator)
        return (arrivals / self.unigram).topk(self.n_triggers, dim=1, largest=False).indices

    def _sample_outputs(self, triggers: Tensor, generator: torch.Generator | None) -> Tensor:
        if self.outputs == "uniform":
            return torch.randint(self.vocab_size, triggers.shape, generator=generator)
        return torch.from_numpy(self._pick(triggers.numpy(), *_draws(triggers.shape, self.vocab_size, generator)))

    def successor_entropy(self) -> Tensor:
        """H(pi_b(.|i)) of every token i, in nats, (N,)."""
        return torch.special.entr(self.bigram).sum(dim=1)

    def entropy_rate(self) -> float:
        """Entropy per token of the global bigrams alone, in nats: sum_i mu_i H(pi_b(.|i)).

        mu is the long-run distribution of the chain pi_b started in pi_u. With triggers in the data other tokens are
        visited; `global_loss_floor` has the floor for given sequences.
        """
        # The lazy chain has the same long-run distribution and cannot be periodic; squaring makes 2^64 steps at once.
        steps = (self.bigram + torch.eye(self.vocab_size, dtype=torch.float64)) / 2
        for _ in range(64):
            steps = steps @ steps
            steps /= steps.sum(dim=1, keepdim=True)
        return float(self.unigram @ steps @ self.successor_entropy())

    def global_loss_floor(self, inputs: Tensor, occurrence: Tensor) -> float:
        """The least expected loss at the non-trigger positions of these sequences, in nats.

        The mean of H(pi_b(.|z_t)) over positions with occurrence 0: what is left to somebody who knows pi_b and the
        triggers. Not a number where every position holds a trigger.

        Raises:
            InputError: inputs that are not int64 (B, T) tokens of this task, or occurrences of another shape.
        """
        check_whole("inputs", inputs, (None, None), below=self.vocab_size)
        check_whole("occurrence", occurrence, inputs.shape)
        return float(self.successor_entropy()[inputs[occurrence == 0]].mean())

    def bigram_predictions(self, inputs: Tensor) -> Tensor:
        """The likeliest successor under pi_b of every input, shaped like inputs: the best guess without context.

        Raises InputError for inputs that are not int64 (B, T) tokens of this task.
        """
        check_whole("inputs", inputs, (None, None), below=self.vocab_size)
        return self.bigram.argmax(dim=1)[inputs]


def induction_predictions(inputs: Tensor) -> Tensor:
    """What an ideal induction head predicts: the token that followed the last earlier occurrence of the same token.

    On the task's repeated output positions (occurrence >= 2) this is always right, so the best possible in-context
    accuracy is 1 and the best loss 0, for fixed and for random triggers. Elsewhere it is a guess.

    Args:
        inputs: tokens, int64 (B, T).

    Returns:
        Predictions, int64 (B, T); -1 where the token has not occurred before.

    Raises:
        InputError: inputs of another kind.
    """
    check_whole("inputs", inputs, (None, None))
    ordered, order = inputs.sort(dim=1, stable=True)  # equal tokens side by side, in the order of their positions
    previous = order.roll(1, dims=1)
    successors = inputs.gather(1, (previous + 1).clamp(max=inputs.shape[1] - 1))
    successors.masked_fill_(ordered != ordered.roll(1, dims=1), -1)
    successors[:, 0] = -1
    return torch.empty_like(inputs).scatter_(1, order, successors)


def _count_so_far(tokens: Tensor) -> Tensor:
    """How often the token at each position has occurred in its row up to and including it, (B, T)."""
    rows = tokens.numpy().astype(np.uint16)  # small integers sort several times faster
    order = rows.argsort(axis=1, kind="stable")
    ordered = np.take_along_axis(rows, order, axis=1)
    places = np.arange(tokens.shape[1])
    starts = np.zeros(tokens.shape, dtype=np.int64)
    starts[:, 1:] = np.where(ordered[:, 1:] != ordered[:, :-1], places[1:], 0)
    counts = np.empty_like(starts)
    np.put_along_axis(counts, order, places - np.maximum.accumulate(starts, axis=1) + 1, axis=1)
    return torch.from_numpy(counts)


def _distribution(name: str, values: Tensor, n_dimensions: int) -> Tensor:
    """The values as float64 rows that sum to 1, or an InputError if they are no distribution."""
    try:
        table = torch.as_tensor(values, dtype=torch.float64)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"{name} must be a tensor, or lists of numbers of equal length: {error}") from None
    if table.ndim != n_dimensions or table.numel() == 0:
        raise InputError(f"{name} must have {n_dimensions} dimension(s) and not be empty; got {tuple(table.shape)}")
    if not torch.isfinite(table).all() or (table < 0).any():
        raise InputError(f"{name} must hold probabilities: finite numbers of at least 0")
    totals = table.sum(dim=-1, keepdim=True)
    if ((totals - 1).abs() > 1e-5).any():
        worst = float(totals.flatten()[(totals - 1).abs().argmax()])
        raise InputError(f"{name} must sum to 1{' in every row' if n_dimensions > 1 else ''}; one sum is {worst:.6g}")
    return table / totals


def _code_points(text: str) -> np.ndarray:
    """The characters of a text as numbers, or an InputError if it is none."""
    if not isinstance(text, str):
        raise InputError(f"text must be a string, or several in a list; got {type(text).__name__}")
    try:
        return np.frombuffer(text.encode("utf-32-le"), dtype=np.uint32)
    except UnicodeEncodeError as error:
        raise InputError(f"the text has half a character at place {error.start}: read it from UTF-8") from None


def _draws(shape: tuple[int, ...], n_columns: int, generator: torch.Generator | None) -> tuple[np.ndarray, np.ndarray]:
    """Uniform columns below n_columns and levels below RESOLUTION, what `BigramTask._pick` turns into tokens."""
    columns = torch.randint(n_columns, shape, generator=generator)
    return columns.numpy(), torch.randint(RESOLUTION, shape, generator=generator).numpy()


def _alias_tables(probabilities: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Walker's alias method for the rows of (R, N) probabilities: flat tables of shares and aliases, R N each.

    Every row becomes N columns of height RESOLUTION; column j belongs to token j up to its share, above to its alias.
    Each step fills one column of every row: a token that is too light for its column, from the heaviest one left.
    """
    R, N = probabilities.shape
    row = np.arange(R)
    weights = (probabilities * N * RESOLUTION).round().long().numpy()
    heaviest = weights.argmax(axis=1)
    weights[row, heaviest] += N * RESOLUTION - weights.sum(axis=1)
    order = weights.argsort(axis=1, kind="stable")
    share, alias = np.full((R, N), RESOLUTION), np.tile(np.arange(N), (R, 1))
    lightest, giver = np.zeros(R, dtype=np.int64), np.full(R, N - 1)  # places in the order, from either end
    taker = lightest.copy()
    for _ in range(N - 1):
        light, heavy = order[row, taker], order[row, giver]
        share[row, light], alias[row, light] = weights[row, light], heavy
        weights[row, heavy] -= RESOLUTION - weights[row, light]
        # A giver that has become too light is the next to be filled; its neighbour gives from then on.
        spent = weights[row, heavy] < RESOLUTION
        lightest = np.where(taker == lightest, lightest + 1, lightest)
        taker = np.where(spent, giver, lightest)
        giver = np.where(spent, giver - 1, giver)
    return share.ravel(), alias.ravel()
