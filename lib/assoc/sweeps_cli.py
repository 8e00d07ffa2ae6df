"""The command `python -m assoc reproduce`: plan and run the sweeps whose results the book ships."""

import argparse
from pathlib import Path

from assoc import sweeps
from assoc.files import check_writable


def register(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add `reproduce` to the command line."""
    parser = subparsers.add_parser(
        "reproduce",
        help="run the long sweeps whose results the book ships",
        description="Run the sweeps whose result files the chapters show. Prints its plan and the time it will take "
        "before it starts; can be stopped at any time, and goes on where it was.",
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="sweeps to run (default: all)")
    parser.add_argument("--plan", action="store_true", help="print the plan and stop")
    parser.add_argument("--fresh", action="store_true", help="compute again what is at hand")
    parser.add_argument("--output", default="book/results", metavar="FOLDER", help="of result files (%(default)s)")
    parser.add_argument("--kept", default="_build/reproduce", metavar="FOLDER", help="of finished points (%(default)s)")
    parser.set_defaults(run=reproduce)


def reproduce(options: argparse.Namespace) -> None:
    """Print the plan, then run the sweeps one by one."""
    known = sweeps.every_sweep()
    chosen = sweeps.choose(options.names, known)
    kept, output = Path(options.kept), Path(options.output)
    if options.fresh and not options.plan:
        check_writable(output / f"{chosen[0].name}.json")  # before anything that was computed is thrown away
        for sweep in chosen:
            for point in sweep.points:
                check_writable(sweeps.point_path(sweep, point, kept)).unlink(missing_ok=True)
    print(*sweeps.plan(chosen, kept), sep="\n", flush=True)
    for sweep in known:
        if not options.names and sweep not in chosen:
            print(f"{sweep.name} is left out: it needs the file '{sweep.needs}'", flush=True)
    if options.plan:
        return
    for sweep in chosen:
        print(f"wrote {sweeps.run(sweep, output, kept)}", flush=True)
