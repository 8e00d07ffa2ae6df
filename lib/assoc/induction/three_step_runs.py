"""Runs of the three gradient steps for chapter 5B: on the bigram task of real text, and the points of its sweeps."""

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from assoc.corpus import load_texts
from assoc.errors import InputError, finite_number, whole_number
from assoc.induction.alignment import signal_to_noise, stored_pairs
from assoc.induction.memory import memory_tables, recalls
from assoc.induction.model import AssociativeTransformer
from assoc.induction.task import Batch, BigramTask
from assoc.induction.three_steps import (
    KEPT,
    NAMED,
    ORDER,
    Block,
    OneTrigger,
    Overlaps,
    accuracy,
    block_of,
    block_slices,
    check_margins,
    gradient_steps,
    rates_for,
    recall,
)
from assoc.seeds import seeded
from assoc.sweeps import Sweep


def orthonormal_model(task: BigramTask) -> AssociativeTransformer:
    """The model of paper B with orthonormal vectors: d = 3N + 2T unit vectors, the first 2N + 2T of them in the order
    of `BLOCKS`, the last N for w_U. Layer 1 moves tokens and positions to their remapped places; nothing is trained."""
    N, T = task.vocab_size, task.length
    both = N + T
    model = AssociativeTransformer(N, T, 2 * both + N)
    unit = torch.eye(model.dim)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        model.token_embedding.copy_(unit[:N])
        model.position_embedding.copy_(unit[N:both])
        model.value1.copy_(unit)
        model.output1[both : 2 * both, :both] = unit[:both, :both]
        model.value2.copy_(unit)
        model.unembedding.copy_(unit[2 * both :])
    return model


def text_steps(
    model: AssociativeTransformer,
    task: BigramTask,
    margins: Sequence[float],
    n_sequences: int,
    *,
    kept: Mapping[str, Sequence[Block] | None] | None = None,
    generator: torch.Generator | None = None,
    test_size: int = 256,
) -> list[dict[str, float | str]]:
    """Three gradient steps from zero on W_O2, W_K2, W_K1 of a model, on the repeated outputs of the bigram task.

    Each step is as long as it takes for the stored pairs to be ahead of the wrong matches by its margin, on average,
    or behind by it where the gradient points the other way.

    Args:
        model: changed in place. margins: of W_O2, W_K2 and W_K1. n_sequences: behind each gradient.
        kept: blocks, for an `orthonormal_model`; others have none to tell apart.

    Returns:
        For each step: name, signal (`signal_to_noise` of that memory after it), recall, accuracy on repeated outputs.

    Raises:
        InputError: other than three finite margins above 0.
    """
    margins = check_margins(margins)
    test = task.sample(test_size, generator)
    repeated = test.occurrence >= 2
    with torch.no_grad():
        for name in ORDER:
            getattr(model, name).zero_()
    found = []
    for name, margin in zip(ORDER, margins, strict=True):
        change = -_repeated_output_gradient(model, name, task.sample(n_sequences, generator))
        if kept is not None and kept[name] is not None:
            change = change * _block_mask(task, name, kept[name])
        weight = getattr(model, name)
        with torch.no_grad():
            weight.copy_(change)
            rows, columns = stored_pairs(model, task)[name]
            scores = memory_tables(model)[name][rows]
            is_right = functional.one_hot(columns, scores.shape[1]).bool()
            ahead = scores[is_right].mean() - scores[~is_right].mean()
            weight.mul_(margin / ahead.abs())
            right = model(test.inputs, repeated).argmax(dim=-1) == test.targets[repeated]
        found.append(
            {
                "name": name,
                "signal": signal_to_noise(model, task)[name],
                "recall": recalls(model, task)[name],
                "accuracy": float(right.double().mean()),
            }
        )
    return found


def _repeated_output_gradient(model: AssociativeTransformer, name: str, batch: Batch) -> Tensor:
    weight, repeated = getattr(model, name), batch.occurrence >= 2
    total = torch.zeros_like(weight)
    for part in torch.arange(len(batch.inputs)).split(128):
        counts = repeated[part]
        logits, targets = model(batch.inputs[part], counts), batch.targets[part][counts]
        loss = functional.cross_entropy(logits, targets, reduction="sum") / repeated.sum()
        total += torch.autograd.grad(loss, weight)[0]
    return total


def _block_mask(task: BigramTask, name: str, kept: Sequence[Block]) -> Tensor:
    """Ones in the blocks of an `orthonormal_model`'s matrix, zeros elsewhere."""
    data = OneTrigger(task.vocab_size, task.length)
    slices, N, T = block_slices(data), task.vocab_size, task.length
    mask = torch.zeros(3 * N + 2 * T, 3 * N + 2 * T)
    first = 2 * (N + T) if name == "output2" else 0
    for row, column in kept:
        rows = slices[row]
        mask[first + rows.start : first + rows.stop, slices[column]] = 1
    return mask


# --- points of the sweeps


def _blocks_kept(name: str) -> Mapping[str, Sequence[Block] | None]:
    if name not in KEPT:
        raise InputError(f"kept is {name!r}: choose one of {', '.join(KEPT)}")
    return KEPT[name]


def dimension_point(dim: int, kept: str, margins: Sequence[float], n_sequences: int, seed: int) -> dict[str, Any]:
    """Recalls and accuracy after three steps in d dimensions, N = 64 and T = 12; dim 0 means orthonormal vectors."""
    blocks = _blocks_kept(kept)
    data, generator = OneTrigger(), seeded(seed)
    overlaps = Overlaps.random(data, dim, generator) if dim else None
    residual = overlaps.residual if overlaps else None
    test, examples = data.sample(10_000, generator), data.sample(n_sequences, generator)
    steps = gradient_steps(data, rates_for(data, margins), examples, kept=blocks, overlaps=overlaps)
    *_, last = steps
    found = {name: recall(last.tables, data, name) for name in ORDER}
    return {**found, "accuracy": accuracy(last.tables, test, residual)}


