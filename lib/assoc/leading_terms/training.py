"""Gradient descent on the attention-only transformer, watched against its leading terms (paper A, Section 5.1)."""

import math
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from assoc import distributed
from assoc.errors import InputError, learning_rate_above_zero, whole_number
from assoc.leading_terms.basis import BasisFunctions, check_tokens
from assoc.leading_terms.checkpoint import load, run_identity, save
from assoc.leading_terms.model import AttentionOnlyTransformer
from assoc.leading_terms.products import loss_and_gradients
from assoc.progress import progress


def cosine(a: Tensor, b: Tensor) -> float:
    """Frobenius cosine <a, b>/(|a| |b|) of two tensors of one shape, in float64; nan if either is zero.

    Each tensor is divided by its largest entry first: attention weights are of order eta^4, and their squares would
    otherwise underflow for small eta.
    """
    if a.shape != b.shape:
        raise InputError(f"cosine needs two tensors of one shape; got {tuple(a.shape)} and {tuple(b.shape)}")
    a, b = (tensor.detach().double().flatten() for tensor in (a, b))
    if not a.numel():
        raise InputError("cosine needs tensors with at least one entry; these are empty")
    if not (a.isfinite().all() and b.isfinite().all()):
        raise InputError("cosine needs finite numbers: look for the NaN or infinity before comparing")
    if not (a.any() and b.any()):
        return math.nan
    a, b = a / a.abs().max(), b / b.abs().max()
    return float(a @ b / (a.norm() * b.norm()))


class Agreement(NamedTuple):
    """How one weight compares with its leading term K: cosine, and the coefficient <weight, K>/<K, K> along it."""

    kind: str  # "output", "value", "attention" or "position"
    layer: int  # counted from 1, as in the paper; the output matrix comes after the last layer, and has layer 0
    cosine: float
    coefficient: float


def compare_with_leading_terms(model: AttentionOnlyTransformer, basis: BasisFunctions) -> list[Agreement]:
    """Every weight of the model against its leading term; the theory says: cosine 1, coefficient `step_coefficients`.

    Raises:
        InputError: a weight holds a number that is not finite, or the sizes of model and basis differ.
    """
    agreements = []
    for kind, weights in model.weights().items():
        term = basis.leading_term(kind)
        for layer, weight in enumerate(weights, start=0 if kind == "output" else 1):
            if not weight.isfinite().all():
                raise InputError(
                    f"the {kind} weight of layer {layer} is not finite: train with a smaller learning rate"
                )
            if weight.shape != term.shape:
                raise InputError(
                    f"the model's {kind} weight is {tuple(weight.shape)}, its leading term {tuple(term.shape)}: "
                    "compute the basis functions with the model's vocabulary size and length"
                )
            coefficient = float((weight.detach().double() * term).sum() / (term * term).sum())
            agreements.append(Agreement(kind, layer, cosine(weight, term), coefficient))
    return agreements


