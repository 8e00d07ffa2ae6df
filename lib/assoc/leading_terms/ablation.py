"""Taking leading terms out of trained weights (paper A, Table 3), with controls that say what was taken.

A trained weight M and its leading term K, both over words, give the projection (<M, K>/<K, K>) K. Table 3 subtracts it
from one matrix at a time. Whether that hurts because of *this* direction, and because of what in it, needs more
subtractions of other parts of the same size: see `parts`.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from assoc.errors import InputError, finite_number
from assoc.leading_terms.basis import BasisFunctions, attention_and_position
from assoc.leading_terms.model import AttentionOnlyTransformer
from assoc.leading_terms.products import mean_loss
from assoc.leading_terms.recovery import against_frequencies
from assoc.leading_terms.theory import KINDS
from assoc.leading_terms.training import cosine

PARTS = ("leading term", "its frequencies", "its associations", "shuffled words", "random")
"""What `parts` takes from a weight, in the order in which tables show it."""


def projection(weight: Tensor, term: Tensor) -> Tensor:
    """(<weight, term>/<term, term>) term, the part of a weight that lies along its leading term (Table 3), in float64.

    Raises:
        InputError: shapes differ, the term is zero, or a number is not finite.
    """
    if weight.shape != term.shape:
        raise InputError(f"weight and term must have one shape; got {tuple(weight.shape)} and {tuple(term.shape)}")
    w, k = weight.detach().double(), term.detach().double()
    if not (w.isfinite().all() and k.isfinite().all()):
        raise InputError("weight and term must hold finite numbers")
    if not k.any():
        raise InputError("the leading term is zero: nothing can be projected onto it")
    k = k / k.abs().max()  # squares of the smallest terms would underflow
    return (w * k).sum() / (k * k).sum() * k


def remove_projection(weight: Tensor, term: Tensor, share: float = 1.0) -> Tensor:
    """weight - share (<weight, term>/<term, term>) term: what is left without its leading term (paper A, Table 3), in
    the weight's dtype.

    Args:
        share: 1 takes the whole projection, as the paper does; 0 nothing; 2 turns its sign around.

    Raises:
        InputError: shapes differ, the term is zero, or a number is not finite.
    """
    share = finite_number("share", share)
    return (weight.detach().double() - share * projection(weight, term)).to(weight.dtype)


def shuffled_words(table: Tensor, generator: torch.Generator) -> Tensor:
    """The same table with its words renamed: rows by one random permutation, columns by another; a vector by one.

    Norm and singular values stay; which word goes with which is lost.
    """
    for dim in range(table.ndim):
        table = table.index_select(dim, torch.randperm(table.shape[dim], generator=generator))
    return table


def random_direction(shape: Sequence[int], norm: float, generator: torch.Generator) -> Tensor:
    """A tensor of independent Gaussian entries scaled to a Frobenius norm, float64."""
    direction = torch.randn(*shape, generator=generator, dtype=torch.float64)
    return direction * (norm / direction.norm())


def frequency_terms(basis: BasisFunctions, inputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
    """The leading terms of a corpus of which only word frequencies are known: kind of weight -> tensor, float64.

    With p, q the frequencies of the inputs and of the targets, u = (1/V, .., 1/V) and m the mean share of each word in
    a prefix, B becomes p (q - u)' and Phi becomes (q - u) m', both of rank one (`recovery.against_frequencies`). Of
    the true B and S stays what looks these up: the value term is (m (q - u)') B', the attention and position terms
    come from S (q - u) m'.

    Args:
        basis: `basis_functions(inputs, targets, V)` of the same data.
    """
    without = against_frequencies(basis, inputs, targets)
    context = basis.context - without.context
    attention, position = attention_and_position(inputs, targets, basis.interchangeability @ context)
    return {
        "output": basis.bigram - without.bigram,
        "value": context.T @ basis.bigram.T,
        "attention": attention,
        "position": position,
    }


def parts(weight: Tensor, term: Tensor, by_frequency: Tensor, generator: torch.Generator) -> dict[str, Tensor]:
    """What an ablation may subtract from one weight: name, one of `PARTS`, -> tensor in float64.

    "leading term": the projection on the term, as in Table 3. "its frequencies" and "its associations": the projection
    on the term's part along `by_frequency` and on the rest of the term; these two are orthogonal. "shuffled words": the
    projection with its words renamed. "random": a random direction. The last two have the norm of the projection.
    """
    along = projection(weight, term)
    return {
        "leading term": along,
        "its frequencies": projection(weight, by_frequency),
        "its associations": projection(weight, remove_projection(term, by_frequency)),
        "shuffled words": shuffled_words(along, generator),
        "random": random_direction(weight.shape, float(along.norm()), generator),
    }


@contextmanager
def replaced(model: AttentionOnlyTransformer, weights: Mapping[tuple[str, int], Tensor]) -> Iterator[None]:
    """Within the block, the model has these weights in place of its own; keys are kind and layer as in `Agreement`.

    Raises:
        InputError: no such weight, or another shape.
    """
    own = [(_own_weight(model, kind, layer, new), new) for (kind, layer), new in weights.items()]
    kept = [tensor.detach().clone() for tensor, _ in own]
    try:
        with torch.no_grad():
            for tensor, new in own:
                tensor.copy_(new)
        yield
    finally:
        with torch.no_grad():
            for (tensor, _), old in zip(own, kept, strict=True):
                tensor.copy_(old)


def _own_weight(model: AttentionOnlyTransformer, kind: str, layer: int, other: Tensor) -> Tensor:
    """The model's weight of this kind and layer, or an InputError if there is none or `other` has another shape."""
    weights, place = model.weights().get(kind, []), layer if kind == "output" else layer - 1
    if not 0 <= place < len(weights):
        raise InputError(f"the model has no {kind} weight of layer {layer}: layers are 1 to {model.n_layers}")
    if other.shape != weights[place].shape:
        raise InputError(
            f"the {kind} weight must be {tuple(weights[place].shape)}; got {tuple(other.shape)}: give it whole"
        )
    return weights[place]


def loss_without(
    model: AttentionOnlyTransformer,
    inputs: Tensor,
    targets: Tensor,
    removed: Mapping[tuple[str, int], Tensor],
) -> float:
    """Mean cross-entropy when these parts are subtracted from the model's weights; the model stays as it is.

    Raises:
        InputError: no such weight, another shape, or what is left is not finite.
    """
    left = {
        (kind, layer): _own_weight(model, kind, layer, part).detach().double() - part
        for (kind, layer), part in removed.items()
    }
    with replaced(model, left):
        return mean_loss(model, inputs, targets)


def every_weight(model: AttentionOnlyTransformer) -> dict[tuple[str, int], Tensor]:
    """Kind and layer -> weight, detached, float64; the output matrix has layer 0, as in `Agreement`."""
    return {
        (kind, layer): weight.detach().double()
        for kind, weights in model.weights().items()
        for layer, weight in enumerate(weights, start=0 if kind == "output" else 1)
    }


def ablate(
    model: AttentionOnlyTransformer,
    basis: BasisFunctions,
    inputs: Tensor,
    targets: Tensor,
    generator: torch.Generator,
) -> dict[str, Any]:
    """Table 3 of a trained model, with its controls: losses in nats, all on the same data.

    Args:
        basis: basis functions of the data; their leading terms are what is taken out.
        inputs, targets: int64 (N, T). generator: draws the shuffles and the random directions.

    Returns:
        loss: of the model as it is.
        weights: for each weight a dict of its kind and layer; its cosine with the leading term; its loss without each
            of the `PARTS`; and "only", its loss when it is replaced by its projection on the leading term.
        layers: kind -> loss when the leading term is taken out of all layers at once.
        only: loss when every weight is replaced by its projection on its leading term ("leading terms"), or on the part
            of that which word frequencies give ("frequencies").
    """
    terms = {kind: basis.leading_term(kind) for kind in KINDS}
    by_frequency = frequency_terms(basis, inputs, targets)
    weights = every_weight(model)
    rows, along, frequent = [], {}, {}
    for place, weight in weights.items():
        kind, layer = place
        found = parts(weight, terms[kind], by_frequency[kind], generator)
        along[place], frequent[place] = found["leading term"], found["its frequencies"]
        losses = {name: loss_without(model, inputs, targets, {place: part}) for name, part in found.items()}
        only = loss_without(model, inputs, targets, {place: weight - along[place]})
        rows.append({"kind": kind, "layer": layer, "cosine": cosine(weight, terms[kind]), **losses, "only": only})

    def keeping(kept: Mapping[tuple[str, int], Tensor]) -> float:
        return loss_without(model, inputs, targets, {place: weights[place] - part for place, part in kept.items()})

    return {
        "loss": mean_loss(model, inputs, targets),
        "weights": rows,
        "layers": {
            kind: loss_without(
                model, inputs, targets, {place: part for place, part in along.items() if place[0] == kind}
            )
            for kind in KINDS
        },
        "only": {"leading terms": keeping(along), "frequencies": keeping(frequent)},
    }
