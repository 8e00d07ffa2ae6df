"""Weight matrices as associative memories: what is stored in them, and the induction head written down by hand.

Paper B, Section 4. Random vectors in high dimension are nearly orthogonal, so that a sum of outer products
W = sum_i u_{f(i)} v_i' stores the pairs i -> f(i): u_j' W v_i is large for j = f(i) and small otherwise.
"""

from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional

from assoc.checks import check_numbers, check_whole
from assoc.errors import InputError, finite_number, whole_number
from assoc.induction.model import AssociativeTransformer, OneLayerTransformer, TokenModel

if TYPE_CHECKING:
    from assoc.induction.task import BigramTask

EARLY_POSITIONS = 64  # Figure 3 of paper B parts the recall of W_K1 here: t < 64, counted from 0


def memory_recall(W: Tensor, inputs: Tensor, outputs: Tensor, targets: Tensor | None = None) -> float:
    """Share of i whose best match argmax_j u_j' W v_i is f(i) (paper B, Section 4.2).

    For a key matrix, whose scores are q' W_K k, a query asks for its best key: pass W_K.T, the queries as inputs and
    the keys as outputs.

    Args:
        W: the memory, (e, d).
        inputs: v_i as rows, (n, d).
        outputs: all candidates u_j as rows, (m, e).
        targets: f(i), int64 (n,). Default: f(i) = i.

    Raises:
        InputError: shapes that do not fit, targets that are no outputs, or numbers that are not finite.
    """
    targets = torch.arange(len(inputs)) if targets is None else targets
    for name, values in (("W", W), ("inputs", inputs), ("outputs", outputs), ("targets", targets)):
        if not isinstance(values, Tensor):
            raise InputError(f"{name} must be a tensor; got a {type(values).__name__}: convert with torch.as_tensor")
    if W.ndim != 2 or inputs.ndim != 2 or outputs.ndim != 2 or W.shape != (outputs.shape[1], inputs.shape[1]):
        raise InputError(
            f"W must be (e, d) for inputs (n, d) and outputs (m, e); got {tuple(W.shape)} for {tuple(inputs.shape)} "
            f"and {tuple(outputs.shape)}"
        )
    fits = targets.shape == (len(inputs),) and len(inputs) > 0
    if not fits or int(targets.min()) < 0 or int(targets.max()) >= len(outputs):
        raise InputError(
            f"targets must hold one of {len(outputs)} outputs for each of {len(inputs)} (at least 1) inputs"
        )
    for name, values in (("W", W), ("inputs", inputs), ("outputs", outputs)):
        if not torch.isfinite(values).all():
            raise InputError(f"{name} must be finite, without NaN or infinity: train with a lower learning rate")
        if values.dtype != W.dtype or not values.is_floating_point():
            raise InputError(f"{name} must be floating-point numbers, all of one dtype; got {values.dtype}: convert it")
    with torch.no_grad():
        return float(((inputs @ W.T @ outputs.T).argmax(dim=1) == targets).double().mean())


def recalls(model: TokenModel, task: "BigramTask") -> dict[str, float]:
    """Memory recall of every trained memory of a model; {} for models whose weights are no such memories.

    Of an `AssociativeTransformer`:

    - "output2": W_O2 maps W_V2 w_E(v) to w_U(v), over all tokens v;
    - "key2": query w_E(k) finds key w_1(k) among those of all tokens. Over the triggers if they are fixed, the only
      queries that the data ever trains, else over all tokens;
    - "key1": query p_t finds key p_{t-1} among all positions, for t = 2 .. T. T is the task's length: the data never
      reaches later positions of a longer model, nor does this;
    - with T > 64 also "key1_early" (t <= 64) and "key1_late" (the others). Counting from 0, the paper writes t < 64.

    Of a `OneLayerTransformer`: "output1", W_O1 maps W_V1 w_E(v) to w_U(v).

    Raises:
        InputError: a task with another number of tokens, or weights that are not finite.
    """
    check_vocabulary(model, task)
    if isinstance(model, OneLayerTransformer):
        values = model.token_embedding @ model.value1.T
        return {"output1": memory_recall(model.output1, values, model.unembedding)}
    if not isinstance(model, AssociativeTransformer):
        return {}
    tokens = torch.arange(model.vocab_size) if task.fixed_triggers is None else task.fixed_triggers
    positions = model.position_embedding[: task.length]
    result = {
        "output2": memory_recall(model.output2, model.value_tokens(), model.unembedding),
        "key2": memory_recall(model.key2.T, model.token_embedding[tokens], model.remapped_tokens(), tokens),
    }
    parts = {"key1": (1, None)}
    if len(positions) > EARLY_POSITIONS:
        parts |= {"key1_early": (1, EARLY_POSITIONS), "key1_late": (EARLY_POSITIONS, None)}
    for name, (start, stop) in parts.items():
        queries = torch.arange(len(positions))[start:stop]
        if len(queries):
            result[name] = memory_recall(model.key1.T, positions[queries], positions, queries - 1)
    return result