@dataclass
class TrainingHistory:
    """What `train` saw.

    Attributes:
        learning_rate: eta.
        steps: how many steps had been taken at each record, ascending.
        loss: mean cross-entropy in nats at each record: with full batches, of the whole data; else of the next batch.
        agreements: at each record, every weight against its leading term (empty without `basis`).
    """

    learning_rate: float
    steps: list[int] = field(default_factory=list)
    loss: list[float] = field(default_factory=list)
    agreements: list[list[Agreement]] = field(default_factory=list)

    @property
    def training_time(self) -> list[float]:
        """s eta at each record: the paper's clock."""
        return [steps * self.learning_rate for steps in self.steps]

    def weights(self) -> list[tuple[str, int]]:
        """Kind and layer of every weight watched."""
        return [(agreement.kind, agreement.layer) for agreement in self.agreements[0]] if self.agreements else []

    def _check_watched(self) -> None:
        if not self.agreements:
            raise InputError("this history compares no weights with leading terms: pass basis= to train")

    def _series(self, kind: str, layer: int, what: str) -> list[float]:
        self._check_watched()
        if (kind, layer) not in self.weights():
            raise InputError(f"no {kind} weight of layer {layer} was watched; there are: {self.weights()}")
        place = self.weights().index((kind, layer))
        return [getattr(record[place], what) for record in self.agreements]

    def cosines(self, kind: str, layer: int = 0) -> list[float]:
        """Cosine of one weight with its leading term at each record (nan while the weight is zero)."""
        return self._series(kind, layer, "cosine")

    def coefficients(self, kind: str, layer: int = 0) -> list[float]:
        """Coefficient of one weight along its leading term at each record."""
        return self._series(kind, layer, "coefficient")

    def smallest_cosine(self, kind: str, training_time: float = math.inf) -> float:
        """Smallest cosine over layers and records up to a training time s eta, while weights are zero left out."""
        self._check_watched()
        cosines = [
            agreement.cosine
            for time, record in zip(self.training_time, self.agreements, strict=True)
            if time <= training_time * (1 + 1e-12)
            for agreement in record
            if agreement.kind == kind and not math.isnan(agreement.cosine)
        ]
        if not cosines:
            raise InputError(f"no {kind} weight moved up to s eta = {training_time}")
        return min(cosines)

    def as_dict(self) -> dict[str, Any]:
        """The history as plain lists and numbers, for JSON; a cosine that is not defined yet is None."""
        content = asdict(self)
        content["agreements"] = [
            [
                {key: None if value != value else value for key, value in agreement._asdict().items()}
                for agreement in record
            ]
            for record in self.agreements
        ]
        return content

    @classmethod
    def from_dict(cls, content: dict[str, Any]) -> "TrainingHistory":
        """The history that `as_dict` turned into plain lists and numbers. Raises InputError for anything else."""

        def agreement(entry: dict[str, Any]) -> Agreement:
            return Agreement(**{key: math.nan if value is None else value for key, value in entry.items()})

        try:
            agreements = [[agreement(entry) for entry in record] for record in content["agreements"]]
            return cls(content["learning_rate"], list(content["steps"]), list(content["loss"]), agreements)
        except (KeyError, TypeError, AttributeError) as error:
            raise InputError(f"this is no training history ({error}): give what as_dict returned") from error


