"""Paper A transcribed literally, as an oracle: dense one-hot matrices, loops, the T x T x T softmax Jacobian, float64.

Nothing here is shared with the library, and nothing is optimised.
"""

import numpy as np


def one_hot(tokens: np.ndarray, vocab_size: int) -> np.ndarray:
    return np.eye(vocab_size)[tokens]


def uniform_attention(length: int) -> np.ndarray:
    return np.tril(np.ones((length, length))) / np.arange(1, length + 1)[:, None]


def softmax_jacobian(rows: np.ndarray) -> np.ndarray:
    """(T, T, T): for each row a the matrix diag(a) - a a'."""
    return np.einsum("tm,mk->tmk", rows, np.eye(len(rows))) - np.einsum("tm,tk->tmk", rows, rows)


def basis(x: np.ndarray, y: np.ndarray, vocab_size: int) -> dict[str, np.ndarray]:
    """All six statistics by their definitions."""
    n, length = x.shape
    X, Y, A0, U = one_hot(x, vocab_size), one_hot(y, vocab_size), uniform_attention(length), 1 / vocab_size
    B = np.einsum("ntv,ntw->vw", X, Y - U) / (n * length)
    S = B.T @ B
    Phi = np.einsum("ntv,tm,nmw->vw", Y - U, A0, X) / (n * length)
    Q, Delta = np.zeros((vocab_size, vocab_size)), np.zeros(length)
    jacobian = softmax_jacobian(A0)
    for i in range(n):
        g = (Y[i] - U) @ S @ Phi @ X[i].T
        Qi = np.einsum("tmk,tk->tm", jacobian, g)
        Q += X[i].T @ Qi @ X[i] / (n * length)
        for k in range(length):
            Delta[k] += sum(Qi[t, t - k] for t in range(k, length)) / (n * length)
    return {
        "bigram": B, "interchangeability": S, "context": Phi, "value": Phi.T @ B.T, "attention": Q, "position": Delta,
    }  # fmt: skip


def logits(weights: dict, x: np.ndarray, vocab_size: int) -> np.ndarray:
    """Definition 3.1, sequence by sequence; weights: lists attention, value, position, and output."""
    result = []
    for row in x:
        h = one_hot(row, vocab_size)
        length = len(row)
        for W, V, P in zip(weights["attention"], weights["value"], weights["position"], strict=True):
            scores = h @ W @ h.T
            A = np.zeros((length, length))
            for t in range(length):
                row_scores = np.array([scores[t, m] + P[t - m] for m in range(t + 1)])
                exponents = np.exp(row_scores - row_scores.max())
                A[t, : t + 1] = exponents / exponents.sum()
            h = h + A @ h @ V
        result.append(h @ weights["output"])
    return np.array(result)