def feed_forward_kl(model: AssociativeTransformer, task: "BigramTask", with_residual: bool = False) -> float:
    """Mean over tokens k of KL(pi_b(.|k) || softmax(W_U W_F w_E(k))), in nats: how far W_F is from the global bigrams.

    Fixed triggers are left out of the mean: no sequence ever shows what pi_b says of them.

    Args:
        with_residual: use W_U (w_E(k) + W_F w_E(k)) instead. The residual stream carries w_E(k) past W_F straight to
            the logits, so this is what both together say of k.

    Raises:
        InputError: a model without feed-forward matrix, a task with another number of tokens, or one whose triggers
            leave no token.
    """
    if getattr(model, "feed_forward", None) is None:
        raise InputError("this model has no feed_forward: make it with feed_forward=True")
    check_vocabulary(model, task)
    if task.fixed_triggers is not None and len(task.fixed_triggers) == task.vocab_size:
        raise InputError("all tokens are triggers, after which nothing follows the bigrams: use a smaller n_triggers")
    with torch.no_grad():
        x = model.token_embedding @ model.feed_forward.T
        x = x + model.token_embedding if with_residual else x
        log_predicted = (x @ model.unembedding.T).double().log_softmax(dim=1)
        divergence = -task.successor_entropy() - (task.bigram * log_predicted).sum(dim=1)
        kept = torch.ones_like(divergence)
        if task.fixed_triggers is not None:
            kept[task.fixed_triggers] = 0
        return float((divergence * kept).sum() / kept.sum())


def check_vocabulary(model: TokenModel, task: "BigramTask") -> None:
    """Raise InputError unless model and task have the same number of tokens."""
    if model.vocab_size != task.vocab_size:
        raise InputError(f"the model has {model.vocab_size} tokens, the task {task.vocab_size}: make them of one size")


def check_two_layers(model: AssociativeTransformer) -> None:
    """Raise InputError for any model but the two-layer one."""
    if not isinstance(model, AssociativeTransformer):
        raise InputError(f"an induction head takes an AssociativeTransformer; got {type(model).__name__}")


def outer_product_memory(outputs: Tensor, inputs: Tensor) -> Tensor:
    """W = sum_i u_i v_i' / (|u_i|^2 |v_i|^2), (e, d), of matching rows u_i (n, e), v_i (n, d).

    With this norm u_i' W v_i is 1 plus the cross-talk of the other pairs.

    Raises:
        InputError: not as many rows of both, numbers that are not finite, or a row of zeros.
    """
    check_numbers("outputs", outputs, (None, None))
    check_numbers("inputs", inputs, (len(outputs), None), dtype=outputs.dtype)
    if not (outputs.any(dim=1).all() and inputs.any(dim=1).all()):
        raise InputError("a row of zeros has no direction to be stored: leave its pair out")
    return _over_square(outputs).T @ _over_square(inputs)


def _over_square(vectors: Tensor) -> Tensor:
    """Each row x as x / |x|^2, whose inner product with x is 1."""
    return vectors / vectors.square().sum(dim=1, keepdim=True)


def ideal_memories(
    model: AssociativeTransformer,
    task: "BigramTask | None" = None,
    *,
    scale: float = 1.0,
) -> dict[str, Tensor]:
    """The induction head by formula: key1, key2, output2, and feed_forward where model and task have it.

        W_K1 = sum_t p_t p_{t-1}'       W_K2 = sum_k w_E(k) w_1(k)'      W_O2 = sum_v w_U(v) (W_V2 w_E(v))'
        W_F  = sum_k w_F(k) w_E(k)',    w_F(k) = sum_v w_U(v) log pi_b(v|k), centred over v

    (paper B, Section 4.2). Every outer product is divided by the squared norms of its two vectors, so that a stored
    pair matches with 1 plus cross-talk; keys get a factor sqrt(d) more, against the one in the attention scores.

    Args:
        model: where the embeddings come from.
        task: its fixed triggers are the k of W_K2; without a task or with random triggers, all tokens are. Needed for
            W_F.
        scale: factor on W_K1, W_K2 and W_O2: how sharp their softmax is.

    Raises:
        InputError: another kind of model, weights or a scale that are not finite, or a task with another number of
            tokens.
    """
    check_two_layers(model)
    scale = finite_number("scale", scale)
    if task is not None:
        check_vocabulary(model, task)
    with torch.no_grad():
        positions, tokens = model.position_embedding, model.token_embedding
        stored = torch.arange(model.vocab_size)
        if task is not None and task.fixed_triggers is not None:
            stored = task.fixed_triggers
        key2 = outer_product_memory(tokens[stored], model.remapped_tokens()[stored])
        memories = {
            "key1": scale * model.dim**0.5 * outer_product_memory(positions[1:], positions[:-1]),
            "key2": scale * model.dim**0.5 * key2,
            "output2": scale * outer_product_memory(model.unembedding, model.value_tokens()),
        }
        if task is not None and model.feed_forward is not None:
            # Transitions that never happen get the logit of a very rare one instead of minus infinity.
            logits = task.bigram.clamp(min=1e-4).log()
            logits = (logits - logits.mean(dim=1, keepdim=True)).to(tokens.dtype)
            memories["feed_forward"] = (logits @ _over_square(model.unembedding)).T @ _over_square(tokens)
        return memories