class Batches:
    """Which sequences each step uses: all, or batches of a fresh shuffle an epoch (a short rest is left out).

    Args:
        n_sequences: N. batch_size: None for all. generator: of the shuffles; None for torch's global one.
    """

    def __init__(self, n_sequences: int, batch_size: int | None, generator: torch.Generator | None) -> None:
        self.n_sequences, self.batch_size, self.generator = n_sequences, batch_size, generator
        self.order, self.place = torch.arange(0), 0

    def next(self) -> Tensor:
        """The numbers of the next step's sequences."""
        if self.batch_size is None:
            return torch.arange(self.n_sequences)
        if self.place + self.batch_size > len(self.order):
            self.order, self.place = torch.randperm(self.n_sequences, generator=self.generator), 0
        self.place += self.batch_size
        return self.order[self.place - self.batch_size : self.place]

    def state(self) -> dict[str, Any]:
        """All that decides the batches to come, for `restore`."""
        random = None if self.generator is None else self.generator.get_state()
        return {"order": self.order, "place": self.place, "generator": random}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on where `state` was taken."""
        self.order, self.place = state["order"], state["place"]
        if self.generator is not None:
            self.generator.set_state(state["generator"])


def shared_loss_and_gradients(model: AttentionOnlyTransformer, inputs: Tensor, targets: Tensor) -> float:
    """`loss_and_gradients` of a batch of which each process (`assoc.distributed`) computes its share.

    The mean over the batch is the sum of the shares' means, weighted by their sizes.
    """
    if distributed.count() == 1:
        return loss_and_gradients(model, inputs, targets)
    own = distributed.share(len(inputs))
    weight = (own.stop - own.start) / len(inputs)
    loss = torch.zeros((), dtype=torch.float64, device=model.output.device)
    if weight:
        loss += weight * loss_and_gradients(model, inputs[own], targets[own])
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    for parameter in trained:
        parameter.grad = parameter.grad.mul_(weight) if weight else torch.zeros_like(parameter)
    distributed.add_up([loss, *(parameter.grad for parameter in trained)])
    return loss.item()


def train(
    model: AttentionOnlyTransformer,
    inputs: Tensor,
    targets: Tensor,
    learning_rate: float,
    steps: int,
    batch_size: int | None = None,
    generator: torch.Generator | None = None,
    basis: BasisFunctions | None = None,
    record_every: int = 1,
    show_progress: bool = True,
    checkpoint: str | Path | None = None,
    checkpoint_every: int = 1,
) -> TrainingHistory:
    """Gradient descent W <- W - eta dL/dW on all weights at once, without momentum (paper A, Section 5.1).

    Where `assoc.distributed.processes()` joins several processes, all call this with the same arguments, each computes
    its share of every batch, and all end with the same weights.

    Args:
        model: trained in place. inputs, targets: int64 (N, T).
        learning_rate: eta. steps: s.
        batch_size: None for full-batch descent, as in the theorems; else batches of a fresh shuffle an epoch.
        generator: makes the shuffles repeatable.
        basis: basis functions of the data; with them, every record compares all weights with their leading terms.
        record_every: steps between records. The start and the end are always recorded.
        checkpoint: a file that keeps the state of the run. If it is there already, the run goes on from it, on the same
            machine with the same numbers to the last bit; the model and the generator take what it holds.
        checkpoint_every: steps from one writing of that file to the next. The end is always written.

    Raises:
        InputError: sizes that do not fit, a loss that is not finite, or the checkpoint of another run.
    """
    check_tokens(inputs, targets, model.vocab_size)
    learning_rate_above_zero(learning_rate)
    whole_number("steps", steps, minimum=1)
    whole_number("record_every", record_every, minimum=1)
    whole_number("checkpoint_every", checkpoint_every, minimum=1)
    if batch_size is not None and (batch_size := whole_number("batch_size", batch_size, minimum=1)) > len(inputs):
        raise InputError(f"batch_size is {batch_size}: give at most the number of sequences, {len(inputs)}")
    if batch_size is not None and generator is None and (checkpoint is not None or distributed.count() > 1):
        raise InputError("shuffles must be repeatable here: pass generator=")
    settings = {"learning_rate": float(learning_rate), "batch_size": batch_size, "record_every": record_every}
    identity = run_identity(model, inputs, targets, watched=basis is not None, **settings)
    distributed.check_same("what they train", repr(identity))

    history, batches, start = TrainingHistory(learning_rate), Batches(len(inputs), batch_size, generator), 0
    if checkpoint is not None and (state := load(checkpoint := Path(checkpoint), identity, model)) is not None:
        start, history = state["step"], TrainingHistory.from_dict(state["history"])
        batches.restore(state["batches"])
        if start > steps:
            raise InputError(f"'{checkpoint}' is {start} steps far: ask for at least as many, or choose another file")
    marks = range(start, steps + 1)
    for step in progress(marks, "training", total=len(marks)) if show_progress else marks:
        if checkpoint is not None and step > start and (step % checkpoint_every == 0 or step == steps):
            state = {"step": step, "history": history.as_dict(), "batches": batches.state()}
            save(checkpoint, identity, model, state)
        chosen = batches.next().to(inputs.device)
        loss = shared_loss_and_gradients(model, inputs[chosen], targets[chosen])
        if not math.isfinite(loss):
            raise InputError(f"the loss is not finite after {step} steps: check the weights or lower the learning rate")
        if step % record_every == 0 or step == steps:
            history.steps.append(step)
            history.loss.append(loss)
            if basis is not None:
                history.agreements.append(compare_with_leading_terms(model, basis))
        if step < steps:
            with torch.no_grad():
                for weight in model.parameters():
                    if weight.grad is not None:  # None for weights that somebody froze
                        weight -= learning_rate * weight.grad
    model.zero_grad(set_to_none=True)
    return history
