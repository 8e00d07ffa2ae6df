"""An induction head in three gradient steps: Theorem 3 of paper B (Section 6), in coordinates.

The two-layer model of paper B without the residual path to the logits, at the last position alone. All vectors are
orthonormal, or nearly so. Then a weight matrix is a table of scores, one entry for each pair of vectors that it joins,
and a step of gradient descent adds to an entry what its pair earned: gradients are memories. The vectors that a
residual stream is made of come in four blocks, in this order:

    tokens w_E(k) (N), positions p_t (T), remapped tokens w_1(k) (N), remapped positions (T)

"Remapped" is what layer 1 adds: W_O1 W_V1 applied to what it attends to. Layer 1 sees the first two blocks.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from assoc.checks import check_whole
from assoc.errors import InputError, finite_number, whole_number

ORDER = ("output2", "key2", "key1")
"""The order of Theorem 3."""

BLOCKS = ("token", "position", "remapped token", "remapped position")
"""What a residual stream is made of, in the order of the tables' rows and columns."""

Block = tuple[str, str]
"""Row and column of a block, by their names in `BLOCKS`."""

NAMED: Mapping[str, Sequence[Block]] = {
    "output2": [("token", "token")],
    "key2": [("token", "remapped token")],
    "key1": [("position", "position")],
}
"""Of each table the block in which the construction has its pairs (paper B, Section 4.2): token to predicted token,
query token to key "the token before", query position to key position."""

KEPT: Mapping[str, Mapping[str, Sequence[Block] | None]] = {
    "named": NAMED,
    "own token": {**NAMED, "key2": [("token", "token"), ("token", "remapped token")]},
    "no positions": {
        "output2": None,
        "key2": [(a, b) for a in BLOCKS[::2] for b in BLOCKS[::2]],
        "key1": None,
    },
    "all": dict.fromkeys(NAMED),
}
"""What a step may keep of its gradient: the named blocks; with the query token's match to the key's own token in W_K2;
everything but positions in W_K2; everything."""

CHUNK = 8192  # sequences at a time: their (T, T) tables fit the processor's cache


class Examples(NamedTuple):
    """Sequences and what is to be predicted at their end.

    inputs: tokens, int64 (n, T). targets: int64 (n,). weights: (n,), summing to 1; None: all equal.
    """

    inputs: Tensor
    targets: Tensor
    weights: Tensor | None = None


@dataclass(frozen=True)
class OneTrigger:
    """Sequences with one trigger, which occurs once before the end; what followed it there comes next.

    A trigger q, uniform over the N tokens, stands at a place j, uniform over 1 .. T - 2, and at the end, z_T = q. The
    other tokens are uniform over those that are not q, independently; the target is y = z_{j+1}.

    Args:
        vocab_size: N. length: T.
        recurring: draw the other tokens from all N, so that q may occur at other places too. Which of its successors
            counts is then anybody's guess.

    Raises:
        InputError: fewer than 3 tokens or 4 positions.
    """

    vocab_size: int = 64
    length: int = 12
    recurring: bool = False

    def __post_init__(self) -> None:
        whole_number("vocab_size", self.vocab_size, minimum=3)
        whole_number("length", self.length, minimum=4)

    def sample(self, n_sequences: int, generator: torch.Generator | None = None) -> Examples:
        """That many independent sequences."""
        n, N, T = whole_number("n_sequences", n_sequences, minimum=1), self.vocab_size, self.length
        trigger = torch.randint(N, (n, 1), generator=generator)
        place = torch.randint(T - 2, (n, 1), generator=generator)
        if self.recurring:
            inputs = torch.randint(N, (n, T), generator=generator)
        else:  # q plus 1 .. N - 1, around the end of the alphabet
            inputs = (trigger + torch.randint(1, N, (n, T), generator=generator)) % N
        inputs.scatter_(1, place, trigger)
        inputs[:, -1:] = trigger
        return Examples(inputs, inputs.gather(1, place + 1)[:, 0])

    def every_pattern(self) -> Examples:
        """All sequences up to a renaming of tokens, with their probabilities: expectations without sampling error.

        A pattern says which places hold equal tokens. The T - 2 places other than j and T have as many patterns as a
        set of T - 2 things has partitions, 203 for T = 8 and 115,975 for T = 12; each counts for all sequences that
        it stands for. Quantities that do not depend on the names of tokens have their exact mean here; tables of
        tokens have it after `symmetrised`.

        Raises:
            InputError: `recurring`, or T above 12.
        """
        N, T = self.vocab_size, self.length
        if self.recurring or T > 12:
            raise InputError("patterns are listed for T <= 12 and a trigger that does not recur: use sample instead")
        rest = set_partitions(T - 2)
        n_distinct = rest.amax(dim=1) + 1
        rest = rest[n_distinct < N]
        n_distinct = n_distinct[n_distinct < N]
        # (N - 1)(N - 2) .. (N - m) ways to name m different tokens, of (N - 1)^(T - 2) ways to draw.
        ways = torch.cat([torch.ones(1), torch.arange(N - 1, 0, -1)[: T - 2]]).double().cumprod(dim=0)
        weights = ways[n_distinct] / (N - 1) ** (T - 2) / (T - 2)
        inputs = torch.zeros(T - 2, len(rest), T, dtype=torch.int64)  # the trigger is token 0
        for place in range(T - 2):
            free = [t for t in range(T - 1) if t != place]
            inputs[place][:, free] = rest + 1
        targets = torch.stack([inputs[place, :, place + 1] for place in range(T - 2)])
        return Examples(inputs.flatten(0, 1), targets.flatten(), weights.repeat(T - 2))

    def best_accuracy(self) -> float:
        """What the best predictor reaches: 1, or less where the trigger recurs.

        With `recurring`, each of the m places among 1 .. T - 2 that hold the trigger is j with equal probability, and
        no successor is better than another unless two agree. This is E[1/m], which leaves out the rare case of equal
        successors; m - 1 is binomial.
        """
        if not self.recurring:
            return 1.0
        n, p = self.length - 3, 1 / self.vocab_size
        # E[1 / (1 + X)] of a binomial X
        return (1 - (1 - p) ** (n + 1)) / ((n + 1) * p)


