"""The gradients of the attention-only transformer, written out (paper A, Lemmas D.1 and D.8)."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from assoc.leading_terms.basis import check_tokens, sub_diagonal_sums
from assoc.leading_terms.model import AttentionOnlyTransformer


@dataclass(frozen=True)
class Gradients:
    """dL/dW for each weight; lists hold one tensor a layer, in the order of the layers."""

    output: Tensor
    value: list[Tensor]
    attention: list[Tensor]
    position: list[Tensor]


def softmax_jacobian_product(attention: Tensor, upstream: Tensor) -> Tensor:
    """Row-wise softmax Jacobian applied to what comes from above: a * (u - sum(a * u)), row by row.

    Args:
        attention: softmax rows, (..., T, T). upstream: gradient with respect to them, (..., T, T).

    At uniform attention over the first t entries this is (u - mean(u))/t: the origin of Q_i in the attention term.
    """
    return attention * (upstream - (attention * upstream).sum(dim=-1, keepdim=True))


@torch.no_grad()
def gradients(model: AttentionOnlyTransformer, inputs: Tensor, targets: Tensor) -> Gradients:
    """Gradients of the mean cross-entropy by the formulas of Lemma D.8.

    With R = Y - softmax(F), G_L = R W_O' and S_l = the row-wise softmax Jacobian applied to G_l V_l' h_{l-1}':
    G_{l-1} = G_l + A_l' G_l V_l' + S_l h_{l-1} W_l' + S_l' h_{l-1} W_l;
    dL/dW_O = -(1/NT) sum h_L'R;  dL/dV_l = -(1/NT) sum h_{l-1}' A_l' G_l;
    dL/dW_l = -(1/NT) sum h_{l-1}' S_l h_{l-1};  dL/dP_l = -(1/NT) sum of S_l along each sub-diagonal.

    Args:
        inputs, targets: int64 (N, T). Memory grows as N T V: meant for small corpora and for reading.

    Raises:
        InputError: tokens that do not fit, or weights that are not finite.
    """
    check_tokens(inputs, targets, model.vocab_size)
    model.check_finite()
    residuals, maps = model.trace(inputs)
    scale = -1 / inputs.numel()
    R = functional.one_hot(targets, model.vocab_size) - (residuals[-1] @ model.output).softmax(dim=-1)
    output = scale * torch.einsum("ntv,ntw->vw", residuals[-1], R)
    G = R @ model.output.T
    value, attention, position = [], [], []
    for layer in reversed(range(model.n_layers)):
        h, A, W, V = residuals[layer], maps[layer], model.attention[layer], model.value[layer]
        AG = A.transpose(1, 2) @ G
        S = softmax_jacobian_product(A, G @ V.T @ h.transpose(1, 2))
        Sh = S @ h
        value.insert(0, scale * torch.einsum("ntv,ntw->vw", h, AG))
        attention.insert(0, scale * torch.einsum("ntv,ntw->vw", h, Sh))
        position.insert(0, scale * functional.pad(sub_diagonal_sums(S.sum(dim=0)), (0, model.length - h.shape[1])))
        G = G + AG @ V.T + Sh @ W.T + S.transpose(1, 2) @ h @ W
    return Gradients(output, value, attention, position)
