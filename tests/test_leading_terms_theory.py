"""Coefficients and bounds of the theorems, against the recursions they come from and the runs they speak of."""

from fractions import Fraction

import pytest
import torch
from hypothesis import given
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


def test_where_the_bounds_are_proved() -> None:
    # L = 2 needs T >= 64, and s eta <= min(1/24, 5/64) = 1/24
    assert bounds_apply(4, 0.01, length=64, vocab_size=500, n_layers=2)
    assert not bounds_apply(5, 0.01, length=64, vocab_size=500, n_layers=2)
    assert not bounds_apply(4, 0.01, length=63, vocab_size=500, n_layers=2)
    assert not bounds_apply(4, 0.01, length=64, vocab_size=499, n_layers=2)
    # three layers need T >= 144; one layer T >= 3 and s eta <= 3/(8 T^(3/8))
    assert not bounds_apply(1, 0.001, length=143, vocab_size=500, n_layers=3)
    assert bounds_apply(1, 0.001, length=144, vocab_size=500, n_layers=3)
    assert bounds_apply(1, 3 / (8 * 16 ** (3 / 8)) - 1e-9, length=16, vocab_size=5, n_layers=1)
    assert not bounds_apply(1, 3 / (8 * 16 ** (3 / 8)) + 1e-9, length=16, vocab_size=5, n_layers=1)
    assert not bounds_apply(1, 0.001, length=2, vocab_size=500, n_layers=1)
    # for long sequences 5/(8 sqrt T) is the smaller: T = 400 gives 1/32 against 1/24
    assert bounds_apply(1, 1 / 32 - 1e-9, length=400, vocab_size=500, n_layers=2)
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
    with pytest.raises(InputError, match=r"steps|learning_rate"):
        step_coefficients(*bad)
    with pytest.raises(InputError):
        error_bounds(2, 0.1, 0)
    with pytest.raises(InputError, match="n_layers"):
        bounds_apply(2, 0.1, length=64, vocab_size=500, n_layers=0)
