"""The command line: `python -m assoc corpus | basis | neighbours | train | induction | llm | reproduce`."""

import argparse
import shlex
import sys
from collections.abc import Sequence
from typing import NoReturn

from assoc import __version__
from assoc.errors import InputError


class OneLineParser(argparse.ArgumentParser):
    """A parser whose errors are one line, like all others of this program."""

    def error(self, message: str) -> NoReturn:
        """Print `error: ...` with the place of the help, and exit with status 2."""
        self.exit(2, f"error: {' '.join(message.split())} (see {self.prog} --help)\n")


def build_parser() -> argparse.ArgumentParser:
    """The parser with one subcommand per library task; each package registers its own in its `cli` module."""
    from assoc import sweeps_cli
    from assoc.corpus import cli as corpus_cli
    from assoc.induction import cli as induction_cli
    from assoc.leading_terms import cli as leading_terms_cli
    from assoc.llm import cli as llm_cli

    parser = OneLineParser(prog="python -m assoc", description="How transformers learn associations.")
    parser.add_argument("--version", action="version", version=f"assoc {__version__}")
    subparsers = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for package in (corpus_cli, leading_terms_cli, induction_cli, llm_cli, sweeps_cli):
        package.register(subparsers)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one subcommand; bad input ends with `error: ...` on stderr and status 2.

    Commands find the whole command in `options.command_line`, for the files that they write.
    """
    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        options = build_parser().parse_args(arguments)
        options.command_line = shlex.join(["python", "-m", "assoc", *arguments])
        options.run(options)
        sys.stdout.flush()  # a full disk behind `> file` shows here, not when Python ends
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except (MemoryError, RuntimeError) as error:
        # torch reports what it cannot allocate as a RuntimeError; any other is a bug that should be seen.
        if isinstance(error, RuntimeError) and "alloc" not in str(error) and "Storage size" not in str(error):
            raise
        print("error: there is not enough memory for these sizes: choose smaller ones", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # Somebody closed the pipe (`| head`): nothing is wrong, and Python must not complain again at exit.
        sys.stderr.close()
        return 0
    except OSError as error:
        print(f"error: {error.strerror or error}: the output could not be written", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
