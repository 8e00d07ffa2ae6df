"""Covariances against the papers' own program and literal n x n computations; leading terms over chosen tokens."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from assoc.errors import InputError
from assoc.leading_terms import basis_functions
from assoc.llm import (
    as_language_model,
    attention_covariance_cosine,
    compare_layers,
    covariance_cosine,
    head_covariance_cosines,
    prepare_term,
    prepare_terms,
    token_statistics,
)
from assoc.llm.statistics import restricted_basis_functions, token_sequences
from test_llm_models import tiny_model

N, DIM, HEADS, WIDTH = 40, 12, 3, 5


def literal_cosine(matrix: Tensor, term: Tensor, centre_tokens: bool = False) -> float:
    """Cosine of two n x n covariances, as the paper defines them; centred over tokens as CKA is (H K H)."""
    norms = term.norm(dim=1, keepdim=True)
    term = torch.where(norms > 0, term / norms, term)
    covariances = []
    for M in (matrix, term):
        C = M - M.mean(dim=1, keepdim=True)
        covariance = C @ C.T / (M.shape[1] - 1)
        H = torch.eye(len(M), dtype=torch.float64) - centre_tokens / len(M)
        covariances.append(H @ covariance @ H)
    a, b = covariances
    return float((a * b).sum() / (a.norm() * b.norm()))


@pytest.fixture
def random() -> Callable[..., Tensor]:
    generator = torch.Generator().manual_seed(0)
    return lambda *shape: torch.randn(*shape, generator=generator, dtype=torch.float64) + 0.5


@pytest.fixture
def term(random: Callable[..., Tensor]) -> Tensor:
    """Neither symmetric nor of one scale, and with a row of zeros."""
    term = random(N, N) * torch.logspace(-3, 3, N, dtype=torch.float64)[:, None]
    term[7] = 0
    return term


def test_the_authors_results(reference: dict) -> None:
    embeddings, term, heads = (torch.tensor(reference[f"cov_{name}"]) for name in ("embeddings", "theory", "heads"))
    assert covariance_cosine(embeddings, term) == pytest.approx(float(reference["cov_cos_embeddings"]), abs=1e-6)
    ours = [attention_covariance_cosine(embeddings, head, term) for head in heads]
    assert ours == pytest.approx(reference["cov_cos_heads"].tolist(), abs=1e-6)
    mean = attention_covariance_cosine(embeddings, heads.mean(dim=0), term)
    assert mean == pytest.approx(float(reference["cov_cos_mean_head"]), abs=1e-6)


@pytest.mark.parametrize("centre_tokens", [False, True])
def test_low_rank_and_literal_agree(centre_tokens: bool, random: Callable[..., Tensor], term: Tensor) -> None:
    E, A = random(N, DIM), random(DIM, DIM)
    prepared = prepare_term(term, centre_tokens=centre_tokens)
    assert covariance_cosine(E, prepared) == pytest.approx(literal_cosine(E, term, centre_tokens), rel=1e-10)
    scores = literal_cosine(E @ A @ E.T, term, centre_tokens)
    assert attention_covariance_cosine(E, A, prepared) == pytest.approx(scores, rel=1e-10)
    transposed = literal_cosine(E @ A @ E.T, term.T, centre_tokens)
    assert abs(scores - transposed) > 1e-3  # the orientation matters
    prepared = prepare_term(term.T, centre_tokens=centre_tokens)
    assert attention_covariance_cosine(E, A, prepared) == pytest.approx(transposed, rel=1e-10)


@settings(max_examples=60, deadline=None)
@given(
    n=st.integers(3, 9),
    dim=st.integers(2, 12),
    n_heads=st.integers(1, 3),
    width=st.integers(1, 4),
    centre_tokens=st.booleans(),
    seed=st.integers(0, 2**32),
)
def test_literal_covariances_of_any_size(
    n: int, dim: int, n_heads: int, width: int, centre_tokens: bool, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    E, term = (torch.randn(n, size, generator=generator, dtype=torch.float64) for size in (dim, n))
    query, key = torch.randn(2, n_heads, dim, width, generator=generator, dtype=torch.float64)
    prepared = prepare_term(term, centre_tokens=centre_tokens)
    assert covariance_cosine(E, prepared) == pytest.approx(literal_cosine(E, term, centre_tokens), rel=1e-7)
    scores = [E @ q @ k.T @ E.T for q, k in zip(query, key, strict=True)]
    expected = [literal_cosine(matrix, term, centre_tokens) for matrix in scores]
    assert head_covariance_cosines(E, query, key, prepared) == pytest.approx(expected, rel=1e-6)
    mean = literal_cosine(torch.stack(scores).mean(dim=0), term, centre_tokens)
    mean_head = (query @ key.transpose(1, 2)).mean(dim=0)
    assert attention_covariance_cosine(E, mean_head, prepared) == pytest.approx(mean, rel=1e-6)
    if not centre_tokens:
        alike = torch.ones(n, 1, dtype=torch.float64) * E[0]
        assert prepared.constant_cosine == pytest.approx(literal_cosine(alike, term), rel=1e-7)


@pytest.mark.parametrize("dim", [1, 12, 60])  # more dimensions than tokens too
def test_any_width(dim: int, random: Callable[..., Tensor], term: Tensor) -> None:
    E, A = random(N, dim), random(dim, dim)
    if dim > 1:
        assert covariance_cosine(E, term) == pytest.approx(literal_cosine(E, term), rel=1e-10)
    assert attention_covariance_cosine(E, A, term) == pytest.approx(literal_cosine(E @ A @ E.T, term), rel=1e-10)


def test_heads_one_by_one(random: Callable[..., Tensor], term: Tensor) -> None:
    E, query, key = random(N, DIM), random(HEADS, DIM, WIDTH), random(HEADS, DIM, WIDTH)
    expected = [literal_cosine(E @ q @ k.T @ E.T, term) for q, k in zip(query, key, strict=True)]
    assert head_covariance_cosines(E, query, key, term) == pytest.approx(expected, rel=1e-10)


def test_scale_does_not_matter(random: Callable[..., Tensor], term: Tensor) -> None:
    E, A = random(N, DIM), random(DIM, DIM)
    expected = covariance_cosine(E, term), attention_covariance_cosine(E, A, term)
    tiny = covariance_cosine(1e-90 * E, 1e-200 * term), attention_covariance_cosine(1e-90 * E, 1e-90 * A, 1e90 * term)
    assert tiny == pytest.approx(expected, rel=1e-10)


def test_tokens_that_all_look_the_same(random: Callable[..., Tensor], term: Tensor) -> None:
    same = random(1, DIM).expand(N, DIM)
    prepared = prepare_term(term)
    assert prepared.constant_cosine == pytest.approx(literal_cosine(same, term), rel=1e-10)
    assert covariance_cosine(same, prepared) == pytest.approx(prepared.constant_cosine, rel=1e-10)
    alike = term.abs().sum(dim=0).expand(N, N) + 1e-3 * random(N, N)  # rows much alike, as frequencies make them
    assert prepare_term(alike).constant_cosine > 0.99


def test_tokens_that_differ_by_a_millionth_are_still_compared(random: Callable[..., Tensor], term: Tensor) -> None:
    """What is rounding, and set to zero, is far below what float32 weights can hold."""
    E = random(1, DIM).expand(N, DIM) + 1e-6 * random(N, DIM)
    # n x n covariances of E itself would lose the difference to rounding: the mean over tokens is taken away before.
    literal = literal_cosine(E - E.mean(dim=0), term, centre_tokens=True)
    assert covariance_cosine(E, prepare_term(term, centre_tokens=True)) == pytest.approx(literal, rel=1e-8)
    E = random(N, 1).expand(N, DIM) + 1e-6 * random(N, DIM)
    assert covariance_cosine(E, term) == pytest.approx(literal_cosine(E, term), rel=1e-6)


def test_nothing_to_compare_is_nan(random: Callable[..., Tensor], term: Tensor) -> None:
    E = random(N, DIM)
    assert math.isnan(covariance_cosine(torch.zeros(N, DIM), term))
    assert math.isnan(covariance_cosine(random(N, 1).expand(N, DIM), term))  # no row differs from its mean
    same, A = random(1, DIM).expand(N, DIM), random(DIM, DIM)
    assert math.isnan(attention_covariance_cosine(same, A, term))
    assert math.isnan(covariance_cosine(same, prepare_term(term, centre_tokens=True)))
    assert math.isnan(covariance_cosine(E, torch.zeros(N, N)))
    assert math.isnan(attention_covariance_cosine(E, torch.zeros(DIM, DIM), term))
    assert math.isnan(prepare_term(torch.zeros(N, N)).constant_cosine)


def test_covariances_refuse_bad_input(random: Callable[..., Tensor], term: Tensor) -> None:
    E, A = random(N, DIM), random(DIM, DIM)
    cases: list[tuple[Callable[[], object], str]] = [
        (lambda: covariance_cosine(E[:-1], term), "39 rows"),
        (lambda: covariance_cosine(E, term[:, :-1]), "must be"),
        (lambda: covariance_cosine(E[0], term), "matrix"),
        (lambda: covariance_cosine(E * 1j, term), "real matrix"),
        (lambda: prepare_terms(term, term[1:, 1:]), "over the same tokens"),
        (lambda: covariance_cosine(E / 0, term), "not finite"),
        (lambda: covariance_cosine(E, term.log()), "not finite"),
        (lambda: attention_covariance_cosine(E, A[:-1], term), "query_key"),
        (lambda: attention_covariance_cosine(E, A / 0, term), "not finite"),
        (lambda: head_covariance_cosines(E, A, A, term), "query and key"),
    ]
    for compare, message in cases:
        with pytest.raises(InputError, match=message):
            compare()


@pytest.mark.parametrize("family", ["gpt_neox", "llama", "gpt2"])
@pytest.mark.parametrize("centre_tokens", [False, True])
def test_layers_literally(family: str, centre_tokens: bool, random: Callable[..., Tensor]) -> None:
    model = as_language_model(tiny_model(family).double().eval())
    tokens = torch.arange(5, 45)
    value, attention = random(N, N), random(N, N)
    layers = list(compare_layers(model, tokens, prepare_terms(value, attention, centre_tokens=centre_tokens)))
    assert [layer.layer for layer in layers] == [1, 2, 3]
    for found, (layer, before, after_attention, after) in zip(
        layers, model.single_token_residuals(tokens), strict=True
    ):

        def literal(matrix: Tensor, term: Tensor) -> object:
            return pytest.approx(literal_cosine(matrix.double(), term, centre_tokens), rel=1e-8)

        scores = [before @ model.query_key(layer, head) @ before.T for head in range(model.n_heads)]
        assert found.embedding == literal(after, value)
        assert found.without_mlp == literal(after_attention, value)
        assert found.attention == literal(torch.stack(scores).mean(dim=0), attention)
        assert found.attention_transposed == literal(torch.stack(scores).mean(dim=0), attention.T)
        assert found.heads == [literal(matrix, attention) for matrix in scores]
        assert found.heads_transposed == [literal(matrix, attention.T) for matrix in scores]
        assert found.head_spread == pytest.approx(np.std(found.heads))


def test_layers_need_the_terms_tokens(random: Callable[..., Tensor]) -> None:
    model = as_language_model(tiny_model("gpt2"))
    terms = prepare_terms(random(N, N), random(N, N))
    with pytest.raises(InputError, match="3 tokens but leading terms over 40"):
        next(compare_layers(model, torch.arange(3), terms))


def literal_restricted(x: np.ndarray, y: np.ndarray, tokens: list[int]) -> dict[str, np.ndarray]:
    """The definitions of B, Phi and Q with zero rows for tokens that were not chosen."""
    (N, T), n = x.shape, len(tokens)
    one_hot = np.zeros((max(x.max(), y.max()) + 1, n))
    one_hot[tokens] = np.eye(n)
    U_for = one_hot.sum(axis=1, keepdims=True) / n  # Y - U is zero where the token predicted was not chosen
    X, YU = one_hot[x], (one_hot - U_for)[y]
    A0 = np.tril(np.ones((T, T))) / np.arange(1, T + 1)[:, None]
    B = sum(X[i].T @ YU[i] for i in range(N)) / (N * T)
    Phi = sum(YU[i].T @ A0 @ X[i] for i in range(N)) / (N * T)
    S = B.T @ B
    Q, Delta = np.zeros((n, n)), np.zeros(T)
    for i in range(N):
        g = one_hot[y[i]] @ S @ Phi @ X[i].T
        Q_i = np.zeros((T, T))
        for t in range(T):
            for m in range(t + 1):
                Q_i[t, m] = (g[t, m] - g[t, : t + 1].mean()) / (t + 1)
                Delta[t - m] += Q_i[t, m] / (N * T)
        Q += X[i].T @ Q_i @ X[i] / (N * T)
    return {
        "bigram": B,
        "interchangeability": S,
        "context": Phi,
        "value": Phi.T @ B.T,
        "attention": Q,
        "position": Delta,
    }


def test_chosen_tokens_literally() -> None:
    generator = torch.Generator().manual_seed(0)
    sequences = torch.randint(0, 12, (5, 9), generator=generator) ** 2 // 6  # some tokens are more common
    x, y = sequences[:, :-1].contiguous(), sequences[:, 1:].contiguous()
    chosen = [10, 0, 2, 4, 6, 19]  # not in the order of their numbers; 19 never occurs
    assert 19 not in sequences
    assert int(sequences.max()) == 20
    expected = literal_restricted(x.numpy(), y.numpy(), chosen)
    for name, tensor in restricted_basis_functions(x, y, torch.tensor(chosen)).items():
        np.testing.assert_allclose(tensor.numpy(), expected[name], rtol=1e-10, atol=1e-16, err_msg=name)


def test_all_tokens_are_the_basis_functions() -> None:
    sequences = torch.randint(0, 9, (6, 11), generator=torch.Generator().manual_seed(0))
    x, y = sequences[:, :-1].contiguous(), sequences[:, 1:].contiguous()
    for (name, ours), (_, theirs) in zip(
        restricted_basis_functions(x, y, torch.arange(9)).items(), basis_functions(x, y, 9).items(), strict=True
    ):
        torch.testing.assert_close(ours, theirs, msg=name, rtol=1e-10, atol=1e-18)


def by_letter(text: str) -> list[int]:
    return [ord(letter) for letter in text]


def test_texts_are_cut_and_the_most_common_tokens_chosen() -> None:
    found = token_statistics(["abababcz", "abcabab", "short"], by_letter, n_tokens=2, length=6)
    assert found.tokens.tolist() == by_letter("ab")
    assert found.counts.tolist() == [6, 6]  # of "abababc" and "abcabab": the z is cut, "short" is too short
    assert (found.n_sequences, found.n_texts, found.length) == (2, 3, 6)
    assert found.coverage == pytest.approx(12 / 14)
    assert found.basis.value.shape == (2, 2)
    x, y = token_sequences(["abcdefg"], by_letter, 3)
    assert (x.tolist(), y.tolist()) == ([by_letter("abc")], [by_letter("bcd")])


def test_statistics_refuse_bad_input() -> None:
    pair = token_sequences(["abcd"], by_letter, 3)
    cases: list[tuple[Callable[[], object], str]] = [
        (lambda: token_statistics(["abc"], by_letter, length=3), "needs a text of 4 tokens"),
        (lambda: token_statistics([], by_letter), "needs a text"),
        (lambda: token_statistics(["aaaa"], by_letter, length=3), "single token"),
        (lambda: token_statistics(["abcd"], by_letter, n_tokens=1, length=3), "n_tokens"),
        (lambda: token_statistics(["abcd"], by_letter, length=1), "length"),
        (lambda: restricted_basis_functions(*pair, torch.tensor([97, 97])), "differ"),
        (lambda: restricted_basis_functions(*pair, torch.tensor([-1, 97])), "none below 0"),
        (lambda: restricted_basis_functions(*pair, torch.tensor([97.0, 98.0])), "int64"),
        (lambda: restricted_basis_functions(*pair, [97, 98]), "int64"),
        (lambda: restricted_basis_functions(pair[0][:0], pair[1][:0], torch.tensor([97, 98])), "non-empty"),
    ]
    for ask, message in cases:
        with pytest.raises(InputError, match=message):
            ask()
