"""Coefficients and bounds of the theorems, against the recursions they come from and the runs they speak of."""

import math
from collections.abc import Callable
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from assoc.errors import InputError
from assoc.leading_terms import (
    AttentionOnlyTransformer,
    basis_functions,
    bounds_apply,
    error_bounds,
    leading_terms,
    step_coefficients,
    train,
)
from assoc.leading_terms.basis import BasisFunctions
from assoc.leading_terms.theory import bounds_below_terms, gaussian_bounds_apply, gaussian_start_probability


@settings(deadline=None)
@given(st.integers(0, 200))
def test_coefficients_count_the_steps(steps: int) -> None:
    """To leading order, step j + 1 adds eta to W_O, eta times the coefficient of W_O to V, and eta times the product of
    those of W_O (through G) and of V (through the scores of the Jacobian) to W and P."""
    eta = Fraction(1, 7)
    output = value = attention = Fraction(0)
    for _ in range(steps):
        output, value, attention = output + eta, value + eta * output, attention + eta * output * value
    expected = step_coefficients(steps, float(eta))
    assert expected.output == pytest.approx(float(output))
    assert expected.value == pytest.approx(float(value))
    assert expected.attention == expected.position == pytest.approx(float(attention))


def test_third_step_has_attention_two_eta_to_the_fourth() -> None:
    assert step_coefficients(2, 0.5) == (1.0, 0.25, 0.0, 0.0)
    assert step_coefficients(3, 0.5) == (1.5, 0.75, 2 * 0.5**4, 2 * 0.5**4)


def test_bounds_by_hand() -> None:
    assert error_bounds(2, 0.5, 10) == pytest.approx((3, 12, 130, 130))
    assert error_bounds(2, 0.5, 10, n_layers=1) == pytest.approx((3, 4, 60, 60))
    # s eta = 2: its powers are 4, 8 and 32
    assert error_bounds(4, 0.5, 10) == pytest.approx((3 * 4, 12 * 8, 13 * 32 * 10, 13 * 32 * 10))
    assert error_bounds(4, 0.5, 1, n_layers=1) == pytest.approx((3 * 4, 4 * 8, 6 * 32, 6 * 32))


@settings(deadline=None)
@given(st.integers(0, 300), st.fractions(Fraction(1, 500), 4), st.integers(1, 500), st.integers(1, 12))
def test_bounds_in_exact_fractions(steps: int, eta: Fraction, length: int, n_layers: int) -> None:
    """Theorems D.7 and D.10: each bound beside the leading term's own powers has one factor s eta more."""
    constants = (3, 4, 6, 6) if n_layers == 1 else (3, 12, 13, 13)
    powers = (2, 3, 5, 5)
    sizes = (1, 1, length, length)
    expected = [c * (steps * eta) ** p * size for c, p, size in zip(constants, powers, sizes, strict=True)]
    assert error_bounds(steps, float(eta), length, n_layers) == pytest.approx([float(bound) for bound in expected])


def terms_of_norms(output: float, value: float, attention: float, position: float) -> BasisFunctions:
    """Statistics whose leading terms have these Frobenius norms."""

    def matrix(norm: float) -> torch.Tensor:
        return torch.full((2, 2), norm / 2, dtype=torch.float64)

    P = torch.tensor([0.0, -position], dtype=torch.float64)
    return BasisFunctions(matrix(output), matrix(9.0), matrix(9.0), matrix(value), matrix(attention), P)


def test_times_below_which_bounds_are_smaller_than_terms() -> None:
    # s = 4: C(4,2)/4^2 = 6/16 and c_4/4^4 = (3 + 8)/256
    several, one = terms_of_norms(3, 12, 130, 260), terms_of_norms(3, 4, 60, 120)
    expected = pytest.approx((1, 6 / 16, 11 / 256, 2 * 11 / 256))
    assert bounds_below_terms(several, 4, length=10) == expected
    assert bounds_below_terms(several, 4, length=10, n_layers=2) == expected
    assert bounds_below_terms(one, 4, length=10, n_layers=1) == expected
    # After one step nothing but the output has moved.
    assert bounds_below_terms(several, 1, length=10) == pytest.approx((1, 0, 0, 0))


def test_probability_of_the_gaussian_start_by_hand() -> None:
    """V = 4: V^(1 + 2 xi) is 4, 8, 16 and V^(2 + 2 xi) is 16, 32, 64 for xi = 0, 1/4, 1/2."""
    for exponent, powers in ((0.0, (4, 16)), (0.25, (8, 32)), (0.5, (16, 64))):
        doubt = sum(math.e ** (-power / 4) for power in powers)
        for n_layers in (1, 2, 5):
            found = gaussian_start_probability(4, n_layers, exponent)
            assert found == pytest.approx(1 - (3 * n_layers + 1) * doubt, rel=1e-12)
    assert gaussian_start_probability(4, 2) == gaussian_start_probability(4, 2, 0.0)
    assert gaussian_start_probability(1, 1) == pytest.approx(1 - 8 * math.e**-0.25)


