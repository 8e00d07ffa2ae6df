"""Both papers at once: paper A's model on paper B's task, paper B's first gradients through paper A's statistics."""

import math

import torch
from torch import Tensor
from torch.nn import functional

from assoc.checks import check_numbers
from assoc.errors import InputError, finite_number
from assoc.induction.memory import check_two_layers, check_vocabulary, memory_recall
from assoc.induction.model import AssociativeTransformer, TokenModel, Trace
from assoc.induction.task import BigramTask
from assoc.leading_terms.basis import AttentionAndPosition, BasisFunctions, check_tokens, context, sub_diagonal_sums
from assoc.leading_terms.gradients import softmax_jacobian_product
from assoc.leading_terms.model import AttentionOnlyTransformer, causal_softmax, position_scores


class OneHotTransformer(TokenModel):
    """Paper A's attention-only transformer with the interface of paper B's models, so that `train_induction` takes it.

    Args:
        vocab_size: N (V in paper A), also the width of the residual stream. length: T. n_layers: L.
        dtype: of the weights, which start at zero.

    Attributes:
        weights: the `AttentionOnlyTransformer`, for all that paper A does with it.
    """

    def __init__(self, vocab_size: int, length: int, n_layers: int = 2, dtype: torch.dtype = torch.float32) -> None:
        super().__init__(vocab_size, length, dim=vocab_size)
        self.weights = AttentionOnlyTransformer(vocab_size, length, n_layers, dtype=dtype)

    def trace(self, inputs: Tensor, at: Tensor | None = None) -> Trace:
        """Logits and the attention maps of all layers; arguments as for `forward`."""
        self.check_inputs(inputs, at)
        residuals, maps = self.weights.trace(inputs)
        last = residuals[-1] if at is None else residuals[-1][at]
        return Trace(last @ self.weights.output, tuple(maps))


def chosen_statistics(inputs: Tensor, targets: Tensor, where: Tensor, vocab_size: int) -> BasisFunctions:
    """Paper A's basis functions and leading terms for a loss that counts chosen positions only.

    The same formulas (Section 4), with sums over the chosen (i, t) and their number n in place of N T. All positions
    give `basis_functions`. Forms one-hot matrices: for small vocabularies.

    Args:
        inputs, targets: int64 (N, T). where: booleans (N, T).

    Raises:
        InputError: tokens that do not fit, or no position chosen.
    """
    check_tokens(inputs, targets, vocab_size)
    is_choice = isinstance(where, Tensor) and where.shape == inputs.shape and where.dtype == torch.bool
    if not is_choice or not where.any():
        raise InputError("where must hold a boolean for each position, and choose at least one")
    n, length = int(where.sum()), inputs.shape[1]
    X = functional.one_hot(inputs, vocab_size).double()
    uniform = causal_softmax(torch.zeros(length, length, dtype=torch.float64))
    excess = functional.one_hot(targets[where], vocab_size).double() - 1 / vocab_size  # Y - U
    bigram = X[where].T @ excess / n
    phi = excess.T @ (uniform @ X)[where] / n
    similar = bigram.T @ bigram
    associated = (similar @ phi)[targets[:, :, None], inputs[:, None, :]]
    scores = softmax_jacobian_product(uniform, associated) * where[:, :, None]
    return BasisFunctions(
        bigram=bigram,
        interchangeability=similar,
        context=phi,
        value=phi.T @ bigram.T,
        attention=torch.einsum("ntv,nts,nsw->vw", X, scores, X) / n,
        position=sub_diagonal_sums(scores.sum(dim=0)) / n,
    )


# --- an induction head in paper A's model


