"""How far a matrix that trains has become the memory it should be: by direction, and by signal over noise.

Recall (paper B, Section 4.2) counts how often the right match is on top. It depends on how many pairs there are and on
how many candidates each has, so it cannot say which of three memories of different sizes was there first. These two
measures can.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn import functional

from assoc.checks import check_numbers, check_whole
from assoc.errors import InputError, whole_number
from assoc.induction.cross_talk import stored_queries
from assoc.induction.memory import check_two_layers, ideal_memories, memory_tables
from assoc.induction.model import AssociativeTransformer
from assoc.induction.task import Batch, BigramTask
from assoc.leading_terms import cosine

MEMORIES = ("output2", "key2", "key1")
"""The three memories of an induction head, in the order in which paper B has them learned."""


def stored_pairs(model: AssociativeTransformer, task: BigramTask) -> dict[str, tuple[Tensor, Tensor]]:
    """Rows and columns of the pairs that each of the `memory_tables` should hold, int64 (n,) each.

    key1: (t, t - 1) for t = 2 .. T, counted from 0. key2: (k, k) for the fixed triggers, or all tokens. output2: (v, v)
    for all tokens v.
    """
    tokens, queries, later = torch.arange(model.vocab_size), stored_queries(model, task), torch.arange(1, model.length)
    return {"output2": (tokens, tokens), "key2": (queries, queries), "key1": (later, later - 1)}


def signal_to_noise(model: AssociativeTransformer, task: BigramTask) -> dict[str, float]:
    """For each of `MEMORIES`: how far stored pairs stand out of the wrong matches of their row.

        mean over pairs (i, f(i)) of [S_{i f(i)} - mean_{j != f(i)} S_ij]  /  root mean over i of var_{j != f(i)} S_ij

    S is the table of `memory_tables`. About 0 at a random start, whatever the number of pairs and of candidates.

    Raises:
        InputError: another kind of model, or fewer than three candidates, which have no spread.
    """
    check_two_layers(model)
    if min(model.vocab_size, model.length) < 3:
        raise InputError("signal_to_noise needs at least three tokens and three positions")
    tables, result = memory_tables(model), {}
    for name, (rows, columns) in stored_pairs(model, task).items():
        result[name] = signal_of(tables[name][rows], columns)
    return result


def signal_of(scores: Tensor, columns: Tensor) -> float:
    """Signal over noise of a table: row i of `scores` (n, m) should match column `columns[i]`; formula as above.

    Raises InputError for other shapes, fewer than three columns, or scores that are not finite.
    """
    check_numbers("scores", scores, (None, None))
    check_whole("columns", columns, (len(scores),), below=scores.shape[1])
    if scores.shape[1] < 3:
        raise InputError("signal over noise needs at least three columns: wrong matches must have a spread")
    is_right = functional.one_hot(columns, scores.shape[1]).bool()
    wrong = scores[~is_right].view(len(scores), -1)
    return float((scores[is_right].mean() - wrong.mean()) / wrong.var(dim=1).mean().sqrt())


def gradient_alignment(model: AssociativeTransformer, task: BigramTask, batch: Batch) -> dict[str, tuple[float, float]]:
    """For each of `MEMORIES`: norm of the gradient, and cosine of the step downhill with the `ideal_memories`.

    The loss is the mean cross-entropy at the repeated outputs of the batch.

    Raises:
        InputError: another kind of model, weights that are not finite, or no repeated output in the batch.
    """
    check_two_layers(model)
    model.check_finite()
    counts = batch.occurrence >= 2
    if not counts.any():
        raise InputError("no output is repeated in this batch: draw more or longer sequences")
    loss = functional.cross_entropy(model(batch.inputs, counts), batch.targets[counts])
    gradients = torch.autograd.grad(loss, [getattr(model, name) for name in MEMORIES])
    ideal = ideal_memories(model, task)
    return {
        name: (float(gradient.norm()), cosine(-gradient, ideal[name]))
        for name, gradient in zip(MEMORIES, gradients, strict=True)
    }


@dataclass
class MemoryWatch:
    """What `watch_memories` saw; entry i belongs to `steps[i]` updates.

    Attributes:
        steps: number of updates made.
        cosine: memory -> cosine of what training has added, W - W_0, with the ideal memory; 0 while nothing is added.
        signal: memory -> `signal_to_noise`.
    """

    steps: list[int] = field(default_factory=list)
    cosine: dict[str, list[float]] = field(default_factory=lambda: {name: [] for name in MEMORIES})
    signal: dict[str, list[float]] = field(default_factory=lambda: {name: [] for name in MEMORIES})

    def first_step(self, name: str, threshold: float) -> int | None:
        """The first step seen at which the signal of a memory is at least the threshold, or None."""
        values: Sequence[float] = self.signal[name]
        return next((step for step, value in zip(self.steps, values, strict=True) if value >= threshold), None)


@contextmanager
def before_updates(model: nn.Module, every: int, look: Callable[[int], None]) -> Iterator[None]:
    """Call `look` with the number of updates made, before every so many of them, while a model trains inside.

    An update is told by its call of the model, so call it for nothing else inside.
    """
    every, n_calls = whole_number("every", every, minimum=1), 0

    def count(*_: object) -> None:
        nonlocal n_calls
        if n_calls % every == 0:
            look(n_calls)
        n_calls += 1

    handle = model.register_forward_pre_hook(count)
    try:
        yield
    finally:
        handle.remove()


@contextmanager
def watch_memories(model: AssociativeTransformer, task: BigramTask, every: int = 1) -> Iterator[MemoryWatch]:
    """Look at the memories of a model before each update while it trains inside this context, and change nothing.

        with watch_memories(model, task) as watch:
            train_induction(model, task, ...)

    An update is told by its call of the model, so call it for nothing else inside.

    Args:
        every: look every so many updates.
    """
    check_two_layers(model)
    watch, ideal = MemoryWatch(), ideal_memories(model, task)
    start = {name: getattr(model, name).detach().clone() for name in MEMORIES}

    def look(n_updates: int) -> None:
        watch.steps.append(n_updates)
        for name, signal in signal_to_noise(model, task).items():
            added = getattr(model, name).detach() - start[name]
            watch.cosine[name].append(cosine(added, ideal[name]) if added.any() else 0.0)
            watch.signal[name].append(signal)

    with before_updates(model, every, look):
        yield watch


def previous_by_position(attention: Tensor) -> Tensor:
    """Mean attention of position t to t - 1, over the sequences of maps (B, T, T): (T - 1,), for t = 2 .. T."""
    return attention.diagonal(offset=-1, dim1=-2, dim2=-1).mean(dim=0)


def uses_of_positions(batch: Batch) -> Tensor:
    """How many repeated outputs of a sequence can be read at each place, on average: (T,).

    Place s can be read from t >= s if t is a repeated output position and z_{s-1} = z_t; layer 1 has to look from
    s to s - 1 for that. This is how often the loss puts row p_s of W_K1 to use.
    """
    inputs, _, occurrence = batch[:3]
    follows = torch.zeros(*inputs.shape, inputs.shape[1], dtype=torch.bool)
    follows[:, :, 1:] = inputs[:, :, None] == inputs[:, None, :-1]
    follows &= (occurrence >= 2)[:, :, None]
    return follows.tril().double().sum(dim=1).mean(dim=0)
