"""Runs that withhold something: a memory, for a while or for good, a kind of data, a layer (paper B, Figures 3 and 4).

One run is one call, with a seed among its arguments, and gives plain numbers and lists: what a sweep keeps and a
chapter shows. `train_under` does the training for all of them. "probed" are the steps at which curves have values.
"""

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from itertools import pairwise
from types import MappingProxyType
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional

from assoc.corpus import load_texts
from assoc.errors import InputError, whole_number
from assoc.induction.alignment import MEMORIES, signal_to_noise
from assoc.induction.memory import ideal_memories
from assoc.induction.model import AssociativeTransformer, FullTransformer, OneLayerTransformer, TokenModel
from assoc.induction.task import Batch, BigramTask
from assoc.induction.training import InductionHistory, train_induction
from assoc.leading_terms import cosine
from assoc.seeds import seeded

LEARNING_RATE = 0.2
TEST_SEED = 1_000_000
"""Sequences for tests are drawn with this seed plus that of the run, so that no test is like what was trained on."""

FROZEN: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "nothing": (),
        "W_O2": ("output2",),
        "W_K2": ("key2",),
        "W_K1": ("key1",),
        "W_K1 and W_K2": ("key1", "key2"),
    }
)
"""What is withheld -> names of the parameters that stay at their random start."""

ARCHITECTURES = ("two layers", "one layer", "learned embeddings", "full", "full, four heads")
"""The simplified model, its control with one layer, the simplified model with every weight trained, and ordinary
transformers of two layers."""

COMPETITION: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "both": {"loss_on": "all", "feed_forward": True},
        "no W_F": {"loss_on": "all"},
        "W_F alone": {"loss_on": "all", "feed_forward": True, "frozen": MEMORIES},
    }
)
"""Conditions for W_O2 and W_F: `train_under` for both, and for each without the other."""


def _check_name(what: str, name: str, known: Collection[str]) -> None:
    if name not in known:
        raise InputError(f"{what} is {name!r}: choose one of {', '.join(known)}")


@cache
def stories_task(length: int, n_triggers: int, triggers: str, trigger_offset: int, outputs: str) -> BigramTask:
    """The bigram task over the characters of the bundled stories."""
    return BigramTask.from_text(
        load_texts("stories").texts,
        length=length,
        n_triggers=n_triggers,
        triggers=triggers,
        trigger_offset=trigger_offset,
        outputs=outputs,
    )


def new_model(
    architecture: str, task: BigramTask, dim: int, generator: torch.Generator, feed_forward: bool = False
) -> TokenModel:
    """A model of one of the `ARCHITECTURES` at its random start. Raises InputError for another name."""
    _check_name("architecture", architecture, ARCHITECTURES)
    sizes = (task.vocab_size, task.length, dim)
    if architecture.startswith("full"):
        return FullTransformer(*sizes, n_heads=4 if "four" in architecture else 1, generator=generator)
    kind = OneLayerTransformer if architecture == "one layer" else AssociativeTransformer
    model = kind(*sizes, feed_forward, generator=generator)
    if architecture == "learned embeddings":
        model.requires_grad_(True)
    return model


def train_under(
    task: BigramTask,
    *,
    seed: int,
    dim: int,
    steps: int,
    batch_size: int,
    every: int,
    architecture: str = "two layers",
    feed_forward: bool = False,
    frozen: Sequence[str] = (),
    until: int | None = None,
    loss_on: Literal["repeated", "all"] = "repeated",
    learning_rate: float = LEARNING_RATE,
    evaluation_size: int = 256,
    at_probe: Callable[[TokenModel], None] | None = None,
) -> tuple[TokenModel, InductionHistory]:
    """Train a new model under a condition; the model, and the history of its probes.

    Args:
        every: steps from one probe to the next.
        frozen: parameters that do not train until step `until`; None: for good.
        at_probe: called with the model at each probe.

    Raises:
        InputError: as of `train_induction`, or another architecture.
    """
    generator = seeded(seed)
    model = new_model(architecture, task, dim, generator, feed_forward)
    history = train_induction(
        model,
        task,
        steps=steps,
        batch_size=batch_size,
        learning_rate=learning_rate,
        frozen_until=dict.fromkeys(frozen, steps if until is None else until),
        loss_on=loss_on,
        generator=generator,
        evaluate_every=every,
        evaluation_size=evaluation_size,
        at_probe=None if at_probe is None else lambda: at_probe(model),
    )
    return model, history


@contextmanager
def without(model: TokenModel, name: str) -> Iterator[None]:
    """The model with a matrix set to zero inside this context, as it was after it. Raises InputError for no matrix."""
    parameters = dict(model.named_parameters())
    _check_name("name", name, parameters)
    parameter = parameters[name]
    kept = parameter.detach().clone()
    with torch.no_grad():
        parameter.zero_()
    try:
        yield
    finally:
        with torch.no_grad():
            parameter.copy_(kept)


