"""Gradients are memories: the two lemmas of paper B (Section 6), and the noise that one step filters out."""

import torch
from torch import Tensor
from torch.nn import functional

from assoc.checks import check_numbers, check_whole
from assoc.errors import InputError, finite_number


def lemma1_gradient(W: Tensor, unembedding: Tensor, embedding: Tensor, joint: Tensor) -> Tensor:
    """Gradient of L(W) = E cross-entropy(y, W_U W w_E(z)) with respect to W, (e, d) (paper B, Lemma 1).

        grad = sum_k E_z[(p_W(k|z) - p(k|z)) w_U(k) w_E(z)']

    A sum of outer products of embeddings: descent can only ever store pairs (z, k).

    Args:
        W: (e, d). unembedding: w_U as rows, (M, e). embedding: w_E as rows, (N, d).
        joint: p(z, y), (N, M), summing to 1.

    Raises:
        InputError: shapes that do not fit, numbers that are not finite, or a joint that is no distribution.
    """
    _check_linear(W, unembedding, "embedding", embedding)
    check_numbers("joint", joint, (len(embedding), len(unembedding)), dtype=W.dtype)
    if (joint < 0).any() or not torch.isclose(joint.sum(), torch.ones((), dtype=joint.dtype)):
        raise InputError("joint must hold probabilities that sum to 1")
    predicted = (embedding @ W.T @ unembedding.T).softmax(dim=1)
    excess = joint.sum(dim=1, keepdim=True) * predicted - joint  # p(z) (p_W(k|z) - p(k|z))
    return unembedding.T @ excess.T @ embedding


def _check_linear(W: Tensor, unembedding: Tensor, name: str, x: Tensor) -> None:
    """W (e, d), w_U (M, e) and inputs x (n, d) of one dtype, or an InputError."""
    check_numbers("W", W, (None, None))
    check_numbers("unembedding", unembedding, (None, W.shape[0]), dtype=W.dtype)
    check_numbers(name, x, (None, W.shape[1]), dtype=W.dtype)


def class_means(x: Tensor, labels: Tensor, W: Tensor, unembedding: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """p(k), mu_k = E[x | y = k] and mu^_k = E[p_W(k|x) x] / p(k): shapes (M,), (M, d), (M, d). See `lemma2_gradient`.

    Raises:
        InputError: a class without samples, whose mean is undefined; shapes that do not fit, or numbers that are not
            finite.
    """
    _check_linear(W, unembedding, "x", x)
    check_whole("labels", labels, (len(x),), below=len(unembedding))
    is_class = functional.one_hot(labels, len(unembedding)).to(x.dtype)  # (n, M)
    counts = is_class.sum(dim=0)
    if (counts == 0).any():
        raise InputError(f"class {int(counts.argmin())} has no sample: drop its row from unembedding")
    predicted = (x @ W.T @ unembedding.T).softmax(dim=1)
    return counts / len(x), is_class.T @ x / counts[:, None], predicted.T @ x / counts[:, None]


def lemma2_gradient(W: Tensor, unembedding: Tensor, x: Tensor, labels: Tensor) -> Tensor:
    """Gradient of L(W) = E cross-entropy(y, W_U W x) with respect to W, (e, d) (paper B, Lemma 2).

        grad = sum_k p(k) w_U(k) (mu^_k - mu_k)',  mu_k = E[x | y = k],  mu^_k = E[p_W(k|x) x] / p(k)

    Whatever part of x does not depend on y has the same mean in both and cancels.

    Args:
        W: (e, d). unembedding: w_U as rows, (M, e). x: inputs, (n, d). labels: y, int64 (n,).

    Raises:
        InputError: as `class_means`.
    """
    probability, mean, predicted_mean = class_means(x, labels, W, unembedding)
    return (probability[:, None] * unembedding).T @ (predicted_mean - mean)


def noisy_inputs(embedding: Tensor, position_embedding: Tensor) -> tuple[Tensor, Tensor]:
    """Every pair of the paper's example once: x = w_E(y) + p_t and its label y, (N T, d) and (N T,).

    Raises InputError for embeddings of different widths, or that are not finite.
    """
    check_numbers("embedding", embedding, (None, None))
    check_numbers("position_embedding", position_embedding, (None, embedding.shape[1]), dtype=embedding.dtype)
    N, T = len(embedding), len(position_embedding)
    x = (embedding[:, None] + position_embedding).flatten(0, 1)
    return x, torch.arange(N).repeat_interleave(T)


def filtered_memory(unembedding: Tensor, embedding: Tensor, learning_rate: float = 1.0) -> Tensor:
    """What one step from W = 0 leaves of `noisy_inputs`: (eta / N) sum_k w_U(k) (w_E(k) - mean)', the position gone.

    Raises InputError for embeddings of different numbers of tokens, or numbers that are not finite.
    """
    check_numbers("embedding", embedding, (None, None))
    check_numbers("unembedding", unembedding, (len(embedding), None), dtype=embedding.dtype)
    learning_rate = finite_number("learning_rate", learning_rate)
    return learning_rate / len(embedding) * unembedding.T @ (embedding - embedding.mean(dim=0))
