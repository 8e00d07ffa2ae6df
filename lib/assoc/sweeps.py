"""Sweeps: runs that take longer than a chapter may, made once and shipped as small result files.

A sweep is a list of points, each the keyword arguments of one function. `run` computes the points that are still
missing, keeps each in a file of its own as soon as it is done, and writes the result file when none is missing: so a
run can be stopped anywhere and go on.
"""

import hashlib
import json
import math
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from pathlib import Path
from typing import Any

from assoc import __version__
from assoc.errors import InputError
from assoc.files import check_writable, write_json
from assoc.progress import progress

Point = Mapping[str, Any]
DIGITS = 6  # significant digits of a number in a result file


@dataclass(frozen=True)
class Sweep:
    """One result file of the book.

    Attributes:
        name: of the file, without .json; it starts with the chapter that shows it, as in "4b-triggers".
        shows: what a reader learns from it, in one line.
        function: computes one point; its results are numbers, texts, None, and lists or dicts of these.
        points: its keyword arguments, one mapping a point, plain enough for JSON; seeds are among them.
        seconds: roughly what one point takes on two cores.
        needs: a file that the book does not bring along; without it this sweep cannot run.
    """

    name: str
    shows: str
    function: Callable[..., Mapping[str, Any]]
    points: Sequence[Point]
    seconds: float
    needs: str | None = None


def every_sweep() -> list[Sweep]:
    """The sweeps of all packages, in the order of the chapters."""
    from assoc.induction import sweeps as induction
    from assoc.leading_terms import sweeps as leading_terms
    from assoc.llm import sweeps as llm

    return sorted([*leading_terms.SWEEPS, *induction.SWEEPS, *llm.SWEEPS], key=lambda sweep: sweep.name)


def choose(names: Sequence[str], sweeps: Sequence[Sweep]) -> list[Sweep]:
    """The sweeps of these names; if there are none, all but those that need a file which is not there.

    Raises:
        InputError: a name that no sweep has, or a sweep asked for by name whose file is not there.
    """
    known = {sweep.name: sweep for sweep in sweeps}
    for name in names:
        if name not in known:
            raise InputError(f"there is no sweep {name!r}: choose from {', '.join(known)}")
        if not is_possible(known[name]):
            raise InputError(f"{name} needs the file '{known[name].needs}': put it there first")
    return [known[name] for name in dict.fromkeys(names)] or [sweep for sweep in sweeps if is_possible(sweep)]


def is_possible(sweep: Sweep) -> bool:
    """Whether the file that a sweep needs is there."""
    return sweep.needs is None or Path(sweep.needs).exists()


def point_path(sweep: Sweep, point: Point, kept: Path) -> Path:
    """Where one finished point is kept: the name depends on the library's version, the sweep and the arguments."""
    key = json.dumps([__version__, sweep.name, point], sort_keys=True)
    return kept / sweep.name / f"{hashlib.sha256(key.encode()).hexdigest()[:16]}.json"


def kept_record(sweep: Sweep, point: Point, kept: Path) -> dict[str, Any] | None:
    """What was kept of a finished point; None if nothing was, or the file is broken or of another point."""
    try:
        record = json.loads(point_path(sweep, point, kept).read_text())
        is_whole = record.keys() == {"point", "found", "seconds"} and record["point"] == json.loads(json.dumps(point))
    except (OSError, ValueError, AttributeError):
        return None
    return record if is_whole else None


def missing_points(sweep: Sweep, kept: Path) -> list[Point]:
    """The points that were not computed yet, or whose files are broken."""
    return [point for point in sweep.points if kept_record(sweep, point, kept) is None]


def plan(sweeps: Sequence[Sweep], kept: Path) -> list[str]:
    """What a run would do, as lines of text: points, points at hand, time that is left."""
    lines, left = [], 0.0
    for sweep in sweeps:
        missing = len(missing_points(sweep, kept))
        left += missing * sweep.seconds
        at_hand = len(sweep.points) - missing
        lines.append(
            f"{sweep.name}: {len(sweep.points)} points, {at_hand} at hand, {duration(missing * sweep.seconds)} left; "
            f"{sweep.shows}"
        )
    return [*lines, f"All together about {duration(left)} on two cores. Stop with Ctrl-C; the same command goes on."]


