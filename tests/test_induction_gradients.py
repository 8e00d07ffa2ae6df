"""The lemmas of paper B (Section 6) against automatic differentiation in float64."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

from assoc.errors import InputError
from assoc.induction import class_means, filtered_memory, lemma1_gradient, lemma2_gradient, memory_recall, noisy_inputs


def normal(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@settings(max_examples=25, deadline=None)
@given(n=st.integers(1, 6), m=st.integers(1, 6), d=st.integers(1, 5), e=st.integers(1, 5), seed=st.integers(0, 10**6))
def test_lemma_1_is_the_gradient(n: int, m: int, d: int, e: int, seed: int) -> None:
    W, unembedding, embedding = normal(e, d, seed=seed), normal(m, e, seed=seed + 1), normal(n, d, seed=seed + 2)
    joint = normal(n, m, seed=seed + 3).flatten().softmax(0).view(n, m)
    W.requires_grad_()
    loss = sum(-joint[z, y] * (unembedding @ W @ embedding[z]).log_softmax(0)[y] for z in range(n) for y in range(m))
    (expected,) = torch.autograd.grad(loss, W)
    assert torch.allclose(lemma1_gradient(W.detach(), unembedding, embedding, joint), expected, rtol=0, atol=1e-10)


@settings(max_examples=25, deadline=None)
@given(n=st.integers(1, 20), m=st.integers(1, 5), d=st.integers(1, 5), e=st.integers(1, 5), seed=st.integers(0, 10**6))
def test_lemma_2_is_the_gradient(n: int, m: int, d: int, e: int, seed: int) -> None:
    W, unembedding, x = normal(e, d, seed=seed), normal(m, e, seed=seed + 1), normal(n + m, d, seed=seed + 2)
    labels = torch.cat([torch.arange(m), torch.randint(m, (n,), generator=torch.Generator().manual_seed(seed))])
    W.requires_grad_()
    loss = functional.cross_entropy(x @ W.T @ unembedding.T, labels)
    (expected,) = torch.autograd.grad(loss, W)
    W = W.detach()
    assert torch.allclose(lemma2_gradient(W, unembedding, x, labels), expected, rtol=0, atol=1e-10)
    probability, mean, predicted_mean = class_means(x, labels, W, unembedding)
    for k in range(m):
        assert torch.allclose(mean[k], x[labels == k].mean(0))
        p_k = (x @ W.T @ unembedding.T).softmax(1)[:, k]
        assert torch.allclose(predicted_mean[k], (p_k[:, None] * x).mean(0) / probability[k])


def test_both_lemmas_agree_where_both_apply() -> None:
    W, unembedding, embedding = normal(4, 5, seed=0), normal(3, 4, seed=1), normal(6, 5, seed=2)
    z = torch.arange(60) % 6
    y = (torch.arange(60) * 7 // 3) % 3
    joint = torch.zeros(6, 3, dtype=torch.float64).index_put_(
        (z, y), torch.tensor(1 / 60, dtype=torch.float64), accumulate=True
    )
    a, b = lemma1_gradient(W, unembedding, embedding, joint), lemma2_gradient(W, unembedding, embedding[z], y)
    assert torch.allclose(a, b, rtol=0, atol=1e-12)


def test_one_step_filters_the_position_out() -> None:
    N, T, d = 40, 30, 256
    w_E, p, w_U = normal(N, d, seed=0), normal(T, d, seed=1), normal(N, d, seed=2)
    x, labels = noisy_inputs(w_E, p)
    assert x.shape == (N * T, d)
    assert torch.equal(x[5 * T + 7], w_E[5] + p[7])
    assert int(labels[5 * T + 7]) == 5
    W = -3.0 * lemma2_gradient(torch.zeros(d, d, dtype=torch.float64), w_U, x, labels)
    assert torch.allclose(W, filtered_memory(w_U, w_E, 3.0), rtol=0, atol=1e-10)
    assert memory_recall(W, x, w_U, labels) > 0.99, "one step makes a nearly perfect classifier"
    without_noise = -3.0 * lemma2_gradient(torch.zeros(d, d, dtype=torch.float64), w_U, w_E, torch.arange(N))
    assert torch.allclose(W, without_noise, rtol=0, atol=1e-10)


def test_bad_input() -> None:
    W, w_U, w_E = normal(4, 5, seed=0), normal(3, 4, seed=1), normal(6, 5, seed=2)
    with pytest.raises(InputError, match=r"joint must be .* \(6, 3\)"):
        lemma1_gradient(W, w_U, w_E, torch.full((3, 6), 1 / 18, dtype=torch.float64))
    for joint in (torch.full((6, 3), 1.0), torch.full((6, 3), 1 / 18).index_fill(0, torch.tensor([0]), -1 / 18)):
        with pytest.raises(InputError, match="sum to 1"):
            lemma1_gradient(W, w_U, w_E, joint.double())
    with pytest.raises(InputError, match="class 2 has no sample"):
        lemma2_gradient(W, w_U, w_E, torch.tensor([0, 1, 0, 1, 0, 1]))
