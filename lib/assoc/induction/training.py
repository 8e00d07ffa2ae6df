"""Training on fresh sequences, with the probes that show the induction head being born (paper B, Section 5)."""

import json
import math
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from itertools import chain
from numbers import Real
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from assoc.errors import InputError, finite_number, learning_rate_above_zero, whole_number
from assoc.files import write_json
from assoc.induction.memory import (
    after_trigger_attention,
    feed_forward_kl,
    previous_token_attention,
    recalls,
)
from assoc.induction.model import AssociativeTransformer, TokenModel
from assoc.induction.task import Batch, BigramTask
from assoc.progress import progress

MAP_ENTRIES = 2**21
"""Entries of the attention maps that are computed at once in training: 8 MB, which a processor's cache holds."""


@dataclass
class InductionHistory:
    """What the probes saw, all on one batch that is never trained on; entry i belongs to `steps[i]` completed updates.

    Attributes:
        steps: number of updates made before each probe; the first is 0.
        in_context_accuracy: share of repeated output positions (occurrence >= 2) whose output is predicted.
        in_context_loss: mean cross-entropy there, in nats.
        global_loss: mean cross-entropy where the input is no trigger (occurrence 0), in nats.
        recall: memory -> its recall, see `assoc.induction.recalls`.
        previous_token_attention: mean attention of layer 1 from t to t - 1.
        after_trigger_attention: mean attention of the last layer, at repeated output positions, to the places that
            follow an earlier occurrence of the same token.
        feed_forward_kl: nats, see `assoc.induction.feed_forward_kl`; empty without feed-forward matrix, or if every
            token is a trigger.
        seconds: time since the start.
        global_loss_floor: what `global_loss` would be with pi_b known exactly.
        bigram_accuracy: `in_context_accuracy` of the likeliest successor under pi_b, a predictor without context.
        snapshots: step -> the attention maps of the probe sequences at that step.
    """

    steps: list[int] = field(default_factory=list)
    in_context_accuracy: list[float] = field(default_factory=list)
    in_context_loss: list[float] = field(default_factory=list)
    global_loss: list[float] = field(default_factory=list)
    recall: dict[str, list[float]] = field(default_factory=dict)
    previous_token_attention: list[float] = field(default_factory=list)
    after_trigger_attention: list[float] = field(default_factory=list)
    feed_forward_kl: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    global_loss_floor: float = math.nan
    bigram_accuracy: float = math.nan
    snapshots: dict[int, tuple[Tensor, ...]] = field(default_factory=dict)

    def series(self, name: str) -> list[float]:
        """The values of one probe by its attribute's name, or of a recall by its memory's name ("key1", ..).

        Raises:
            InputError: no such series in this history.
        """
        if name in self.recall:
            return self.recall[name]
        if isinstance(values := getattr(self, name, None), list):
            return values
        names = [key for key, value in vars(self).items() if isinstance(value, list)]
        raise InputError(f"no series {name!r} in this history: choose one of {', '.join([*names, *self.recall])}")

    def first_step(self, name: str, threshold: float, *, falling: bool = False) -> int | None:
        """The first probed step at which a series is at least the threshold (`falling`: at most), or None if never."""
        for step, value in zip(self.steps, self.series(name), strict=True):
            if value <= threshold if falling else value >= threshold:
                return step
        return None

    def at_step(self, name: str, step: int) -> float:
        """The value of a series at a probed step. Raises InputError if that step was not probed."""
        if step not in self.steps:
            raise InputError(f"step {step} was not probed: choose one of {self.steps}")
        return self.series(name)[self.steps.index(step)]

    def to_dict(self) -> dict[str, Any]:
        """Everything but the snapshots, as plain numbers and lists; None where there was nothing to measure."""
        return {key: _none_for_nan(value) for key, value in vars(self).items() if key != "snapshots"}

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> "InductionHistory":
        """The history of a `to_dict`, or of a file written by the command line; other entries are ignored.

        Raises:
            InputError: an entry is missing, or does not hold numbers, one for each step.
        """
        blank = vars(cls())
        names = blank.keys() - {"snapshots"}
        if missing := names - content.keys():
            raise InputError(f"there is no {', no '.join(sorted(missing))}: give what `save` wrote")
        history = cls(**{name: _nan_for_none(content[name]) for name in names})
        series = [getattr(history, name) for name, value in blank.items() if isinstance(value, list)]
        series += history.recall.values() if isinstance(history.recall, dict) else [None]
        if not all(isinstance(values, list) and len(values) in (0, len(history.steps)) for values in series):
            raise InputError("a series does not hold one number for each step: give what `save` wrote")
        numbers = chain(*series, [history.global_loss_floor, history.bigram_accuracy])
        if not all(isinstance(number, Real) for number in numbers):
            raise InputError("an entry is not made of numbers: give what `save` wrote")
        return history

    def save(self, path: str | Path) -> Path:
        """Write `to_dict` as JSON, atomically."""
        return write_json(path, self.to_dict())

    @classmethod
    def load(cls, path: str | Path) -> "InductionHistory":
        """Read what `save` or the command line wrote. Raises InputError if there is no such file, or another kind."""
        try:
            return cls.from_dict(json.loads(Path(path).read_text()))
        except (OSError, ValueError, AttributeError) as error:
            raise InputError(f"cannot read a history from '{path}': {error}") from error