def duration(seconds: float) -> str:
    """A time for people: "40 s", "12 min", "3.5 h"."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def rounded(value: Any) -> Any:
    """Numbers to six significant digits, containers within, for small files; not-a-number and infinity become None.

    Raises:
        InputError: something that JSON cannot hold.
    """
    if isinstance(value, Mapping):
        return {str(key): rounded(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(item) for item in value]
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else None
    if value is None or isinstance(value, str | int):
        return value
    raise InputError(f"a point's results hold a {type(value).__name__}: return numbers, texts, lists and dicts")


def run(sweep: Sweep, results: Path, kept: Path, command: Sequence[str] | None = None) -> Path:
    """Compute what is missing of a sweep and write its result file; return the file's path.

    Args:
        sweep: what to run.
        results: folder of the result file. kept: folder where finished points are kept.
        command: what the file says it was made with; default: the command line for this sweep.

    Raises:
        InputError: a folder cannot be written to; a point's results are no mapping of what JSON can hold, or name one
            of its arguments.
    """
    path = check_writable(results / f"{sweep.name}.json")
    records = {place: kept_record(sweep, point, kept) for place, point in enumerate(sweep.points)}
    missing = [place for place, record in records.items() if record is None]
    if missing:
        check_writable(point_path(sweep, sweep.points[missing[0]], kept))
    for place in progress(missing, sweep.name):
        started, point = time.perf_counter(), sweep.points[place]
        found = sweep.function(**point)
        if not isinstance(found, Mapping) or found.keys() & point.keys():
            raise InputError(f"a point of {sweep.name} must return a mapping without the names of its arguments")
        records[place] = {
            "point": dict(point),
            "found": rounded(found),
            "seconds": round(time.perf_counter() - started, 1),
        }
        write_json(point_path(sweep, point, kept), records[place])
    return write_json(
        path,
        {
            "shows": sweep.shows,
            "command": shlex.join(command or ["python", "-m", "assoc", "reproduce", sweep.name]),
            "version": __version__,
            "seed": sorted({point["seed"] for point in sweep.points if point.get("seed") is not None}),
            "seconds": round(sum(record["seconds"] for record in records.values()), 1),
            "points": [{**record["point"], **record["found"]} for record in records.values()],
        },
    )


@dataclass(frozen=True)
class Results:
    """A result file of the book.

    Attributes:
        command, version, seed, seconds: what made it, with which seeds, in how many seconds of computing.
        points: one mapping a point: the arguments, and what was found.
    """

    command: str
    version: str
    seed: list[int]
    seconds: float
    points: list[dict[str, Any]]

    def where(self, **wanted: Any) -> list[dict[str, Any]]:
        """The points whose entries equal these. Raises InputError if there is none."""
        found = [point for point in self.points if all(point.get(key) == value for key, value in wanted.items())]
        if not found:
            raise InputError(f"no point of this result file has {wanted}")
        return found

    def origin(self) -> str:
        """One line that says where the numbers come from."""
        return f"{self.command}   (version {self.version}, {len(self.points)} points, {duration(self.seconds)})"


def load_results(path: str | Path) -> Results:
    """Read a result file that `run` wrote. Raises InputError if there is no such file, or it is of another kind."""
    try:
        content = json.loads(Path(path).read_text())
        results = Results(*(content[name] for name in ("command", "version", "seed", "seconds", "points")))
        if not isinstance(results.points, list) or not all(isinstance(point, dict) for point in results.points):
            raise TypeError("points are no list of mappings")
        if not isinstance(results.command, str) or not isinstance(results.seconds, Real):
            raise TypeError("command is no text, or seconds no number")
        return results
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"cannot read results from '{path}' ({error}): make them with python -m assoc reproduce"
        ) from error
