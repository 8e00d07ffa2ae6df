"""What the weights should be after s steps from zero, and how wrong that may be (paper A, Theorems D.7 and D.10)."""

from math import comb, exp
from typing import NamedTuple

from torch import Tensor

from assoc.errors import finite_number, learning_rate_above_zero, whole_number
from assoc.leading_terms.basis import BasisFunctions

LARGEST_EXPONENT = 5  # xi of Theorem D.13; powers of larger ones leave the range of floating-point numbers
KINDS = ("output", "value", "attention", "position")  # the four kinds of weight, in the order in which they are learned


class PerKind(NamedTuple):
    """One number for each kind of weight."""

    output: float
    value: float
    attention: float
    position: float


def _check(steps: int, learning_rate: float) -> None:
    whole_number("steps", steps, minimum=0)
    learning_rate_above_zero(learning_rate)


def step_coefficients(steps: int, learning_rate: float) -> PerKind:
    """Factors of the leading terms after s steps of size eta from zero (paper A, Theorem D.10, Lemmas D.4 to D.6).

    W_O = s eta B;  V_l = C(s,2) eta^2 Phi'B';  W_l = c eta^4 Q and P_l = c eta^4 Delta with c = 3 C(s,4) + 2 C(s,3).

    Raises:
        InputError: steps is not a whole number >= 0, or learning_rate not a finite number > 0.
    """
    _check(steps, learning_rate)
    s = int(steps)
    attention = (3 * comb(s, 4) + 2 * comb(s, 3)) * learning_rate**4
    return PerKind(s * learning_rate, comb(s, 2) * learning_rate**2, attention, attention)


def error_bounds(steps: int, learning_rate: float, length: int, n_layers: int = 3) -> PerKind:
    """Bounds on the Frobenius norm of weight minus leading term, from a zero start.

    Several layers (Theorem D.10): 3 s^2 eta^2, 12 s^3 eta^3, 13 s^5 eta^5 T, 13 s^5 eta^5 T.
    One layer (Theorem D.7): the same with the constants 3, 4, 6, 6.
    They are proved only where `bounds_apply` says so.

    Args:
        steps: s. learning_rate: eta. length: T. n_layers: L.
    """
    _check(steps, learning_rate)
    whole_number("length", length, minimum=1)
    whole_number("n_layers", n_layers, minimum=1)
    time = steps * learning_rate
    output, value, attention = (3, 4, 6) if n_layers == 1 else (3, 12, 13)
    return PerKind(output * time**2, value * time**3, attention * time**5 * length, attention * time**5 * length)


def bounds_apply(steps: int, learning_rate: float, length: int, vocab_size: int, n_layers: int = 3) -> bool:
    """Whether the theorem's conditions hold, so that `error_bounds` is proved.

    Several layers (D.10): L <= sqrt(T)/4, s eta <= min(1/(12 L), 5/(8 sqrt T)), T >= 60, V >= 500.
    One layer (D.7): s eta <= 3/(8 T^(3/8)), T >= 3.
    """
    _check(steps, learning_rate)
    for name, size in (("length", length), ("vocab_size", vocab_size), ("n_layers", n_layers)):
        whole_number(name, size, minimum=1)
    time = steps * learning_rate
    if n_layers == 1:
        return length >= 3 and time <= 3 / (8 * length ** (3 / 8))
    return (
        n_layers <= length**0.5 / 4
        and time <= min(1 / (12 * n_layers), 5 / (8 * length**0.5))
        and length >= 60
        and vocab_size >= 500
    )


def bounds_below_terms(basis: BasisFunctions, steps: int, length: int, n_layers: int = 3) -> PerKind:
    """The training time s eta below which each bound is smaller than the leading term it is about, after s steps.

    From `error_bounds` and `step_coefficients`, with |.| for Frobenius norms and c_s = 3 C(s,4) + 2 C(s,3):
    |B|/3 for the output; (C(s,2)/s^2) |Phi'B'|/12 for the values; (c_s/s^4) |Q|/(13 T) and (c_s/s^4) |Delta|/(13 T)
    for attention and position; for one layer with 4 and 6 in the place of 12 and 13. From there on the theorem alone
    cannot tell a weight from zero.
    """
    steps = whole_number("steps", steps, minimum=1)
    bounds, factors = error_bounds(steps, 1 / steps, length, n_layers), step_coefficients(steps, 1 / steps)
    # At s eta = 1; the bound has one power of s eta more than the term.
    return PerKind(*(getattr(factors, k) * float(basis.leading_term(k).norm()) / getattr(bounds, k) for k in KINDS))


def gaussian_start_probability(vocab_size: int, n_layers: int, exponent: float = 0.0) -> float:
    """1 - (3 L + 1)(exp(-V^(1 + 2 xi)/4) + exp(-V^(2 + 2 xi)/4)): how surely Theorem D.13 has its bounds hold."""
    V, L = whole_number("vocab_size", vocab_size, minimum=1), whole_number("n_layers", n_layers, minimum=1)
    exponent = finite_number("exponent", exponent, minimum=0, maximum=LARGEST_EXPONENT)
    return 1 - (3 * L + 1) * (exp(-(V ** (1 + 2 * exponent)) / 4) + exp(-(V ** (2 + 2 * exponent)) / 4))


def gaussian_bounds_apply(
    steps: int, learning_rate: float, length: int, vocab_size: int, n_layers: int, scale: float
) -> bool:
    """Whether Theorem D.13 speaks of a start N(0, v^2/V^(2 + 2 xi)), v = `scale`: then `error_bounds` hold with
    `gaussian_start_probability`.

    Its conditions are those of `bounds_apply`, v <= eta^2/T^2, T <= V and eta >= 1/T.
    """
    scale = finite_number("scale", scale, minimum=0)
    return (
        bounds_apply(steps, learning_rate, length, vocab_size, n_layers)
        and scale <= learning_rate**2 / length**2
        and length <= vocab_size
        and learning_rate >= 1 / length
    )


def leading_terms(basis: BasisFunctions, steps: int, learning_rate: float) -> dict[str, Tensor]:
    """The weights that the theory predicts after `steps` steps: kind of weight -> tensor, the same in every layer."""
    coefficients = step_coefficients(steps, learning_rate)
    return {kind: getattr(coefficients, kind) * basis.leading_term(kind) for kind in KINDS}
