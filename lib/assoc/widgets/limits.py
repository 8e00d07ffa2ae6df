"""Paper A, Theorems D.7 and D.10: error, leading term and bound of every kind of weight, over the training time."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from assoc.errors import InputError
from assoc.figures import PALETTE
from assoc.leading_terms.theory import KINDS
from assoc.widgets.explorer import Explorer, choice, slider
from assoc.widgets.pictures import bar, table

QUANTITIES = ("error", "term", "bound")


def _share(value: float, low: float, high: float) -> float:
    """Where a number above zero lies between powers of ten, from 0 to 1; NaN for zero."""
    return math.nan if value <= 0 else (math.log10(value) - low) / (high - low)


def limits_picture(record: Mapping[str, Any], low: float, high: float) -> str:
    """One training time: for each kind of weight the three numbers with bars, and what they say.

    Args:
        record: steps, time, proved and kinds, as in the records of `assoc.leading_terms.limits.bounds_point`.
        low, high: powers of ten at the ends of the bars.
    """
    rows = []
    for kind in KINDS:
        numbers = record["kinds"][kind]
        bars = "".join(
            f"<div class='track'>{bar(_share(numbers[name], low, high), colour)}</div>"
            for name, colour in zip(QUANTITIES, (PALETTE[kind], "#888888", "currentColor"), strict=True)
        )
        says = "yes" if numbers["bound"] < numbers["term"] else "no"
        rows.append([kind, *(f"{numbers[name]:.0e}" for name in QUANTITIES), bars, says, f"{numbers['cosine']:.4f}"])
    proved = "proved: the theorem's conditions hold" if record["proved"] else "not proved: outside the theorem"
    caption = f"After {record['steps']} steps, s η = {record['time']:.2g}; {proved}."
    bars = f"error, term, bound from 1e{low:g} to 1e{high:g}"
    return table(caption, ["weight", *QUANTITIES, bars, "bound below term", "cosine"], rows)


def limits_explorer(runs: Mapping[str, Sequence[Mapping[str, Any]]]) -> Explorer:
    """Choose a model and a training time; see error, leading term and bound of every kind of weight on log bars.

    Args:
        runs: name of a model -> its records (see `limits_picture`), with the same training times for all models.

    Raises:
        InputError: no runs or records, training times that differ between runs, or numbers of which none lies above 0,
            or that are infinite.
    """
    if not runs or not all(runs.values()):
        raise InputError("there are no runs to choose from: give at least one, with a record")
    times = [[record["time"] for record in records] for records in runs.values()]
    if any(other != times[0] for other in times):
        raise InputError("the runs must have the same training times")
    numbers = [
        record["kinds"][kind][name]
        for records in runs.values()
        for record in records
        for kind in KINDS
        for name in QUANTITIES
    ]
    logarithms = [math.log10(number) for number in numbers if 0 < number < math.inf]
    if not logarithms or math.inf in numbers:
        raise InputError("errors, terms and bounds must be finite, and some of them above 0: look at the runs")
    low, high = math.floor(min(logarithms)), math.ceil(max(logarithms))
    return Explorer(
        "Errors and bounds",
        "Choose a model and drag the training time: in each weight the upper bar is the measured error, the middle one "
        "the leading term, the lower one the theorem's bound, all on one logarithmic scale.",
        [
            choice("model", [(name, name) for name in runs], "how many layers"),
            slider(
                "s η",
                [(f"{time:.2g}", place) for place, time in enumerate(times[0])],
                "training time: steps taken times learning rate",
                index=len(times[0]) // 3,
            ),
        ],
        lambda name, place: limits_picture(runs[name][place], low, high),
    )
