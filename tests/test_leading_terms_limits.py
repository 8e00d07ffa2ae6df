"""Next orders, feedback, bounds and shipped sweeps of chapter 5A, against autograd and literal formulas in float64."""

import os
from math import comb, log2
from pathlib import Path

import pytest
import torch
from torch.nn.functional import one_hot

from assoc.errors import InputError
from assoc.leading_terms import (
    KINDS,
    AttentionOnlyTransformer,
    basis_functions,
    error_bounds,
    leading_terms,
    mean_cross_entropy,
    step_coefficients,
    train,
)
from assoc.leading_terms.corrections import (
    Moments,
    feedback_attention,
    feedback_descent,
    moments,
    output_corrections,
    summed_feedback,
    value_corrections,
)
from assoc.leading_terms.limits import (
    bounds_point,
    descend,
    error_table,
    reach_point,
    some_stories,
    spread,
    start_point,
    time_past,
)
from assoc.leading_terms.sweeps import LIMITS
from assoc.leading_terms.theory import bounds_below_terms, gaussian_bounds_apply, gaussian_start_probability
from assoc.sweeps import load_results

V, T, N = 7, 6, 9
RESULTS = Path(__file__).parents[1] / "book" / "results"


@pytest.fixture(scope="module")
def tokens() -> tuple[torch.Tensor, torch.Tensor]:
    sequences = torch.randint(V, (N, T + 1), generator=torch.Generator().manual_seed(3))
    sequences[:, 1::3] = sequences[:, :1]  # so that a prefix tells something of the next token
    return sequences[:, :-1].contiguous(), sequences[:, 1:].contiguous()


@pytest.fixture(scope="module")
def statistics(tokens) -> Moments:
    return moments(*tokens, V, 3)


def average() -> torch.Tensor:
    return torch.ones(T, T, dtype=torch.float64).tril() / torch.arange(1, T + 1)[:, None]


def trained(tokens, n_layers: int, steps: int, eta: float) -> AttentionOnlyTransformer:
    """Descent by plain automatic differentiation."""
    model = AttentionOnlyTransformer(V, T, n_layers, dtype=torch.float64)
    for _ in range(steps):
        model.zero_grad()
        mean_cross_entropy(model, *tokens).backward()
        with torch.no_grad():
            for weight in model.parameters():
                weight -= eta * weight.grad
    return model


def test_moments_by_their_definitions(tokens, statistics) -> None:
    X, Y = (one_hot(part, V).double() for part in tokens)
    power = torch.eye(T, dtype=torch.float64)
    for phi in statistics.contexts:
        literal = torch.einsum("ntv,tm,nmw->vw", Y - 1 / V, power, X) / (N * T)
        assert torch.allclose(phi, literal, atol=1e-15)
        power = average() @ power
    assert torch.allclose(statistics.prefixes, torch.einsum("nmv,tm,ntw->vw", X, average(), X) / (N * T), atol=1e-15)
    assert torch.allclose(torch.diag(statistics.frequencies), torch.einsum("ntv,ntw->vw", X, X) / (N * T), atol=1e-15)
    basis = basis_functions(*tokens, V)
    assert torch.allclose(statistics.bigram, basis.bigram, atol=1e-15)
    assert torch.allclose(statistics.contexts[1], basis.context, atol=1e-15)


@pytest.mark.parametrize("n_layers", [1, 2, 3])
def test_each_order_takes_one_power_of_eta_from_the_error(n_layers, tokens, statistics) -> None:
    """The error left after the leading term is of order 2 (output) or 3 (values), after "damping" one order higher,
    after all corrections two: a wrong coefficient anywhere would show as a slope that stays behind."""
    steps, basis = 5, basis_functions(*tokens, V)
    left = {}
    for eta in (2.0**-7, 2.0**-8):
        model, leading = trained(tokens, n_layers, steps, eta), leading_terms(basis, steps, eta)
        cases = [("output", 0, model.output, output_corrections(statistics, n_layers, steps, eta))]
        cases += [
            ("value", l, model.value[l - 1], value_corrections(statistics, n_layers, l, steps, eta))
            for l in range(1, n_layers + 1)
        ]
        for kind, layer, weight, terms in cases:
            error = weight.detach() - leading[kind]
            after = (error, error - terms["damping"], error - sum(terms.values()))
            left.setdefault((kind, layer), []).append([float(rest.norm()) for rest in after])
    for (kind, _), (large, small) in left.items():
        order = {"output": 2, "value": 3}[kind]
        for extra in range(3):
            assert log2(large[extra] / small[extra]) == pytest.approx(order + extra, abs=0.15)