def set_partitions(n: int) -> Tensor:
    """All partitions of n things, as rows (Bell(n), n): the number of each thing's class, in order of appearance.

    Raises InputError for more than 12 things, which have 4 million.
    """
    n = whole_number("n", n, minimum=1, maximum=12)
    rows = torch.zeros(1, 1, dtype=torch.int64)
    for _ in range(n - 1):
        n_choices = rows.amax(dim=1) + 2  # one of the classes so far, or a new one
        repeated = rows.repeat_interleave(n_choices, dim=0)
        first = (n_choices.cumsum(0) - n_choices).repeat_interleave(n_choices)
        rows = torch.cat([repeated, (torch.arange(len(repeated)) - first)[:, None]], dim=1)
    return rows


Tables = Mapping[str, Tensor]
"""The three weight matrices as scores: key1 (N + T, N + T) and key2 (2N + 2T, 2N + 2T), row a query, column a key;
output2 (N, 2N + 2T), row a token that is predicted, column a vector that is attended to."""


def zero_tables(data: OneTrigger, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    """The start of Theorem 3: nothing in any of the three matrices, so that all attention is uniform."""
    N, both = data.vocab_size, data.vocab_size + data.length
    return {
        "output2": torch.zeros(N, 2 * both, dtype=dtype),
        "key2": torch.zeros(2 * both, 2 * both, dtype=dtype),
        "key1": torch.zeros(both, both, dtype=dtype),
    }


def _check_name(name: str) -> None:
    if name not in NAMED:
        raise InputError(f"there is no table {name!r}: choose from {', '.join(NAMED)}")


def block_slices(data: OneTrigger) -> dict[str, slice]:
    """Where the four blocks of a residual stream lie."""
    sizes = dict(zip(BLOCKS, (data.vocab_size, data.length) * 2, strict=True))
    ends = torch.tensor(list(sizes.values())).cumsum(0).tolist()
    return {name: slice(end - size, end) for (name, size), end in zip(sizes.items(), ends, strict=True)}


def block_of(table: Tensor, data: OneTrigger, block: Block) -> Tensor:
    """A view of one block of a table: its rows and columns by their names in `BLOCKS`. Raises InputError for others."""
    if len(block) != 2 or not set(block) <= set(BLOCKS):
        raise InputError(f"there is no block {block!r}: give two of {', '.join(BLOCKS)}")
    slices = block_slices(data)
    return table[slices[block[0]], slices[block[1]]]


def keep_blocks(table: Tensor, data: OneTrigger, kept: Sequence[Block] | None) -> Tensor:
    """The table with zeros outside the given blocks; None keeps all."""
    if kept is None:
        return table
    result = torch.zeros_like(table)
    for block in kept:
        block_of(result, data, block).copy_(block_of(table, data, block))
    return result


def symmetrised(table: Tensor, data: OneTrigger) -> Tensor:
    """The mean of a table over all renamings of the N tokens.

    A block of tokens by tokens becomes a I + b (1 - I), one of tokens by positions has equal rows; positions stay as
    they are. The population gradient at weights that know no names has this form, so of `OneTrigger.every_pattern`
    this is exact.
    """
    result = torch.empty_like(table)
    rows = [name for name, part in block_slices(data).items() if part.start < len(table)]
    columns = [name for name, part in block_slices(data).items() if part.start < table.shape[1]]
    for row in rows:
        for column in columns:
            values, into = block_of(table, data, (row, column)), block_of(result, data, (row, column))
            if "token" in row and "token" in column:
                own, n = values.diagonal().mean(), len(values)
                into.copy_((values.sum() - n * own) / (n * (n - 1)))
                into.fill_diagonal_(float(own))
            elif "token" in row:
                into.copy_(values.mean(dim=0))
            elif "token" in column:
                into.copy_(values.mean(dim=1, keepdim=True))
            else:
                into.copy_(values)
    return result


class Reading(NamedTuple):
    """What the model says of sequences: logits (n, N) at the end, attention1 (n or 1, T, T), attention2 (n, T)."""

    logits: Tensor
    attention1: Tensor
    attention2: Tensor


def read(tables: Tables, inputs: Tensor, residual: Tensor | None = None) -> Reading:
    """The model of paper B (Section 4.2) at the last position, from tables of scores: gathers in place of products.

        a_ts  = softmax_{s <= t}(x_t' W_K1 x_s),       x1_t = x_t + remapped sum_s a_ts x_s
        a'_s  = softmax_{s <= T}(x1_T' W_K2 x1_s),     logits = W_O2 sum_s a'_s x1_s

    Args:
        inputs: tokens, int64 (n, T).
        residual: scores (N, 2N + 2T) by which x1_T itself reaches the logits. Default: none, as with an orthonormal
            unembedding.

    Raises:
        InputError: inputs of another length or with other tokens than the tables have.
    """
    key1, key2, output2 = tables["key1"], tables["key2"], tables["output2"]
    both, N = len(key1), len(output2)
    T = both - N
    check_whole("inputs", inputs, (None, T), below=N)
    future = torch.ones(T, T, dtype=torch.bool).triu(1)
    scores = key1.new_zeros(1, T, T)
    if key1.requires_grad or key1.any():
        tokens, mixed, mixed_back, positions = key1[:N, :N], key1[:N, N:], key1[N:, :N].T, key1[N:, N:]
        scores = tokens[inputs[:, :, None], inputs[:, None, :]] + mixed[inputs] + positions
        scores = scores + mixed_back[inputs].transpose(1, 2)
    attention1 = scores.masked_fill(future, -torch.inf).softmax(dim=-1)

    def in_stream(own: Tensor, remapped: Tensor) -> Tensor:
        """Weights of the T places, as tokens and positions themselves and remapped, as a vector of the stream."""
        zeros = own.new_zeros(len(inputs), N)
        parts = (zeros.scatter_add(1, inputs, own), own, zeros.scatter_add(1, inputs, remapped), remapped)
        return torch.cat(parts, dim=1)

    last = functional.one_hot(torch.tensor(T - 1), T).to(output2.dtype).expand(len(inputs), T)
    query = in_stream(last, attention1[:, -1].expand(len(inputs), T))
    if key2.requires_grad or key2.any():
        wanted = query @ key2
        own = wanted[:, :N].gather(1, inputs) + wanted[:, N:both]
        remapped = wanted[:, both : both + N].gather(1, inputs) + wanted[:, both + N :]
        attention2 = (own + (attention1 @ remapped[:, :, None])[:, :, 0]).softmax(dim=-1)
    else:
        attention2 = output2.new_full((len(inputs), T), 1 / T)
    values = in_stream(attention2, (attention2[:, None] @ attention1)[:, 0])
    logits = values @ output2.T
    return Reading(logits if residual is None else logits + query @ residual.T, attention1, attention2)


def _check_examples(examples: Examples, tables: Tables) -> None:
    N = len(tables["output2"])
    check_whole("inputs", examples.inputs, (None, len(tables["key1"]) - N), below=N)
    check_whole("targets", examples.targets, (len(examples.inputs),), below=N)


def gradient(tables: Tables, name: str, examples: Examples, residual: Tensor | None = None) -> Tensor:
    """Gradient of the mean cross-entropy at the last position with respect to one table, by autograd.

    Raises InputError for a name that is no table, or examples of another size.
    """
    _check_name(name)
    _check_examples(examples, tables)
    tables = {key: table.detach() for key, table in tables.items()}
    trained = tables[name].clone().requires_grad_()
    tables[name] = trained
    n, total = len(examples.inputs), torch.zeros_like(trained)
    parts = zip(*(part.split(CHUNK) for part in examples[:2]), strict=True)
    weights = [None] * n if examples.weights is None else examples.weights.to(trained.dtype).split(CHUNK)
    for (inputs, targets), weight in zip(parts, weights, strict=False):
        losses = functional.cross_entropy(read(tables, inputs, residual).logits, targets, reduction="none")
        loss = losses.sum() / n if weight is None else losses @ weight
        total += torch.autograd.grad(loss, trained)[0]
    return total


def accuracy(tables: Tables, examples: Examples, residual: Tensor | None = None) -> float:
    """Share of the sequences whose target has the largest logit, by weight; ties count as their share.

    Raises InputError for examples of another size than the tables have.
    """
    _check_examples(examples, tables)
    right, weights = [], examples.weights
    with torch.no_grad():
        for inputs, targets in zip(*(part.split(CHUNK) for part in examples[:2]), strict=True):
            logits = read(tables, inputs, residual).logits
            best = logits == logits.amax(dim=1, keepdim=True)
            right.append(best.gather(1, targets[:, None])[:, 0].double() / best.sum(dim=1))
    right = torch.cat(right)
    return float(right.mean() if weights is None else right @ weights)


def recall(tables: Tables, data: OneTrigger, name: str) -> float:
    """Share of the pairs of the `NAMED` block whose match is the best of its row; ties are lost (Section 4.2).

    output2: token v predicts v. key2: query k finds the key "before me was k". key1: position t finds t - 1, for
    t = 2 .. T.

    Raises InputError for a name that is no table.
    """
    return float(matches(tables, data, name).double().mean())


def matches(tables: Tables, data: OneTrigger, name: str) -> Tensor:
    """For each pair that `recall` counts, whether its match is the best of its row: booleans."""
    _check_name(name)
    block = block_of(tables[name], data, NAMED[name][0])
    block = block.T if name == "output2" else block
    right = torch.arange(len(block))
    if name == "key1":
        block, right = block[1:], right[:-1]
    others = block.scatter(1, right[:, None], -torch.inf).amax(dim=1)
    return block.gather(1, right[:, None])[:, 0] > others


# --- what the gradients are, derived in chapter 5B, for a trigger that does not recur; others raise InputError


def _check_trigger(data: OneTrigger) -> None:
    if data.recurring:
        raise InputError("the closed forms are for a trigger that occurs once: give OneTrigger(.., recurring=False)")


def _places(data: OneTrigger) -> tuple[Tensor, Tensor]:
    """For every place j of the trigger (rows) and every s (columns), (T - 2, T) float64 each:

    m_s - mean over s, m_s = P(z_s = y | j): 1 behind the trigger, 0 at the trigger, 1/(N - 1) elsewhere;
    n_s, how many of z_1 .. z_s are the trigger.
    """
    _check_trigger(data)
    T = data.length
    j, s = torch.arange(1, T - 1)[:, None], torch.arange(1, T + 1)
    is_output = (s > 0).double() / (data.vocab_size - 1) + 0.0 * j
    is_output = is_output.masked_fill((s == j) | (s == T), 0.0).masked_fill(s == j + 1, 1.0)
    seen = (s >= j).double() + (s == T).double()
    return is_output - is_output.mean(dim=1, keepdim=True), seen


def first_step(data: OneTrigger) -> tuple[float, float]:
    """c and c' of minus the gradient of W_O2 at zero: exactly (c / NT) (1 - J/N) in the block of tokens, c' in that of
    remapped tokens, and 0 in those of positions. J is the matrix of ones.

        c = sum_s e_s,  c' = sum_s h_s e_s,  e_s = P(z_s = k | y = k) - P(z_s = k | y = l),  h_s = sum_{t=s}^T 1/t
    """
    _check_trigger(data)
    N, T = data.vocab_size, data.length
    s = torch.arange(1, T + 1)
    excess = torch.full((T - 2, T), 1 / (N - 1) ** 2, dtype=torch.float64)
    j = torch.arange(1, T - 1)[:, None]
    excess = excess.masked_fill((s == j) | (s == T), -1 / (N - 1)).masked_fill(s == j + 1, 1.0).mean(dim=0)
    weights = (1 / s.double()).flip(0).cumsum(0).flip(0)
    return float(excess.sum()), float(weights @ excess)


def second_step(data: OneTrigger) -> tuple[float, float]:
    """c and c' of minus the gradient of W_K2 while W_K1 = 0 and W_O2 = alpha (1 - J/N) in the block of tokens, for
    small alpha: (alpha c / NT) (1 - J/N) from token to remapped token, c' from token to token.

        c = N/(N-1) mean_j sum_s (m_s - m) n_s / s,    c' = N/(N-1) mean_j sum_s (m_s - m) [s is j or T]
    """
    share, seen = _places(data)
    N, T = data.vocab_size, data.length
    s = torch.arange(1, T + 1)
    at_trigger = (s == torch.arange(1, T - 1)[:, None]) | (s == T)
    factor = N / (N - 1)
    return float(factor * (share * seen / s).sum(dim=1).mean()), float(factor * (share * at_trigger).sum(dim=1).mean())


def position_shortcut(data: OneTrigger) -> Tensor:
    """(T,) minus the gradient of W_K2 from position T to position s, for small alpha, in units of alpha / T:
    mean_j (m_s - m). All queries share position T, so that no factor 1/N is in front."""
    return _places(data)[0].mean(dim=0)


def third_step(data: OneTrigger) -> Tensor:
    """(T, T): minus the gradient of W_K1 from position t to position r, in units of alpha beta / T, for W_O2 and W_K2
    as the first two steps make them, both small.

        (1/t) mean_j (m_t - m) ([r = j] + [r = T] - n_t / t)   for r <= t
    """
    share, seen = _places(data)
    T = data.length
    r, t, j = torch.arange(1, T + 1), torch.arange(1, T + 1)[:, None], torch.arange(1, T - 1)[:, None, None]
    is_trigger = ((r == j) | (r == T)).double()  # (j, 1, r)
    return ((share[:, :, None] * (is_trigger - (seen / t[:, 0])[:, :, None])).mean(dim=0) / t).tril()


def check_margins(margins: Sequence[float]) -> tuple[float, float, float]:
    """The margins of W_O2, W_K2 and W_K1, or an InputError unless they are three finite numbers above 0."""
    are_three = isinstance(margins, Sequence) and len(margins) == len(ORDER)
    if not are_three or not all(isinstance(margin, Real) and 0 < margin < math.inf for margin in margins):
        raise InputError(f"margins are {margins}: give three numbers above 0, for W_O2, W_K2 and W_K1")
    return tuple(margins)


def rates_for(data: OneTrigger, margins: Sequence[float]) -> dict[str, float]:
    """Learning rates with which small steps would leave these margins (alpha, beta, gamma) of a right over a wrong
    match: in W_O2, in W_K2, and in row T - 1 of W_K1, the weakest of those that are used.

    Raises:
        InputError: other than three finite numbers above 0; so few tokens or places that a step goes the wrong way; a
            trigger that recurs.
    """
    alpha, beta, gamma = check_margins(margins)
    N, T = data.vocab_size, data.length
    row = third_step(data)[T - 2]
    weakest = float(row[T - 3] - row[[*range(T - 3), T - 2]].max())
    if min(second_step(data)[0], weakest) <= 0:
        raise InputError(
            f"with {N} tokens at {T} places a step goes the wrong way: give more, such as 8 tokens and 6 places"
        )
    return {
        "output2": alpha * N * T / first_step(data)[0],
        "key2": beta * N * T / (alpha * second_step(data)[0]),
        "key1": gamma * T / (alpha * beta * weakest),
    }


# --- vectors that are not orthonormal


class Overlaps(NamedTuple):
    """Inner products of the vectors: how far a step for one pair spills over to others.

    A gradient sum_ab g_ab u_a v_b' moves the score u_i' W v_j by sum_ab (u_i' u_a) g_ab (v_b' v_j): the table G of its
    coefficients becomes U G V.

    layer1: (N + T, N + T), of tokens and positions. stream: (2N + 2T, 2N + 2T), of all four blocks. value: the same
    behind W_V2. output: (N, N), of the w_U. residual: (N, 2N + 2T), logits that x1_T gives by itself.
    """

    layer1: Tensor
    stream: Tensor
    value: Tensor
    output: Tensor
    residual: Tensor

    @classmethod
    def of(cls, tokens: Tensor, positions: Tensor, remap: Tensor, value: Tensor, output: Tensor, root: float = 1.0):
        """From vectors as rows, (N, d) and (T, d), the matrices W_O1 W_V1 and W_V2, (d, d), and w_U, (N, d).

        root: scores are divided by it, sqrt(d) in the trained models and 1 for vectors of length 1.
        """
        own = torch.cat([tokens, positions])
        stream = torch.cat([own, own @ remap.T])
        values = stream @ value.T
        scale = math.sqrt(root)
        own, scaled = own / scale, stream / scale
        return cls(own @ own.T, scaled @ scaled.T, values @ values.T, output @ output.T, output @ stream.T)

    @classmethod
    def random(cls, data: OneTrigger, dim: int, generator: torch.Generator | None = None) -> "Overlaps":
        """Of vectors and matrices with independent normal entries of variance 1/d: nearly orthonormal for large d."""
        dim = whole_number("dim", dim, minimum=1)
        shapes = ((data.vocab_size, dim), (data.length, dim), (dim, dim), (dim, dim), (data.vocab_size, dim))
        return cls.of(*(torch.randn(shape, generator=generator) / math.sqrt(dim) for shape in shapes))

    def spread(self, name: str, table: Tensor) -> Tensor:
        """U G V for the coefficients G of a gradient of that name. Raises InputError for a name that is no table."""
        _check_name(name)
        left, right = {
            "output2": (self.output, self.value),
            "key2": (self.stream, self.stream),
            "key1": (self.layer1, self.layer1),
        }[name]
        return left @ table @ right


# --- the steps


def _are_of(examples: Examples, data: OneTrigger) -> bool:
    inputs = examples.inputs
    return inputs.shape == (len(inputs), data.length) and inputs.numel() > 0 and int(inputs.max()) < data.vocab_size


class Step(NamedTuple):
    """A step that was made: which table, its gradient before anything was left out, and all tables afterwards."""

    name: str
    gradient: Tensor
    tables: dict[str, Tensor]


def gradient_steps(
    data: OneTrigger,
    rates: Mapping[str, float],
    examples: Examples | Callable[[], Examples],
    *,
    order: Sequence[str | Sequence[str]] = ORDER,
    kept: Mapping[str, Sequence[Block] | None] = NAMED,
    overlaps: Overlaps | None = None,
    dtype: torch.dtype = torch.float32,
) -> Iterator[Step]:
    """Gradient steps from zero, one table at a time, as in Theorem 3 of paper B.

    Args:
        data: the sizes. rates: learning rate of each table.
        examples: what the loss is the mean of: the same in all steps, or a function that draws anew. Weighted examples
            are taken for `every_pattern`, whose gradients are `symmetrised`.
        order: names of the tables, one a step; a tuple of names is one step of all of these at once.
        kept: of each gradient only these blocks; None for all of them.
        overlaps: of the vectors. Default: orthonormal.

    Yields:
        Each step after it is made; of several tables at once, one `Step` for each, with the same tables.

    Raises:
        InputError: a name that is no table, or has no finite rate or no entry in `kept`; sequences of another length.
    """
    tables = zero_tables(data, dtype)
    groups = [(group,) if isinstance(group, str) else tuple(group) for group in order]
    for name in (name for group in groups for name in group):
        if name not in tables:
            raise InputError(f"order names {name!r}: choose from {', '.join(tables)}")
        if name not in rates or name not in kept:
            raise InputError(f"order names {name!r}: give it a learning rate, and the blocks that are kept of it")
        finite_number(f"the learning rate of {name}", rates[name])
    residual = None if overlaps is None else overlaps.residual.to(dtype)
    for group in groups:
        seen = examples if isinstance(examples, Examples) else examples()
        if not _are_of(seen, data):
            raise InputError(f"the examples are not of {data.vocab_size} tokens at {data.length} places: sample anew")
        gradients = {name: gradient(tables, name, seen, residual) for name in group}
        if seen.weights is not None:
            gradients = {name: symmetrised(found, data) for name, found in gradients.items()}
        for name, found in gradients.items():
            change = keep_blocks(found, data, kept[name])
            change = change if overlaps is None else overlaps.spread(name, change)
            tables = tables | {name: tables[name] - rates[name] * change}
        for name, found in gradients.items():
            yield Step(name, found, tables)
