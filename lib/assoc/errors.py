"""The one error that readers are meant to see, and the checks that raise it everywhere."""


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
