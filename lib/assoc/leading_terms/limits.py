"""How far the theory carries: errors against bounds, where agreement ends, and what foretells it (paper A, App. D)."""

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from assoc.corpus import TokenSequences, load_corpus
from assoc.errors import InputError, finite_number, learning_rate_above_zero, whole_number
from assoc.leading_terms.ablation import frequency_terms
from assoc.leading_terms.basis import BasisFunctions, basis_functions
from assoc.leading_terms.conditions import all_leading_terms, clock, lowest_cosines
from assoc.leading_terms.corrections import feedback_descent, moments, output_corrections, value_corrections
from assoc.leading_terms.model import AttentionOnlyTransformer, gaussian_start
from assoc.leading_terms.products import loss_and_gradients
from assoc.leading_terms.theory import (
    KINDS,
    bounds_apply,
    error_bounds,
    gaussian_bounds_apply,
    leading_terms,
)
from assoc.leading_terms.training import cosine
from assoc.seeds import seeded

LEVELS = (0.99, 0.9)  # cosines whose crossing is called the end of agreement


def some_stories(
    vocab_size: int, length: int, n_sequences: int, seed: int, name_or_path: str = "stories"
) -> TokenSequences:
    """A random choice of a corpus's texts, rare words as `<unk>`. Raises InputError if there are too few."""
    corpus = load_corpus(name_or_path, vocab_size=vocab_size, length=length, unknown="map")
    n = whole_number("n_sequences", n_sequences, minimum=1)
    if n > len(corpus):
        raise InputError(f"n_sequences is {n}: at this length there are {len(corpus)}")
    return corpus.select(torch.randperm(len(corpus), generator=seeded(seed))[:n])


def descend(
    model: AttentionOnlyTransformer, inputs: Tensor, targets: Tensor, learning_rate: float, steps: int
) -> Iterator[float]:
    """Full-batch descent, W <- W - eta dL/dW; yields after every step, with the loss before it.

    Unlike `train` it stops between steps, so that a caller can look at the weights or go no further.

    Raises:
        InputError: the loss is not finite.
    """
    learning_rate_above_zero(learning_rate)
    for step in range(whole_number("steps", steps, minimum=1)):
        loss = loss_and_gradients(model, inputs, targets)
        if not math.isfinite(loss):
            raise InputError(f"the loss is not finite after {step} steps: lower the learning rate")
        with torch.no_grad():
            for weight in model.parameters():
                if weight.grad is not None:  # None for weights that somebody froze
                    weight -= learning_rate * weight.grad
        yield loss
    model.zero_grad(set_to_none=True)


def relative_error(weight: Tensor, predicted: Tensor) -> float:
    """|weight - predicted|/|weight| in Frobenius norm, in float64. Raises InputError if their shapes differ."""
    if weight.shape != predicted.shape:
        raise InputError(f"weight is {tuple(weight.shape)}, predicted {tuple(predicted.shape)}: give both of one shape")
    weight, predicted = weight.detach().double(), predicted.detach().double()
    return float((weight - predicted).norm() / weight.norm())


def time_past(times: Sequence[float], values: Sequence[float | None], level: float) -> float | None:
    """The first time at which values pass a level, linearly between records; None if they never do.

    Values that start above the level pass it by falling, others by rising. None among them are skipped.

    Raises:
        InputError: not one value for each time.
    """
    if len(times) != len(values):
        raise InputError(f"{len(times)} times and {len(values)} values: give one value for each time")
    known = [(t, v) for t, v in zip(times, values, strict=True) if v is not None and math.isfinite(v)]
    for (t0, v0), (t1, v1) in pairwise(known):
        if (v0 - level) * (v1 - level) <= 0 and v0 != v1:
            return t0 + (t1 - t0) * (v0 - level) / (v0 - v1)
    return None


def spread(numbers: Sequence[float]) -> float:
    """Coefficient of variation: standard deviation over mean, of numbers above zero. Raises InputError below two."""
    if len(numbers) < 2:
        raise InputError(f"a spread needs at least two numbers; got {len(numbers)}")
    values = torch.tensor(numbers, dtype=torch.float64)
    return float(values.std() / values.mean())


# Errors and bounds


def error_table(
    model: AttentionOnlyTransformer, basis: BasisFunctions, steps: int, learning_rate: float
) -> dict[str, dict[str, float]]:
    """Kind of weight -> error, term, bound (Frobenius norms) and cosine of the worst layer, after s steps from zero."""
    terms = leading_terms(basis, steps, learning_rate)
    bounds = error_bounds(steps, learning_rate, model.length, model.n_layers)
    lowest = lowest_cosines(model, all_leading_terms(basis))
    table = {}
    for kind, weights in model.weights().items():
        error = max(float((weight.detach().double() - terms[kind]).norm()) for weight in weights)
        table[kind] = {
            "error": error,
            "term": float(terms[kind].norm()),
            "bound": getattr(bounds, kind),
            "cosine": lowest[kind],
        }
    return table


def bounds_point(
    vocab_size: int,
    length: int,
    n_sequences: int,
    n_layers: int,
    learning_rate: float,
    record_at: Sequence[int],
    seed: int,
) -> dict[str, Any]:
    """One learning rate of the map of errors and bounds (Theorems D.7 and D.10), in float64.

    Args:
        record_at: numbers of steps at which to look, 3 or more (attention is zero before).

    Returns:
        records: for each, steps, time s eta, proved (`bounds_apply`), and `error_table`.
    """
    if not record_at or min(record_at) < 3:
        raise InputError(f"record_at is {list(record_at)}: give numbers of steps, each 3 or more")
    data = some_stories(vocab_size, length, n_sequences, seed)
    basis = basis_functions(data.inputs, data.targets, vocab_size)
    model = AttentionOnlyTransformer(vocab_size, length, n_layers, dtype=torch.float64)
    found = []
    for step, _ in enumerate(descend(model, data.inputs, data.targets, learning_rate, max(record_at)), 1):
        if step in record_at:
            proved = bounds_apply(step, learning_rate, length, vocab_size, n_layers)
            table = error_table(model, basis, step, learning_rate)
            found.append({"steps": step, "time": step * learning_rate, "proved": int(proved), "kinds": table})
    return {"records": found}