def install_head(
    model: OneHotTransformer, task: BigramTask, *, mark: float = 0.5, sharpness: float = 40.0, copying: float = 4.0
) -> OneHotTransformer:
    """Write an induction head into the first two layers of paper A's model, and return it.

    The residual stream has no room of its own for "the token before me was q". Layer 1 borrows the K rarest tokens
    r_1 .. r_K for it, and marks with a minus sign, which no token carries:

        P_1[1] large: attend to the token before         V_1 = -mark sum_k e_{q_k} e_{r_k}'
        W_2 = -sharpness sum_k e_{q_k} (e_{r_k}/mark + e_{q_k}/2)'
        V_2 = copying 1,  W_O = 1: copy what is attended to

    A place after q_k has score `sharpness`. The second part of W_2 is for position 1, which can attend to itself only
    and marks itself as a place after itself: it loses half of its score to every place after q_k that holds another
    token.

    Raises:
        InputError: triggers that are not fixed, too few other tokens, fewer than two layers or positions, another
            vocabulary, or a number that is not finite and above 0.
    """
    for name, number in (("mark", mark), ("sharpness", sharpness), ("copying", copying)):
        if finite_number(name, number, maximum=1e30) <= 0:
            raise InputError(f"{name} is {number}: give a number above 0")
    weights, q = model.weights, task.fixed_triggers
    if q is None or 2 * len(q) > task.vocab_size:
        raise InputError("marks need fixed triggers, and as many other tokens: use triggers='fixed' and fewer of them")
    if weights.n_layers < 2 or weights.length < 2 or model.vocab_size != task.vocab_size:
        raise InputError("a head takes a model of at least two layers and positions with the vocabulary of the task")
    rarest = task.unigram.sort(stable=True).indices[: len(q)]
    with torch.no_grad():
        for weight in weights.parameters():
            weight.zero_()
        weights.position[0][1] = sharpness
        weights.value[0][q, rarest] = -mark
        weights.attention[1][q, rarest] = -sharpness / mark
        weights.attention[1][q, q] = -sharpness / 2
        weights.value[1].fill_diagonal_(copying)
        weights.output.fill_diagonal_(1)
    return model


def head_recalls(model: OneHotTransformer, task: BigramTask) -> dict[str, float]:
    """Recall of the three memories of an induction head, as far as paper A's weights hold them; compare `recalls`.

    - "output2": V_2 W_O maps a token to itself, over all tokens: what is attended to is what is said;
    - "key2": e_q' W_2 (V_1' e_j) is largest for j = q, over the fixed triggers q (or all tokens): find the mark of q;
    - "key1": 1 if P_1 is largest at distance 1, else 0: attend to the token before.

    Raises:
        InputError: fewer than two layers, a task with other tokens, or weights that are not finite.
    """
    check_vocabulary(model, task)
    model.check_finite()
    weights = model.weights
    if weights.n_layers < 2:
        raise InputError("an induction head needs two layers: make the model with n_layers=2")
    tokens = torch.arange(model.vocab_size)
    queries = tokens if task.fixed_triggers is None else task.fixed_triggers
    one_hot = torch.eye(model.vocab_size, dtype=weights.output.dtype)
    copies = (weights.value[1] @ weights.output).T
    finds = (weights.attention[1] @ weights.value[0].T).T
    return {
        "output2": memory_recall(copies, one_hot, one_hot),
        "key2": memory_recall(finds, one_hot[queries], one_hot, queries),
        "key1": float(int(weights.position[0].argmax()) == 1),
    }


def mark_gradient(model: AttentionOnlyTransformer, inputs: Tensor, targets: Tensor) -> Tensor:
    """(T,): the share of dL/dP_1 that comes through the keys of layer 2 alone, in a model of two layers.

    What tells layer 1 where to look so that layer 2 finds its keys: the signal that an induction head needs. The
    gradient is stopped everywhere else: where layer 2 reads h_1 as query and as value, and in the residual stream.

    Raises:
        InputError: tokens that do not fit, another number of layers, or weights that are not finite.
    """
    check_tokens(inputs, targets, model.vocab_size)
    if model.n_layers != 2:
        raise InputError(f"the model has {model.n_layers} layers: this is about two")
    model.check_finite()
    first, second = [{"W": model.attention[i], "P": model.position[i], "V": model.value[i]} for i in (0, 1)]
    length, X = inputs.shape[1], functional.one_hot(inputs, model.vocab_size).to(model.output.dtype)
    position = first["P"].detach().clone().requires_grad_()
    A1 = causal_softmax(X @ first["W"] @ X.transpose(1, 2) + position_scores(position, length))
    keys = X + A1 @ X @ first["V"]
    h = keys.detach()
    A2 = causal_softmax(h @ second["W"] @ keys.transpose(1, 2) + position_scores(second["P"], length))
    logits = (h + A2 @ h @ second["V"]) @ model.output
    return torch.autograd.grad(functional.cross_entropy(logits.flatten(0, 1), targets.flatten()), position)[0]


