"""The one error that readers are meant to see, and the checks that raise it everywhere."""

from numbers import Real


class InputError(ValueError):
    """Bad input, with a one-line message that says what to do.

    The command line prints it without a traceback and exits with status 2.
    """

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.split()))


def whole_number(name: str, value: int, minimum: int) -> int:
    """The argument `name` as an int, or an InputError if it is not a whole number of at least `minimum`."""
    if isinstance(value, bool) or not hasattr(value, "__index__") or int(value) < minimum:
        raise InputError(f"{name} is {value!r}: give a whole number of at least {minimum}")
    return int(value)


def learning_rate_above_zero(value: float) -> float:
    """The learning rate as a float, or an InputError unless it is a finite number above 0 (and below 1e30)."""
    if isinstance(value, bool) or not isinstance(value, Real) or not 0 < value < 1e30:
        raise InputError(f"learning_rate is {value!r}: give a finite number above 0")
    return float(value)
