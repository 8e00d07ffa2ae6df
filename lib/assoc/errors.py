"""The one error that readers are meant to see, and the checks that raise it everywhere."""

import math
import operator
from numbers import Real

LARGEST = 2**63 - 1
"""The largest whole number that the size of a tensor, or a seed, can be."""


class InputError(ValueError):
    """Bad input, with a one-line message that says what to do.

    The command line prints it without a traceback and exits with status 2.
    """

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.split()))


def whole_number(name: str, value: int, minimum: int, maximum: int = LARGEST) -> int:
    """The argument `name` as an int, or an InputError if it is not a whole number from minimum to maximum."""
    try:
        number = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = None
    if number is not None and minimum <= number <= maximum:
        return number
    is_above = number is not None and number > maximum
    limits = f"from {minimum} to {maximum}" if is_above or maximum < LARGEST else f"of at least {minimum}"
    shown = "too large" if is_above and number > LARGEST else repr(value)
    raise InputError(f"{name} is {shown}: give a whole number {limits}")


def finite_number(name: str, value: float, minimum: float = -math.inf, maximum: float = math.inf) -> float:
    """The argument `name` as a float, or an InputError if it is not a finite number from minimum to maximum."""
    is_number = isinstance(value, Real) and not isinstance(value, bool)
    if is_number and abs(value) < 1e308 and minimum <= value <= maximum:
        return float(value)
    limits = "" if minimum == -math.inf else f" of at least {minimum:g}"
    limits = limits if maximum == math.inf else f" from {minimum:g} to {maximum:g}"
    raise InputError(f"{name} is {value!r}: give a finite number{limits}")


def learning_rate_above_zero(value: float) -> float:
    """The learning rate as a float, or an InputError unless it is a finite number above 0 (and below 1e30)."""
    if isinstance(value, bool) or not isinstance(value, Real) or not 0 < value < 1e30:
        raise InputError(f"learning_rate is {value!r}: give a finite number above 0")
    return float(value)