def test_where_a_gaussian_start_keeps_the_bounds() -> None:
    """T = 16, L = 1: v <= eta^2/256, V >= 16 and eta >= 1/16, each with equality, and s eta < 0.13."""
    allowed = {"steps": 2, "learning_rate": 1 / 16, "length": 16, "vocab_size": 16, "n_layers": 1, "scale": 2.0**-16}
    assert gaussian_bounds_apply(**allowed)
    for change in (
        {"steps": 3},
        {"learning_rate": 1 / 16 - 1e-9, "scale": 0.0},
        {"vocab_size": 15},
        {"n_layers": 2},
        {"scale": 2.0**-16 + 1e-9},
    ):
        assert not gaussian_bounds_apply(**allowed | change), change
    assert gaussian_bounds_apply(1, 1 / 8, 16, 17, 1, 2.0**-14)


def test_where_the_bounds_are_proved() -> None:
    # L = 2 needs T >= 64, and s eta <= min(1/24, 5/64) = 1/24
    assert bounds_apply(4, 0.01, length=64, vocab_size=500, n_layers=2)
    assert not bounds_apply(5, 0.01, length=64, vocab_size=500, n_layers=2)
    assert not bounds_apply(4, 0.01, length=63, vocab_size=500, n_layers=2)
    assert not bounds_apply(4, 0.01, length=64, vocab_size=499, n_layers=2)
    # three layers need T >= 144; one layer T >= 3 and s eta <= 3/(8 T^(3/8))
    assert not bounds_apply(1, 0.001, length=143, vocab_size=500, n_layers=3)
    assert bounds_apply(1, 0.001, length=144, vocab_size=500, n_layers=3)
    assert bounds_apply(1, 0.001, length=144, vocab_size=500)
    assert bounds_apply(1, 3 / (8 * 16 ** (3 / 8)) - 1e-9, length=16, vocab_size=5, n_layers=1)
    assert not bounds_apply(1, 3 / (8 * 16 ** (3 / 8)) + 1e-9, length=16, vocab_size=5, n_layers=1)
    assert bounds_apply(1, 0.001, length=3, vocab_size=500, n_layers=1)
    assert not bounds_apply(1, 0.001, length=2, vocab_size=500, n_layers=1)
    # 256^(3/8) = 8: s eta = 3/64 is allowed
    assert bounds_apply(3, 1 / 64, length=256, vocab_size=5, n_layers=1)
    # for long sequences 5/(8 sqrt T) is the smaller: T = 400 gives 1/32 against 1/24
    assert bounds_apply(1, 1 / 32, length=400, vocab_size=500, n_layers=2)
    assert not bounds_apply(1, 1 / 32 + 1e-9, length=400, vocab_size=500, n_layers=2)


def test_a_run_inside_the_proved_region_keeps_the_bounds() -> None:
    """Not vacuous: the errors are above a thousandth of rounding, and far below the leading terms."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(8, (6, 17), generator=generator)
    inputs, targets, steps, eta = x[:, :-1].contiguous(), x[:, 1:].contiguous(), 6, 0.02
    assert bounds_apply(steps, eta, length=16, vocab_size=8, n_layers=1)
    basis = basis_functions(inputs, targets, 8)
    model = AttentionOnlyTransformer(8, 16, 1)
    train(model, inputs, targets, eta, steps, show_progress=False)
    bounds = error_bounds(steps, eta, 16, n_layers=1)
    for kind, term in leading_terms(basis, steps, eta).items():
        error = (model.weights()[kind][0].detach() - term).norm()
        assert 0 < error <= getattr(bounds, kind), kind


@pytest.mark.parametrize(
    "bad", [(-1, 0.1), (1.5, 0.1), (True, 0.1), (2, 0.0), (2, 1e200), (2, "1"), (2, float("nan")), (2, float("inf"))]
)
def test_bad_steps_and_rates(bad: tuple) -> None:
    name = "steps" if isinstance(bad[0], bool) or bad[0] != 2 else "learning_rate"
    with pytest.raises(InputError, match=f"^{name} is "):
        step_coefficients(*bad)


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda: error_bounds(2, 0.1, 0), "length"),
        (lambda: error_bounds(2, 0.1, 5, n_layers=0), "n_layers"),
        (lambda: error_bounds(-1, 0.1, 5), "steps"),
        (lambda: bounds_apply(2, 0.1, length=0, vocab_size=500), "length"),
        (lambda: bounds_apply(2, 0.1, length=64, vocab_size=0), "vocab_size"),
        (lambda: bounds_apply(2, 0.1, length=64, vocab_size=500, n_layers=0), "n_layers"),
        (lambda: bounds_apply(2, -0.1, length=64, vocab_size=500), "learning_rate"),
        (lambda: bounds_below_terms(terms_of_norms(1, 1, 1, 1), 0, 5), "steps"),
        (lambda: gaussian_start_probability(0, 1), "vocab_size"),
        (lambda: gaussian_start_probability(4, 0), "n_layers"),
        (lambda: gaussian_start_probability(4, 1, -0.1), "exponent"),
        (lambda: gaussian_start_probability(4, 1, 5.1), "exponent"),
        (lambda: gaussian_bounds_apply(1, 1 / 16, 16, 16, 1, scale=-1e-9), "scale"),
    ],
)
def test_bad_input_names_the_argument(call: Callable[[], object], name: str) -> None:
    with pytest.raises(InputError, match=f"^{name} is "):
        call()