def install_ideal_memories(
    model: AssociativeTransformer,
    task: "BigramTask | None" = None,
    *,
    scale: float = 30.0,
) -> AssociativeTransformer:
    """Overwrite the trained matrices of a model by its `ideal_memories`, and return it: an induction head by hand.

    It errs at position 1, which has no previous token: layer 1 can attend there to z_1 itself only, and marks it as a
    place after z_1, from where a later query z_1 copies z_1. `cross_talk.exclude_first_position` mends that.
    """
    with torch.no_grad():
        for name, memory in ideal_memories(model, task, scale=scale).items():
            getattr(model, name).copy_(memory)
    return model


def memory_tables(model: AssociativeTransformer) -> dict[str, Tensor]:
    """The trained matrices in the basis of the pairs they should store; an ideal memory shows its pairs and no more.

    - "key1" (T, T): p_t' W_K1 p_s / sqrt(d), row t a query, column s a key; ideal: one below the diagonal;
    - "key2" (N, N): w_E(k)' W_K2 w_1(j) / sqrt(d), row k a query, column j a key; ideal: the diagonal;
    - "output2" (N, N): w_U(j)' W_O2 W_V2 w_E(v), row v the token attended to, column j a logit; ideal: the diagonal;
    - "feed_forward" (N, N), if there: w_U(j)' W_F w_E(k), row k the input, column j a logit; ideal: log pi_b(j|k).

    Raises:
        InputError: another kind of model, or weights that are not finite.
    """
    check_two_layers(model)
    model.check_finite()
    with torch.no_grad():
        positions, tokens, root = model.position_embedding, model.token_embedding, model.dim**0.5
        tables = {
            "key1": positions @ model.key1 @ positions.T / root,
            "key2": tokens @ model.key2 @ model.remapped_tokens().T / root,
            "output2": model.value_tokens() @ model.output2.T @ model.unembedding.T,
        }
        if model.feed_forward is not None:
            tables["feed_forward"] = tokens @ model.feed_forward.T @ model.unembedding.T
        return tables


def check_maps(attention: Tensor) -> None:
    """Raise InputError unless these are attention maps (..., T, T) of at least two positions."""
    if attention.ndim < 2 or attention.shape[-1] != attention.shape[-2] or attention.shape[-1] < 2:
        raise InputError(f"attention must be (..., T, T) with T >= 2; got {tuple(attention.shape)}")


def previous_token_attention(attention: Tensor) -> float:
    """Mean attention from t to t - 1 over t = 2 .. T, of a map (..., T, T); T is at least 2.

    Raises InputError for other shapes.
    """
    check_maps(attention)
    return attention.diagonal(offset=-1, dim1=-2, dim2=-1).mean().item()


def after_trigger_attention(attention: Tensor, inputs: Tensor, occurrence: Tensor) -> float:
    """Mean attention of repeated output positions to the places that follow an earlier occurrence of their token.

    For every t with occurrence >= 2: the sum of attention[t, s] over s <= t with z_{s-1} = z_t. Uniform attention gives
    the share of such places, an induction head 1.

    Args:
        attention: (B, T, T). inputs, occurrence: (B, T), of the same sequences.

    Raises:
        InputError: shapes that do not fit. (Where no output is repeated, the mean is not a number.)
    """
    check_whole("inputs", inputs, (None, None))
    check_whole("occurrence", occurrence, inputs.shape)
    if attention.shape != (*inputs.shape, inputs.shape[1]):
        raise InputError(f"attention must be (B, T, T) for inputs (B, T); got {tuple(attention.shape)}")
    follows = torch.zeros(attention.shape, dtype=torch.bool)
    follows[:, :, 1:] = inputs[:, :, None] == inputs[:, None, :-1]
    return (attention * follows).sum(dim=-1)[occurrence >= 2].mean().item()


def capacity(n_pairs: int, dim: int, generator: torch.Generator | None = None, n_repeats: int = 1) -> float:
    """Recall of W = sum_i u_i v_i' over n random pairs in dimension d: how much a sum of outer products can hold.

    All u_i, v_i are drawn uniformly from the unit sphere. The right match scores about 1, each wrong one about
    sqrt(n)/d, so recall fails once n is of the order d^2 / log n.

    Args:
        n_pairs: n. dim: d. n_repeats: average over so many independent draws.

    Raises:
        InputError: a number below 1.
    """
    n_pairs, dim = whole_number("n_pairs", n_pairs, minimum=1), whole_number("dim", dim, minimum=1)
    n_repeats = whole_number("n_repeats", n_repeats, minimum=1)
    u, v = functional.normalize(torch.randn(2, n_repeats, n_pairs, dim, generator=generator), dim=-1)
    scores = v @ (v.transpose(1, 2) @ u) @ u.transpose(1, 2)  # scores[r, i, j] = u_j' W v_i
    return float((scores.argmax(dim=2) == torch.arange(n_pairs)).double().mean())