def length_point(length: int, kept: str, margins: Sequence[float]) -> dict[str, Any]:
    """Three steps on the population gradient, N = 64, in float64: recall and accuracy after each, and how far ahead of
    the best wrong match each row of W_K1 is, in units of its largest entry."""
    data, blocks = OneTrigger(64, length), _blocks_kept(kept)
    everything = data.every_pattern()
    steps = gradient_steps(data, rates_for(data, margins), everything, kept=blocks, dtype=torch.float64)
    found: dict[str, Any] = {"recall": [], "accuracy": []}
    for step in steps:
        found["recall"].append(recall(step.tables, data, step.name))
        found["accuracy"].append(accuracy(step.tables, everything))
    block = block_of(step.tables["key1"], data, NAMED["key1"][0])[1:]
    right = torch.arange(length - 1)[:, None]
    ahead = block.gather(1, right)[:, 0] - block.scatter(1, right, -torch.inf).amax(dim=1)
    return {**found, "ahead": (ahead / block.abs().amax(dim=1)).tolist()}


def descent_point(length: int, rate: float, n_steps: int, every: int) -> dict[str, Any]:
    """Gradient descent on all three tables at once, all blocks, population gradient, N = 64: accuracy and recalls."""
    n_steps, every = whole_number("n_steps", n_steps, minimum=1), whole_number("every", every, minimum=1)
    rate = finite_number("rate", rate, minimum=0)
    data = OneTrigger(64, length)
    everything, found = data.every_pattern(), {name: [] for name in ("step", "accuracy", *ORDER)}
    rates = dict.fromkeys(ORDER, rate)
    steps = gradient_steps(data, rates, everything, order=[ORDER] * n_steps, kept=KEPT["all"], dtype=torch.float64)
    for number, step in enumerate(steps):
        n_made, place = divmod(number, len(ORDER))
        if place == 0 and ((n_made + 1) % every == 0 or n_made < len(ORDER)):
            found["step"].append(n_made + 1)
            found["accuracy"].append(accuracy(step.tables, everything))
            for name in ORDER:
                found[name].append(recall(step.tables, data, name))
    return found


def text_point(triggers: str, dim: int, kept: str, margins: Sequence[float], seed: int) -> dict[str, Any]:
    """`text_steps` on the characters of the stories, T = 32, K = 5, 1024 sequences a gradient; dim 0: orthonormal."""
    task = BigramTask.from_text(load_texts("stories").texts, length=32, n_triggers=5, triggers=triggers)
    generator = seeded(seed)
    if dim:
        model = AssociativeTransformer(task.vocab_size, task.length, dim, generator=generator)
    else:
        model = orthonormal_model(task)
    blocks = None if dim else _blocks_kept(kept)
    steps = text_steps(model, task, margins, 1024, kept=blocks, generator=generator)
    return {key: [step[key] for step in steps] for key in ("signal", "recall", "accuracy")}


MARGINS = (10.0, 10.0, 20.0)
"""Of the three steps, in the sweeps on one trigger."""

TEXT_MARGINS = (0.1, 10.0, 20.0)

SWEEPS: list[Sweep] = [
    Sweep(
        name="5b-dimensions",
        shows="three steps with random vectors: recall and accuracy against the dimension (0: orthonormal)",
        function=dimension_point,
        points=[
            {"dim": dim, "kept": kept, "margins": list(MARGINS), "n_sequences": 50_000, "seed": seed}
            for dim, kept, seed in product(
                (32, 64, 128, 256, 512, 1024, 2048, 4096, 0), ("named", "own token", "all"), range(3)
            )
        ],
        seconds=1,
    ),
    Sweep(
        name="5b-lengths",
        shows="three steps on the exact population gradient, for sequences of 6 to 12 tokens",
        function=length_point,
        points=[
            {"length": length, "kept": kept, "margins": list(MARGINS)}
            for kept, lengths in (("named", (6, 8, 10, 12)), ("own token", (6, 8, 10)), ("all", (6, 8, 10)))
            for length in lengths
        ],
        seconds=8,
    ),
    Sweep(
        name="5b-descent",
        shows="gradient descent on all blocks of all three tables at once: do more steps mend the cross-talk of three?",
        function=descent_point,
        points=[
            {"length": 8, "rate": rate, "n_steps": n_steps, "every": 20}
            for rate, n_steps in ((1.0, 1400), (3.0, 600), (10.0, 600), (30.0, 600))
        ],
        seconds=25,
    ),
    Sweep(
        name="5b-text",
        shows="three steps on the bigram task of real text: what is kept, how large the first step is, which vectors",
        function=text_point,
        points=[
            {"triggers": triggers, **how, "seed": seed}
            for triggers in ("fixed", "random")
            for how in (
                *({"dim": 0, "kept": kept, "margins": list(TEXT_MARGINS)} for kept in KEPT),
                *({"dim": 0, "kept": "named", "margins": [alpha, *TEXT_MARGINS[1:]]} for alpha in (1.0, 5.0, 20.0)),
                *({"dim": dim, "kept": "all", "margins": list(TEXT_MARGINS)} for dim in (256, 512)),
            )
            for seed in range(3)
        ],
        seconds=3,
    ),
]
"""The sweeps of chapter 5B."""