def train_induction(
    model: TokenModel,
    task: BigramTask,
    *,
    steps: int,
    batch_size: int,
    learning_rate: float,
    momentum: float = 0.9,
    weight_decay: float = 1e-4,
    frozen_until: Mapping[str, int] | None = None,
    loss_on: Literal["repeated", "all"] = "repeated",
    generator: torch.Generator | None = None,
    evaluate_every: int = 10,
    evaluation_size: int = 256,
    probe_inputs: Tensor | None = None,
    snapshot_steps: Collection[int] = (),
    at_probe: Callable[[], None] | None = None,
    description: str = "training",
) -> InductionHistory:
    """Train a model of this package in place by SGD with momentum on fresh sequences, as in Section 5 of paper B.

    Args:
        model: its parameters with requires_grad train.
        task: where the sequences come from.
        steps: number of updates. batch_size: sequences per update.
        learning_rate, momentum, weight_decay: of `torch.optim.SGD`.
        frozen_until: name of a parameter -> the step until which it keeps its value, bit by bit; 0 freezes nothing, a
            number of at least `steps` freezes it for good.
        loss_on: the positions in the loss. "repeated": output positions from the trigger's second occurrence on, where
            the context knows the answer. "all": every position, so that global bigrams are learned too.
        generator: source of all sequences, those for the probes first. Default: torch's global one.
        evaluate_every: probe at step 0, every so many steps, and at the last.
        evaluation_size: sequences that the probes use.
        probe_inputs: sequences (B, T) whose attention maps are kept in `snapshots` at each of `snapshot_steps`.
        at_probe: called with every probe, for measurements of one's own; it must leave the model as it is, and draw
            nothing from `generator`.
        description: of the progress bar.

    Returns:
        The history of the probes.

    Raises:
        InputError: numbers out of range, an unknown name in frozen_until, model and task of different sizes, a model
            without parameters that train or with weights that are not finite, or a loss that is no longer finite (the
            model is left as it then was).
    """
    trained = model.trained_parameters()
    if not trained:
        raise InputError("no weight of this model has requires_grad, so that nothing trains: make a new model")
    _check_sizes(model, task)
    model.check_finite()
    steps, batch_size = whole_number("steps", steps, minimum=1), whole_number("batch_size", batch_size, minimum=1)
    evaluate_every = whole_number("evaluate_every", evaluate_every, minimum=1)
    evaluation_size = whole_number("evaluation_size", evaluation_size, minimum=1)
    learning_rate = learning_rate_above_zero(learning_rate)
    if not isinstance(momentum, Real) or not 0 <= momentum < 1:
        raise InputError(f"momentum is {momentum!r}: give a number from 0 to below 1")
    weight_decay = finite_number("weight_decay", weight_decay, minimum=0, maximum=1)
    if loss_on not in ("repeated", "all"):
        raise InputError(f"loss_on is {loss_on!r}: choose 'repeated' or 'all'")
    frozen_until = {} if frozen_until is None else frozen_until
    if not isinstance(frozen_until, Mapping):
        raise InputError(f"frozen_until is {frozen_until!r}: give the step for each name, as in {{'output2': 200}}")
    for name in frozen_until:
        if name not in trained:
            raise InputError(f"frozen_until names {name!r}, which does not train: choose from {', '.join(trained)}")
    frozen_until = {name: whole_number(f"frozen_until[{name!r}]", until, 0) for name, until in frozen_until.items()}
    if not isinstance(snapshot_steps, Collection):
        raise InputError(f"snapshot_steps is {snapshot_steps!r}: give a list of steps")
    for step in snapshot_steps:
        if whole_number("each of snapshot_steps", step, minimum=0) > steps:
            raise InputError(f"snapshot_steps hold {step}: give steps up to the last, {steps}")
    if snapshot_steps and probe_inputs is None:
        raise InputError("snapshot_steps needs probe_inputs: the sequences whose attention is kept")

    evaluation = task.sample(evaluation_size, generator)
    if not (evaluation.occurrence >= 2).any():
        raise InputError("no trigger occurs twice in the sequences: use a greater length, or more or commoner triggers")
    history = _new_history(task, evaluation)
    optimizer = torch.optim.SGD(trained.values(), lr=learning_rate, momentum=momentum, weight_decay=weight_decay)
    started = time.perf_counter()

    def look(step: int) -> None:
        if step % evaluate_every == 0 or step == steps:
            _probe(model, task, evaluation, history, step)
            history.steps.append(step)
            history.seconds.append(time.perf_counter() - started)
            if at_probe is not None:
                at_probe()
        if step in snapshot_steps:
            history.snapshots[step] = model.attention_maps(probe_inputs)

    try:
        look(0)
        for step in progress(range(steps), description):
            for name, parameter in trained.items():
                # Without gradient the optimizer passes a parameter over: no weight decay and no momentum either.
                parameter.requires_grad_(step >= frozen_until.get(name, 0))
            _update(model, optimizer, task.sample(batch_size, generator), loss_on, step)
            look(step + 1)
    finally:
        for parameter in trained.values():
            parameter.requires_grad_(True)
            parameter.grad = None
    return history


