"""The command line: `python -m assoc corpus | basis | neighbours | train | induction`."""

import argparse
import sys
from collections.abc import Sequence

from assoc import __version__
from assoc.errors import InputError


def build_parser() -> argparse.ArgumentParser:
    """The parser with one subcommand per library task; each package registers its own in its `cli` module."""
    from assoc.corpus import cli as corpus_cli
    from assoc.induction import cli as induction_cli
    from assoc.leading_terms import cli as leading_terms_cli

    parser = argparse.ArgumentParser(prog="python -m assoc", description="How transformers learn associations.")
    parser.add_argument("--version", action="version", version=f"assoc {__version__}")
    subparsers = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for package in (corpus_cli, leading_terms_cli, induction_cli):
        package.register(subparsers)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one subcommand; bad input ends with `error: ...` on stderr and status 2."""
    options = build_parser().parse_args(arguments)
    try:
        options.run(options)
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # Somebody closed the pipe (`| head`): nothing is wrong, and Python must not complain again at exit.
        sys.stderr.close()
        return 0
    return 0


if __name__ == "__main__":
    sys.exit(main())
