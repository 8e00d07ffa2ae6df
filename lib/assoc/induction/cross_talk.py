"""What sums of outer products do besides storing pairs: noise, the number of pairs it allows, and how to avoid it.

Paper B writes the ideal memories down (Section 4.2) and leaves cross-talk to "large d". Here is how large, for one
memory and for the keys of the induction head.
"""

import math

import torch
from torch import Tensor

from assoc.checks import check_numbers, check_whole
from assoc.errors import InputError, finite_number, whole_number
from assoc.induction.memory import check_two_layers, check_vocabulary, outer_product_memory
from assoc.induction.model import AssociativeTransformer
from assoc.induction.task import BigramTask


def capacity_scale(dim: int) -> float:
    """The n that solves n = d^2 / (2 log n): where the largest of n noises sqrt(n)/d is as large as a stored pair.

    Raises:
        InputError: a dimension below 1.
    """
    dim = whole_number("dim", dim, minimum=1)
    half = dim**2 / 2
    n = 1 + half
    for _ in range(60):  # Newton's method for n log n = d^2 / 2, a convex function, from above
        n = (n + half) / (1 + math.log(n))
    return n


def expected_recall(n_pairs: int, dim: int) -> float:
    """Recall of a sum of n outer products of random unit vectors in d dimensions, if all cross-talk were independent.

    The right output scores 1 with noise of variance (n - 1)/d^2, each wrong one 0 with variance 2/d + (n - 2)/d^2. For
    normal noise the right one is on top with probability E_x[Psi((1 + s_right x) / s_wrong)^(n - 1)], x standard normal
    and Psi its distribution function. `assoc.induction.capacity` measures the same thing.

    Raises:
        InputError: fewer than two pairs, or a dimension below 1.
    """
    n_pairs, dim = whole_number("n_pairs", n_pairs, minimum=2), whole_number("dim", dim, minimum=1)
    x = torch.linspace(-6, 6, 481, dtype=torch.float64)
    weight = torch.exp(-x.square() / 2)
    right, wrong = math.sqrt(n_pairs - 1) / dim, math.sqrt(2 / dim + (n_pairs - 2) / dim**2)
    on_top = torch.special.ndtr((1 + right * x) / wrong) ** (n_pairs - 1)
    return float((weight * on_top).sum() / weight.sum())


def dual_vectors(vectors: Tensor) -> Tensor:
    """Rows w_i with w_i' v_j = [i = j] for the rows v_j, (n, d): vectors that match without cross-talk.

    They exist if the v_j are linearly independent, so for n <= d at most; otherwise the closest in least squares.

    Raises InputError for anything but a table of finite numbers.
    """
    check_numbers("vectors", vectors, (None, None))
    return torch.linalg.pinv(vectors.double()).T.to(vectors.dtype)


def stored_queries(model: AssociativeTransformer, task: BigramTask | None) -> Tensor:
    """The tokens k that W_K2 has to store: fixed triggers, or all tokens; int64.

    Raises InputError for a task with another number of tokens.
    """
    if task is not None:
        check_vocabulary(model, task)
    if task is None or task.fixed_triggers is None:
        return torch.arange(model.vocab_size)
    return task.fixed_triggers


@torch.no_grad()
def exclude_first_position(
    model: AssociativeTransformer, task: BigramTask | None = None, *, scale: float = 30.0
) -> AssociativeTransformer:
    """Subtract scale sum_k w_E(k) p_1' from W_K2, in place: no token's successor stands at position 1.

    Position 1 can attend to itself only, so layer 1 tells it that the token before it was its own. Without this term
    layer 2 takes it for a place behind that token. The scale is that of `install_ideal_memories`. Returns the model.

    Raises:
        InputError: another kind of model, a task with other tokens, or a scale that is not finite.
    """
    check_two_layers(model)
    scale = finite_number("scale", scale)
    queries = model.token_embedding[stored_queries(model, task)]
    first = model.position_embedding[:1].expand_as(queries)
    model.key2 -= scale * math.sqrt(model.dim) * outer_product_memory(queries, first)
    return model


@torch.no_grad()
def install_dual_key2(
    model: AssociativeTransformer, task: BigramTask | None = None, *, scale: float = 30.0
) -> AssociativeTransformer:
    """Overwrite W_K2 by its ideal, position 1 excluded, with dual vectors in all outer products. Returns the model.

    Dual with respect to everything that a residual stream holds before layer 2: w_E, p and both remapped by W_O1 W_V1.
    For d >= 2 (N + T) no cross-talk is left; below, least squares spreads what there is.

    Raises:
        InputError: as `exclude_first_position`, or weights that are not finite.
    """
    check_two_layers(model)
    scale = finite_number("scale", scale)
    tokens, positions = model.token_embedding, model.position_embedding
    remap = (model.output1 @ model.value1).T
    dual = dual_vectors(torch.cat([tokens, positions, tokens @ remap, positions @ remap]))
    sizes = [model.vocab_size, model.length]
    dual_tokens, dual_positions, dual_remapped, _ = dual.split(sizes * 2)
    stored = stored_queries(model, task)
    keys = dual_remapped[stored] - dual_positions[0]
    model.key2.copy_(scale * math.sqrt(model.dim) * dual_tokens[stored].T @ keys)
    return model


@torch.no_grad()
def key_noise(
    model: AssociativeTransformer, inputs: Tensor, occurrence: Tensor, *, scale: float
) -> tuple[float, float]:
    """Standard deviation of the scores of wrong keys in layers 1 and 2, in units of a stored pair.

    Layer 1: keys s <= t - 2. Layer 2: queries at repeated output positions (occurrence >= 2), keys s <= t - 2 behind
    another token than the query's. Position 1 does not count, which is no noise but an error of its own.

    Args:
        inputs, occurrence: (B, T), of the same sequences.
        scale: what a stored pair scores, that of `install_ideal_memories`.

    Raises:
        InputError: shapes that do not fit, a scale that is 0 or not finite, or too few wrong keys to have a spread.
    """
    check_two_layers(model)
    check_whole("inputs", inputs, (None, None))
    check_whole("occurrence", occurrence, inputs.shape)
    if finite_number("scale", scale) == 0:
        raise InputError("scale is 0: give what a stored pair scores")
    length = inputs.shape[1]
    x = model.embed(inputs)
    attention = model.trace(inputs).attentions[0]
    x1 = x + attention @ x @ (model.output1 @ model.value1).T
    wrong = torch.ones(length, length, dtype=torch.bool).tril(-2)
    wrong[:, 0] = False
    behind_other = inputs[:, :, None] != inputs.roll(1, dims=1)[:, None]  # z_{s-1} != z_t
    unit = scale * math.sqrt(model.dim)
    layer1 = x @ model.key1 @ x.transpose(1, 2) / unit
    layer2 = x1 @ model.key2 @ x1.transpose(1, 2) / unit
    repeated = (occurrence >= 2)[:, :, None]
    if int(wrong.sum()) < 2 or int((wrong & behind_other & repeated).sum()) < 2:
        raise InputError("there are no wrong keys to compare: give longer sequences, or more of them")
    return float(layer1[wrong.expand_as(layer1)].std()), float(layer2[wrong & behind_other & repeated].std())