def start_point(
    vocab_size: int,
    length: int,
    n_sequences: int,
    n_layers: int,
    learning_rate: float,
    steps: int,
    scale: float,
    seed: int,
) -> dict[str, Any]:
    """A Gaussian start (Theorem D.13) of scale v = `scale` times the largest the theorem allows, eta^2/T^2; float64.

    Returns:
        proved: whether all conditions of D.13 hold. largest: eta^2/T^2. kinds: `error_table` after s steps.
    """
    data = some_stories(vocab_size, length, n_sequences, seed)
    basis = basis_functions(data.inputs, data.targets, vocab_size)
    model = AttentionOnlyTransformer(vocab_size, length, n_layers, dtype=torch.float64)
    largest = learning_rate_above_zero(learning_rate) ** 2 / length**2
    scale = finite_number("scale", scale, minimum=0)
    gaussian_start(model, scale * largest, seeded(seed + 1))
    for _ in descend(model, data.inputs, data.targets, learning_rate, steps):
        pass
    proved = gaussian_bounds_apply(steps, learning_rate, length, vocab_size, n_layers, scale * largest)
    return {
        "proved": int(proved),
        "largest": largest,
        "time": steps * learning_rate,
        "kinds": error_table(model, basis, steps, learning_rate),
    }


# Where agreement ends


def _cosine_or_none(weight: Tensor, term: Tensor) -> float | None:
    """Cosine, or None where a prediction has blown up."""
    return cosine(weight, term) if bool(weight.isfinite().all()) and float(weight.abs().max()) < 1e15 else None


def reach_point(
    vocab_size: int,
    length: int,
    n_sequences: int,
    n_layers: int,
    learning_rate: float,
    steps: int,
    seed: int,
    dtype: str = "float32",
) -> dict[str, Any]:
    """One training run from zero, watched against the leading terms and what is known beyond them.

    Returns, with lists over the records from step 3 on:
        times: s eta. loss.
        clock: theta per unit of s eta. frequency_level: kind -> cosine of the frequency terms with the leading terms.
        cosine, beyond: kind -> lowest cosine over layers; beyond word frequencies in the second.
        predicted: what the corpus alone says the cosine of output and value will be: "next order" with the corrections
            complete to eta^3 and eta^4, "feedback" with all orders of the feedback (`feedback_descent`).
        errors: relative errors of output and value (worst layer) against "leading", "next order" and "feedback".
    """
    if dtype not in ("float32", "float64"):
        raise InputError(f"dtype is {dtype!r}: choose 'float32' or 'float64'")
    data = some_stories(vocab_size, length, n_sequences, seed)
    x, y = data.inputs, data.targets
    basis, statistics = basis_functions(x, y, vocab_size), moments(x, y, vocab_size, max(2, n_layers))
    by_frequency, terms = frequency_terms(basis, x, y), all_leading_terms(basis)
    precision = getattr(torch, dtype)
    model = AttentionOnlyTransformer(vocab_size, length, n_layers, dtype=precision)
    theory = feedback_descent(statistics, n_layers, learning_rate, steps, precision)
    found: dict[str, Any] = {
        "clock": clock(basis, n_layers),
        "frequency_level": {kind: cosine(by_frequency[kind], terms[kind]) for kind in KINDS},
        "times": [],
        "loss": [],
        "cosine": {kind: [] for kind in KINDS},
        "beyond": {kind: [] for kind in KINDS},
        "predicted": {name: {"output": [], "value": []} for name in ("next order", "feedback")},
        "errors": {name: {"output": [], "value": []} for name in ("leading", "next order", "feedback")},
    }
    for s, loss in enumerate(descend(model, x, y, learning_rate, steps), 1):
        output, values = next(theory)
        if s < 3:
            continue
        found["times"].append(s * learning_rate)
        found["loss"].append(loss)
        for name, without in (("cosine", None), ("beyond", by_frequency)):
            for kind, value in lowest_cosines(model, terms, without).items():
                found[name][kind].append(value)
        expected = leading_terms(basis, s, learning_rate)
        corrected = {
            "output": [expected["output"] + sum(output_corrections(statistics, n_layers, s, learning_rate).values())]
        }
        corrected["value"] = [
            expected["value"] + sum(value_corrections(statistics, n_layers, l, s, learning_rate).values())
            for l in range(1, n_layers + 1)
        ]
        summed = {"output": [output], "value": values}
        for kind in ("output", "value"):
            weights = model.weights()[kind]
            predictions = {
                "leading": [expected[kind]] * len(weights),
                "next order": corrected[kind],
                "feedback": summed[kind],
            }
            for name, predicted in predictions.items():
                errors = [relative_error(w, p) for w, p in zip(weights, predicted, strict=True)]
                found["errors"][name][kind].append(max(errors) if math.isfinite(sum(errors)) else None)
                if name != "leading":
                    cosines = [_cosine_or_none(p, terms[kind]) for p in predicted]
                    found["predicted"][name][kind].append(None if None in cosines else min(cosines))
    return found