@pytest.mark.parametrize("n_layers", [1, 2, 3])
def test_feedback_descent_is_descent_with_frozen_residual_and_attention(n_layers, tokens, statistics) -> None:
    X, Y = (one_hot(part, V).double() for part in tokens)
    eta, steps = 0.7, 6
    weights = [torch.zeros(V, V, dtype=torch.float64, requires_grad=True) for _ in range(n_layers + 1)]
    for output, values in feedback_descent(statistics, n_layers, eta, steps):
        h = X
        for value in weights[1:]:
            h = h + average() @ h @ value
        gain = ((Y - 1 / V) * (h @ weights[0])).sum() / (N * T)
        shares = torch.autograd.grad(gain, weights)
        weights = [(w + eta * share).detach().requires_grad_() for w, share in zip(weights, shares, strict=True)]
        for found, expected in zip([output, *values], weights, strict=True):
            assert torch.allclose(found, expected, rtol=1e-10, atol=1e-14)


def test_summed_feedback_is_exact_for_one_layer_and_right_in_the_next_order_for_more(statistics) -> None:
    eta, steps = 0.9, 9
    *_, (output, values) = feedback_descent(statistics, 1, eta, steps)
    for found, expected in zip(summed_feedback(statistics, 1, steps, eta), (output, values[0]), strict=True):
        assert torch.allclose(found, expected, rtol=1e-10, atol=1e-14)
    eta = 1e-3
    output, value = summed_feedback(statistics, 3, steps, eta)
    B, Phi = statistics.bigram, statistics.contexts[1]
    assert torch.allclose(
        output - steps * eta * B, 3 * comb(steps, 3) * eta**3 * B @ Phi @ Phi.T, rtol=1e-3, atol=1e-13
    )
    next_value = 3 * comb(steps, 4) * eta**4 * Phi.T @ Phi @ Phi.T @ B.T
    assert torch.allclose(value - comb(steps, 2) * eta**2 * Phi.T @ B.T, next_value, rtol=1e-2, atol=1e-15)


def test_summed_feedback_is_a_hyperbolic_sine(statistics) -> None:
    """Many small steps, one singular direction at a time."""
    steps, eta = 4000, 10 / 4000
    output, _ = summed_feedback(statistics, 2, steps, eta)
    left, sigma, _ = torch.linalg.svd(statistics.contexts[1])
    rate = 2**0.5 * sigma
    expected = torch.where(rate > 1e-9, torch.sinh(10 * rate) / rate.clamp(min=1e-9), 10.0)
    assert torch.allclose(output @ left, statistics.bigram @ left * expected, rtol=1e-3, atol=1e-12)


def test_feedback_attention_is_the_gradient_of_the_frozen_model(tokens, statistics) -> None:
    """One layer: descent on W and P at W = P = 0 with the weights of `feedback_descent`, by autograd."""
    X, Y = (one_hot(part, V).double() for part in tokens)
    eta, steps = 0.6, 5
    total_W, total_P = torch.zeros(V, V, dtype=torch.float64), torch.zeros(T, dtype=torch.float64)
    back = torch.arange(T)[:, None] - torch.arange(T)
    for _, (output, (value,)) in zip(range(steps - 1), feedback_descent(statistics, 1, eta, steps), strict=False):
        W = torch.zeros(V, V, dtype=torch.float64, requires_grad=True)
        P = torch.zeros(T, dtype=torch.float64, requires_grad=True)
        scores = (X @ W @ X.transpose(1, 2) + P[back.clamp(min=0)]).masked_fill(back < 0, -torch.inf)
        logits = (X + scores.softmax(dim=2) @ X @ value) @ output
        shares = torch.autograd.grad(((Y - 1 / V) * logits).sum() / (N * T), [W, P])
        total_W, total_P = total_W + eta * shares[0], total_P + eta * shares[1]
    ((found_W, found_P),) = feedback_attention(*tokens, statistics, 1, eta, steps)
    assert torch.allclose(found_W, total_W, rtol=1e-9, atol=1e-15)
    assert torch.allclose(found_P, total_P, rtol=1e-9, atol=1e-15)


def test_feedback_attention_begins_with_the_leading_terms(tokens, statistics) -> None:
    basis, eta, steps = basis_functions(*tokens, V), 1e-4, 5
    c = step_coefficients(steps, eta).attention
    for W, P in feedback_attention(*tokens, statistics, 3, eta, steps):
        assert torch.allclose(W, c * basis.attention, rtol=1e-4, atol=c * 1e-9)
        assert torch.allclose(P, c * basis.position, rtol=1e-4, atol=c * 1e-9)


def test_bounds_equal_terms_at_the_time_that_is_named(tokens) -> None:
    basis = basis_functions(*tokens, V)
    for n_layers in (1, 3):
        for kind, time in bounds_below_terms(basis, 7, T, n_layers)._asdict().items():
            term = float(leading_terms(basis, 7, time / 7)[kind].norm())
            assert getattr(error_bounds(7, time / 7, T, n_layers), kind) == pytest.approx(term)