def _update(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Batch, loss_on: str, step: int) -> None:
    counts = torch.ones_like(batch.targets, dtype=torch.bool) if loss_on == "all" else batch.occurrence >= 2
    optimizer.zero_grad()
    if not counts.any() or not any(parameter.requires_grad for parameter in model.parameters()):
        return  # nothing to learn from in this batch, or nothing that learns
    n_counted = int(counts.sum())
    parts = zip(*map(in_parts, (batch.inputs, batch.targets, counts)), strict=True)
    for inputs, targets, at in parts:
        if at.any():
            share = int(at.sum()) / n_counted
            loss = share * functional.cross_entropy(model(inputs, at), targets[at])
            _check_loss(loss, step)
            loss.backward()
    optimizer.step()


def in_parts(tensor: Tensor) -> tuple[Tensor, ...]:
    """Sequences (B, T) in parts whose attention maps stay in the processor's cache.

    Gradients of parts add up to that of the batch. At T = 256 this halves the time of a step; batches of up to 512
    sequences of 64 stay whole.
    """
    return tensor.split(max(1, MAP_ENTRIES // tensor.shape[1] ** 2))


def _new_history(task: BigramTask, evaluation: Batch) -> InductionHistory:
    repeated = evaluation.occurrence >= 2
    guessed = task.bigram_predictions(evaluation.inputs) == evaluation.targets
    return InductionHistory(
        global_loss_floor=task.global_loss_floor(evaluation.inputs, evaluation.occurrence),
        bigram_accuracy=float(guessed[repeated].double().mean()),
    )


def _probe(model: TokenModel, task: BigramTask, evaluation: Batch, history: InductionHistory, step: int) -> None:
    inputs, targets, occurrence = evaluation
    with torch.no_grad():
        logits, attentions = model.trace(inputs)
        losses = functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none").view_as(targets)
        _check_loss(losses, step)
        repeated = occurrence >= 2
        history.in_context_accuracy.append(float((logits.argmax(-1) == targets)[repeated].double().mean()))
        history.in_context_loss.append(float(losses[repeated].mean()))
        history.global_loss.append(float(losses[occurrence == 0].mean()))
        # With several heads, the one that looks most where an induction head would.
        first, last = (maps.unsqueeze(1) if maps.ndim == 3 else maps for maps in (attentions[0], attentions[-1]))
        history.previous_token_attention.append(max(previous_token_attention(maps) for maps in first.unbind(1)))
        history.after_trigger_attention.append(
            max(after_trigger_attention(maps, inputs, occurrence) for maps in last.unbind(1))
        )
    for name, value in recalls(model, task).items():
        history.recall.setdefault(name, []).append(value)
    has_other_tokens = task.fixed_triggers is None or len(task.fixed_triggers) < task.vocab_size
    if isinstance(model, AssociativeTransformer) and model.feed_forward is not None and has_other_tokens:
        history.feed_forward_kl.append(feed_forward_kl(model, task))


def _none_for_nan(value: Any) -> Any:
    """JSON knows no NaN, which stands for a mean over no position at all."""
    if isinstance(value, dict):
        return {key: _none_for_nan(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_none_for_nan(item) for item in value]
    return None if isinstance(value, float) and math.isnan(value) else value


def _nan_for_none(value: Any) -> Any:
    """Undoes `_none_for_nan`."""
    if isinstance(value, dict):
        return {key: _nan_for_none(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_nan_for_none(item) for item in value]
    return math.nan if value is None else value


def _check_loss(loss: Tensor, step: int) -> None:
    if not torch.isfinite(loss).all():
        if step == 0:
            raise InputError(
                "the loss is not finite before the first step, the weights are too large: make a new model"
            )
        raise InputError(f"the loss is no longer finite after step {step}: use a lower learning rate")


def _check_sizes(model: TokenModel, task: BigramTask) -> None:
    if model.vocab_size != task.vocab_size or model.length < task.length:
        raise InputError(
            f"the model has vocab_size {model.vocab_size} and length {model.length}, the task {task.vocab_size} and "
            f"{task.length}: make the model with the task's vocab_size and length"
        )