def is_right(model: TokenModel, batch: Batch, where: Tensor) -> Tensor:
    """Whether the model's best guess is the target, at the chosen positions (booleans (B, T)) in their order."""
    with torch.no_grad():
        return model(batch.inputs, where).argmax(dim=-1) == batch.targets[where]


def share_right(model: TokenModel, batch: Batch, where: Tensor) -> float:
    """Accuracy at the chosen positions; not a number if there are none."""
    return float(is_right(model, batch, where).double().mean())


def first_step(steps: Sequence[int], values: Sequence[float], level: float) -> int | None:
    """The first of the steps at which a value is at least the level, or None."""
    return next((step for step, value in zip(steps, values, strict=True) if value >= level), None)


def thin(values: Sequence[float], keep_every: int) -> list[float]:
    """Every so many of the values, from the first on, to three decimals."""
    return [round(value, 3) for value in values[::keep_every]]


def value_at(run: Mapping[str, Any], key: str, step: int) -> float:
    """The value of a curve ("accuracy", "signal.key1") of a point at a step. Raises InputError for a step not kept."""
    if step not in run["probed"]:
        raise InputError(f"step {step} was not kept: choose one of {run['probed']}")
    return curve(run, key)[run["probed"].index(step)]


def in_order(steps: Sequence[int | None]) -> bool:
    """Whether each of these first steps is strictly before the next; what never happened is after all others."""
    times = [math.inf if step is None else step for step in steps]
    return all(early < late for early, late in pairwise(times))


def curve(run: Mapping[str, Any], key: str) -> list[float]:
    """The curve of a point of a sweep: "accuracy", or with dots for mappings within, as in "signal.key1".

    Raises:
        InputError: a key that the point does not have.
    """
    found: Any = run
    for part in key.split("."):
        _check_name("key", part, found if isinstance(found, Mapping) else ())
        found = found[part]
    return found


def over_seeds(points: Sequence[Mapping[str, Any]], key: str) -> tuple[Tensor, Tensor, Tensor]:
    """Mean, least and greatest value of a curve over points of a sweep, each as long as the curve.

    Args:
        key: "accuracy", or with dots for mappings within, as in "recall.key1".

    Raises:
        InputError: curves of different lengths, or none.
    """
    curves = [curve(point, key) for point in points]
    if not curves or len({len(values) for values in curves}) > 1:
        raise InputError(f"{len(curves)} curves {key!r} of one length are needed: choose points of one kind")
    table = torch.tensor(curves, dtype=torch.float64)
    return table.mean(dim=0), table.amin(dim=0), table.amax(dim=0)


def steps_in_words(steps: Sequence[int | None]) -> str:
    """First steps of several seeds as their mean and range, "84 (80 to 90)", and how many never got there."""
    found = [step for step in steps if step is not None]
    if not found:
        return "never"
    words = f"{sum(found) / len(found):.0f}"
    if min(found) < max(found):
        words += f" ({min(found)} to {max(found)})"
    return words if len(found) == len(steps) else f"{words}, {len(steps) - len(found)} of {len(steps)} never"


def frozen_run(
    frozen: str,
    until: int,
    seed: int,
    *,
    length: int = 64,
    n_triggers: int = 5,
    dim: int = 96,
    batch_size: int = 64,
    steps: int = 320,
    every: int = 5,
    keep_every: int = 2,
) -> dict[str, Any]:
    """Figure 3: a memory is frozen until a step, then released.

    Args:
        frozen: a key of `FROZEN`.
        every: steps from one probe to the next. keep_every: of the curves, every so many probes are returned.

    Returns:
        probed, accuracy, and recall and signal by memory: the curves (above T = 64, recall is also that of W_K1's early
        and late positions, see `recalls`). recall_step: memory -> first step with a recall of 0.9; signal_step: memory
        -> first steps with `signal_to_noise` of 1, 2 and 3. half, nine: first steps with an accuracy of 0.5 and 0.9.
    """
    _check_name("frozen", frozen, FROZEN)
    whole_number("keep_every", keep_every, minimum=1)
    task = stories_task(length, n_triggers, "fixed", 0, "uniform")
    signals: dict[str, list[float]] = {name: [] for name in MEMORIES}

    def look(model: TokenModel) -> None:
        for name, value in signal_to_noise(model, task).items():
            signals[name].append(value)

    _, history = train_under(
        task,
        seed=seed,
        dim=dim,
        steps=steps,
        batch_size=batch_size,
        every=every,
        frozen=FROZEN[frozen],
        until=until,
        evaluation_size=96,
        at_probe=look,
    )
    recall, accuracy = history.recall, history.in_context_accuracy
    return {
        "probed": history.steps[::keep_every],
        "accuracy": thin(accuracy, keep_every),
        "recall": {name: thin(values, keep_every) for name, values in recall.items()},
        "signal": {name: thin(values, keep_every) for name, values in signals.items()},
        "recall_step": {name: first_step(history.steps, values, 0.9) for name, values in recall.items()},
        "signal_step": {
            name: [first_step(history.steps, values, level) for level in (1, 2, 3)] for name, values in signals.items()
        },
        "half": history.first_step("in_context_accuracy", 0.5),
        "nine": history.first_step("in_context_accuracy", 0.9),
    }


