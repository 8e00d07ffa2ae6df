"""The one error that readers are meant to see."""


class InputError(ValueError):
    """Bad input, with a one-line message that says what to do.

    The command line prints it without a traceback and exits with status 2.
    """

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.split()))