# --- paper B's first gradients through paper A's statistics


def context_memory(model: AssociativeTransformer, phi: Tensor) -> Tensor:
    """W_U' Phi W_E W_V2', (d, d): minus the first gradient of W_O2 as far as it comes from tokens attended to evenly.

    Phi[k, j] is a context table: (1/n) sum over positions t in the loss of R[t, k] (A0 X)[t, j], with R = Y - p, or
    Y - U where the prediction p is still uniform. Then this is sum_kj Phi[k, j] w_U(k) (W_V2 w_E(j))', Lemma 2 of
    paper B with the classes' mean inputs written out.

    Raises:
        InputError: another kind of model, or a table that is not (N, N), of the model's dtype and finite.
    """
    check_two_layers(model)
    check_numbers("phi", phi, (model.vocab_size, model.vocab_size), dtype=model.unembedding.dtype)
    return model.unembedding.T @ phi @ model.value_tokens()


def key_association(model: AssociativeTransformer) -> Tensor:
    """G = W_U W_O2 W_V2 W_E', (N, N): how much attending to token j (column) helps to predict k (row)."""
    return model.unembedding @ model.output2 @ model.value_tokens().T


def attention_statistic(association: Tensor, inputs: Tensor, targets: Tensor) -> Tensor:
    """Paper A's attention term Q (Section 4) of any table of associations in place of S Phi, (V, V).

    Q = (1/NT) sum_i X_i' Q_i X_i; Q_i[t, m] = (g[t, m] - mean over m' <= t of g[t, m'])/t, g[t, m] = G[y_t, x_m], with
    G the association less the mean of its rows: that is what Y - U in place of Y takes away.

    Raises:
        InputError: tokens that do not fit, or an association that is not (V, V) and finite.
    """
    check_numbers("association", association, (None, None))
    check_tokens(inputs, targets, len(association))
    G = association - association.mean(dim=0)
    statistic = AttentionAndPosition(G, inputs.shape[1]).add(inputs, targets)
    return statistic.attention / inputs.numel()


def first_memories(model: AssociativeTransformer, inputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
    """Minus the gradients of W_O2 and W_K2 by paper A's statistics: both exact for a `bare_copy` of the model.

        W_O2: W_U' Phi W_E W_V2'          W_K2: W_E' Q[G] W_E / sqrt(d),  G = `key_association`

    The loss counts all positions, and predictions are uniform.

    Raises:
        InputError: another kind of model, or tokens that do not fit.
    """
    check_two_layers(model)
    phi = context(inputs, targets, model.vocab_size).to(model.unembedding.dtype)
    with torch.no_grad():
        Q = attention_statistic(key_association(model).double(), inputs, targets).to(phi.dtype)
        E = model.token_embedding
        return {"output2": context_memory(model, phi), "key2": E.T @ Q @ E / math.sqrt(model.dim)}


@torch.no_grad()
def bare_copy(model: AssociativeTransformer, shrink: float = 1e-6) -> AssociativeTransformer:
    """A float64 copy without what paper A's model lacks: position embeddings and the remapping of layer 1 are 0.

    Its W_K1 and W_K2 are zero. W_U is `shrink` times as large, so that predictions are uniform; gradients of W_O2 are
    `shrink` times as large too, up to a relative error of order `shrink`.

    Raises:
        InputError: another kind of model, or a shrink that is no finite number.
    """
    check_two_layers(model)
    shrink = finite_number("shrink", shrink)
    copy = AssociativeTransformer(model.vocab_size, model.length, model.dim).double()
    for name, parameter in model.named_parameters():
        getattr(copy, name).copy_(parameter)
    for weight in (copy.position_embedding, copy.value1, copy.key1, copy.key2):
        weight.zero_()
    copy.unembedding.mul_(shrink)
    return copy