def trigger_run(
    n_triggers: int,
    triggers: Literal["fixed", "random"],
    trigger_offset: int,
    loss_on: Literal["repeated", "all"],
    seed: int,
    *,
    batch_size: int = 64,
    length: int = 64,
    dim: int = 96,
    steps: int = 400,
    every: int = 10,
    keep_every: int = 2,
) -> dict[str, Any]:
    """Figure 4, left: how fast in-context accuracy comes for a kind of triggers. With loss_on "all" there is a W_F.

    Repeated outputs that are their trigger itself ("the same again") need no induction head: so all is measured twice,
    at all repeated outputs and at the *changing* ones.

    Returns:
        probed, accuracy, changing: the curves. half, nine, changing_half, changing_nine: first steps with 0.5 and 0.9.
        global_nine: first step at which nine tenths of the global loss above its floor are gone; None with loss on
        repeated outputs. repeated: repeated outputs of a sequence, on average; same: share of them that are the same
        again.
    """
    whole_number("keep_every", keep_every, minimum=1)
    task = stories_task(length, n_triggers, triggers, trigger_offset, "uniform")
    test = task.sample(400, seeded(TEST_SEED + seed))
    repeated = test.occurrence >= 2
    changing = (test.inputs != test.targets)[repeated]
    accuracy, on_changing = [], []

    def look(model: TokenModel) -> None:
        right = is_right(model, test, repeated).double()
        accuracy.append(float(right.mean()))
        on_changing.append(float(right[changing].mean()))

    _, history = train_under(
        task,
        seed=seed,
        dim=dim,
        steps=steps,
        batch_size=batch_size,
        every=every,
        feed_forward=loss_on == "all",
        loss_on=loss_on,
        evaluation_size=64,
        at_probe=look,
    )
    excess = [loss - history.global_loss_floor for loss in history.global_loss]
    closed = first_step(history.steps, [-value for value in excess], -0.1 * excess[0]) if loss_on == "all" else None
    return {
        "probed": history.steps[::keep_every],
        "accuracy": thin(accuracy, keep_every),
        "changing": thin(on_changing, keep_every),
        "half": first_step(history.steps, accuracy, 0.5),
        "nine": first_step(history.steps, accuracy, 0.9),
        "changing_half": first_step(history.steps, on_changing, 0.5),
        "changing_nine": first_step(history.steps, on_changing, 0.9),
        "global_nine": closed,
        "repeated": round(float(repeated.sum()) / len(repeated), 2),
        "same": round(1 - float(changing.double().mean()), 3),
    }


def output_run(
    outputs: Literal["uniform", "bigram"],
    seed: int,
    *,
    length: int = 64,
    n_triggers: int = 5,
    dim: int = 96,
    batch_size: int = 64,
    steps: int = 300,
    every: int = 10,
) -> dict[str, Any]:
    """Figure 4, centre: trained with outputs of one kind, tested with both.

    Returns:
        probed; on_uniform, on_bigram: accuracy at repeated outputs of either kind. recall: of the memories, at the end.
        by_token: for each token v, its accuracy at the end where it is the output (uniform outputs, the same again left
        out; None if it never is); seen: its share among the repeated outputs that were trained on.
    """
    _check_name("outputs", outputs, ("uniform", "bigram"))
    tasks = {kind: stories_task(length, n_triggers, "fixed", 0, kind) for kind in ("uniform", "bigram")}
    task = tasks[outputs]
    tests = {kind: tasks[kind].sample(800, seeded(TEST_SEED + seed)) for kind in tasks}
    curves: dict[str, list[float]] = {kind: [] for kind in tests}

    def look(model: TokenModel) -> None:
        for kind, test in tests.items():
            few = Batch(*(part[:200] for part in test))
            curves[kind].append(round(share_right(model, few, few.occurrence >= 2), 3))

    model, history = train_under(
        task,
        seed=seed,
        dim=dim,
        steps=steps,
        batch_size=batch_size,
        every=every,
        evaluation_size=64,
        at_probe=look,
    )
    test = tests["uniform"]
    changing = (test.occurrence >= 2) & (test.inputs != test.targets)
    right, tokens = is_right(model, test, changing).double(), test.targets[changing]
    n_right, n_all = (tokens.bincount(weights, task.vocab_size) for weights in (right, torch.ones_like(right)))
    trained_on = tests[outputs]
    trained_tokens = trained_on.targets[trained_on.occurrence >= 2]
    seen = trained_tokens.bincount(minlength=task.vocab_size).double() / len(trained_tokens)
    return {
        "probed": history.steps,
        "on_uniform": curves["uniform"],
        "on_bigram": curves["bigram"],
        "recall": {name: round(history.recall[name][-1], 3) for name in MEMORIES},
        "by_token": [round(value, 3) for value in (n_right / n_all).tolist()],
        "seen": [round(value, 5) for value in seen.tolist()],
    }