def test_conditions_and_probability_of_the_gaussian_start() -> None:
    # L = 3, T = 144: s eta <= 1/36, and eta >= 1/144 allows four steps
    sizes = {"length": 144, "vocab_size": 500, "n_layers": 3}
    largest = (1 / 144) ** 2 / 144**2
    assert gaussian_bounds_apply(4, 1 / 144, **sizes, scale=largest)
    assert not gaussian_bounds_apply(4, 1 / 144, **sizes, scale=largest * 1.001)
    assert not gaussian_bounds_apply(5, 1 / 144, **sizes, scale=0)
    assert not gaussian_bounds_apply(4, 1 / 145, **sizes, scale=0)
    assert not gaussian_bounds_apply(1, 0.01, length=501, vocab_size=500, n_layers=1, scale=0)
    assert gaussian_start_probability(8, 1) == pytest.approx(1 - 4 * (2.718281828**-2 + 2.718281828**-16))
    assert gaussian_start_probability(500, 3, exponent=0.5) == 1


def test_descend_is_what_train_does(tokens) -> None:
    found, expected = (AttentionOnlyTransformer(V, T, 2, dtype=torch.float64) for _ in range(2))
    losses = list(descend(found, *tokens, 0.5, 4))
    history = train(expected, *tokens, 0.5, 4, show_progress=False)
    assert losses == pytest.approx(history.loss[:4])
    for a, b in zip(found.parameters(), expected.parameters(), strict=True):
        assert torch.allclose(a, b, rtol=1e-12, atol=1e-15)


def test_error_table_by_hand(tokens) -> None:
    basis, model = basis_functions(*tokens, V), trained(tokens, 2, 4, 0.5)
    table, terms = error_table(model, basis, 4, 0.5), leading_terms(basis, 4, 0.5)
    for kind in KINDS:
        errors = [float((w.detach() - terms[kind]).norm()) for w in model.weights()[kind]]
        assert table[kind]["error"] == pytest.approx(max(errors))
        assert table[kind]["term"] == pytest.approx(float(terms[kind].norm()))
        assert table[kind]["bound"] == pytest.approx(getattr(error_bounds(4, 0.5, T, 2), kind))


def test_passing_times_and_spread() -> None:
    assert time_past([1, 2, 3], [1.0, 0.95, 0.85], 0.9) == pytest.approx(2.5)
    assert time_past([1, 2, 3], [0.0, None, 0.2], 0.1) == pytest.approx(2.0)
    assert time_past([1, 2], [1.0, 0.95], 0.9) is None
    assert time_past([], [], 0.9) is None
    assert spread([1.0, 3.0]) == pytest.approx(2**0.5 / 2)
    with pytest.raises(InputError, match="two numbers"):
        spread([1.0])


def test_bad_input(tokens, statistics) -> None:
    with pytest.raises(InputError, match="end at Phi_1"):
        value_corrections(moments(*tokens, V, 1), 2, 1, 3, 0.1)
    with pytest.raises(InputError, match="there are 2"):
        value_corrections(statistics, 2, 3, 3, 0.1)
    with pytest.raises(InputError, match="end at Phi_3"):
        next(feedback_descent(statistics, 4, 0.1, 2))
    with pytest.raises(InputError, match="learning_rate"):
        output_corrections(statistics, 1, 3, -1.0)
    with pytest.raises(InputError, match="there are"):
        some_stories(100, 32, 10**7, 0)


# What is shipped


@pytest.mark.parametrize("sweep", LIMITS, ids=lambda sweep: sweep.name)
def test_shipped_points_are_those_of_the_registry(sweep) -> None:
    results = load_results(RESULTS / f"{sweep.name}.json")
    for shipped, point in zip(results.points, sweep.points, strict=True):
        assert {key: shipped[key] for key in point} == dict(point)
    assert os.path.getsize(RESULTS / f"{sweep.name}.json") < 150_000


def test_the_start_of_a_shipped_run_can_be_had_again() -> None:
    point = dict(LIMITS[0].points[0])
    shipped = load_results(RESULTS / "5a-reach.json").where(**point)[0]
    found = reach_point(**{**point, "steps": 6})
    n = len(found["times"])
    assert n == 4
    assert shipped["times"][:n] == found["times"]
    for name in ("cosine", "beyond"):
        for kind in KINDS:
            assert shipped[name][kind][:n] == pytest.approx(found[name][kind], abs=2e-3)
    for kind in ("output", "value"):
        for name in ("leading", "next order", "feedback"):
            assert shipped["errors"][name][kind][:n] == pytest.approx(found["errors"][name][kind], rel=0.02)


def test_a_shipped_point_of_the_bounds_can_be_had_again() -> None:
    point = LIMITS[1].points[1]
    shipped = load_results(RESULTS / "5a-bounds.json").where(**point)[0]["records"]
    for old, new in zip(shipped, bounds_point(**point)["records"], strict=True):
        assert (old["steps"], old["proved"]) == (new["steps"], new["proved"])
        for kind in KINDS:
            assert old["kinds"][kind] == pytest.approx(new["kinds"][kind], rel=1e-3)


def test_a_shipped_point_of_the_start_can_be_had_again() -> None:
    point = LIMITS[2].points[1]
    shipped, found = load_results(RESULTS / "5a-start.json").where(**point)[0], start_point(**point)
    assert shipped["proved"] == found["proved"] == 1
    for kind in KINDS:
        assert shipped["kinds"][kind] == pytest.approx(found["kinds"][kind], rel=1e-3, abs=1e-6)