def feed_forward_run(
    condition: str,
    seed: int,
    *,
    length: int = 64,
    n_triggers: int = 5,
    dim: int = 96,
    batch_size: int = 64,
    steps: int = 400,
    every: int = 20,
) -> dict[str, Any]:
    """Figure 4, right: the loss on all tokens, with and without W_F, and each of W_O2 and W_F without the other.

    Args:
        condition: a key of `COMPETITION`.

    Returns:
        probed, and curves: accuracy; global_excess, the loss above its floor where there is no trigger;
        without_output2, the same with W_O2 taken out; without_feed_forward, accuracy with W_F taken out; kl, that of
        W_F; recall and signal by memory; cosine_output2 and cosine_feed_forward: of what was added, with the ideal.
    """
    _check_name("condition", condition, COMPETITION)
    options = COMPETITION[condition]
    task = stories_task(length, n_triggers, "fixed", 0, "uniform")
    test = task.sample(200, seeded(TEST_SEED + seed))
    repeated, free = test.occurrence >= 2, test.occurrence == 0
    floor = task.global_loss_floor(test.inputs, test.occurrence)
    curves: dict[str, list[float]] = {}
    start: dict[str, Tensor] = {}

    def global_excess(model: TokenModel) -> float:
        with torch.no_grad():
            return float(functional.cross_entropy(model(test.inputs, free), test.targets[free])) - floor

    def look(model: TokenModel) -> None:
        now = {"accuracy": share_right(model, test, repeated), "global_excess": global_excess(model)}
        with without(model, "output2"):
            now["without_output2"] = global_excess(model)
        if model.feed_forward is not None:
            with without(model, "feed_forward"):
                now["without_feed_forward"] = share_right(model, test, repeated)
        ideal = ideal_memories(model, task)
        for name in ("output2", "feed_forward"):
            if name in ideal:
                weight = getattr(model, name).detach()
                added = weight - start.setdefault(name, weight.clone())
                now[f"cosine_{name}"] = cosine(added, ideal[name]) if added.any() else 0.0
        for name, value in signal_to_noise(model, task).items():
            now[f"signal_{name}"] = value
        for name, value in now.items():
            curves.setdefault(name, []).append(round(value, 3))

    _, history = train_under(
        task,
        seed=seed,
        dim=dim,
        steps=steps,
        batch_size=batch_size,
        every=every,
        evaluation_size=64,
        at_probe=look,
        **options,
    )
    curves |= {f"recall_{name}": thin(history.recall[name], 1) for name in MEMORIES}
    if history.feed_forward_kl:
        curves["kl"] = thin(history.feed_forward_kl, 1)
    return {"probed": history.steps, **curves}


def model_run(
    architecture: str,
    seed: int,
    *,
    length: int = 64,
    n_triggers: int = 5,
    dim: int = 96,
    batch_size: int = 64,
    steps: int = 400,
    every: int = 10,
    keep_every: int = 2,
    learning_rate: float = LEARNING_RATE,
) -> dict[str, Any]:
    """The same task for another of the `ARCHITECTURES`: curves of accuracy and attention, and recalls at the end.

    Returns:
        probed, accuracy, previous (attention of the first layer to the token before), after (of the last layer, from
        repeated triggers to what followed them), recall (as far as there are memories), half and nine.
    """
    whole_number("keep_every", keep_every, minimum=1)
    task = stories_task(length, n_triggers, "fixed", 0, "uniform")
    _, history = train_under(
        task,
        seed=seed,
        dim=dim,
        steps=steps,
        batch_size=batch_size,
        every=every,
        architecture=architecture,
        learning_rate=learning_rate,
        evaluation_size=128,
    )
    return {
        "probed": history.steps[::keep_every],
        "accuracy": thin(history.in_context_accuracy, keep_every),
        "previous": thin(history.previous_token_attention, keep_every),
        "after": thin(history.after_trigger_attention, keep_every),
        "recall": {name: thin(values, keep_every) for name, values in history.recall.items()},
        "half": history.first_step("in_context_accuracy", 0.5),
        "nine": history.first_step("in_context_accuracy", 0.9),
    }
