"""Runs under several conditions: choose a condition and a seed, see the run's curves and when each passes a level."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from assoc.errors import InputError
from assoc.widgets.explorer import Explorer, choice, slider
from assoc.widgets.pictures import Mark, legend, line_chart, marks, panes, table


class Panel(NamedTuple):
    """One chart of a run: what its y axis is called and reaches over, which curves, and a level to be passed."""

    name: str
    curves: Mapping[str, str]  # key of the curve in a run, with dots for mappings within -> name for readers
    limits: tuple[float, float]
    level: float


def curve(run: Mapping[str, object], key: str) -> list[float]:
    """The numbers of a run under a key such as "accuracy" or "recall.key1". Raises InputError if there are none."""
    found: object = run
    for part in key.split("."):
        found = found.get(part) if isinstance(found, Mapping) else None
    if not isinstance(found, list):
        raise InputError(f"this run has no curve {key!r}: it has {', '.join(run)}")
    return [float("nan") if value is None else value for value in found]


def run_picture(
    name: str, run: Mapping[str, object], panels: Sequence[Panel], at: int | None = None, at_name: str = ""
) -> str:
    """The charts of one run, and a table of the first steps at which its curves pass the levels.

    Args:
        name: of the run. at: a step to mark with a line, which is called at_name.
    """
    steps = curve(run, "probed")
    if at is not None and at not in steps:
        raise InputError(f"step {at} of {name} was not probed: choose one of {steps}")
    marked = f", {at_name} at step {at}" if at is not None else ""
    looks = curve_marks(panels)
    charts, rows = [], []
    for panel in panels:
        found = {key: curve(run, key) for key in panel.curves}
        if not steps or any(len(values) != len(steps) for values in found.values()):
            raise InputError(f"{name}: a curve of {panel.name} has not one number for each of {len(steps)} steps")
        ends = ", ".join(f"{panel.curves[key]} {values[-1]:.2f}" for key, values in found.items())
        charts.append(
            line_chart(
                steps,
                found,
                looks,
                x_name="training step",
                y_name=panel.name,
                description=f"{panel.name} of {name}{marked}; at the end {ends}",
                at=None if at is None else steps.index(at),
                y_range=panel.limits,
            )
        )
        for key, values in found.items():
            first = next((step for step, value in zip(steps, values, strict=True) if value >= panel.level), None)
            rows.append(
                [panel.curves[key], f"{panel.level:g}", "never" if first is None else f"{first:g}", f"{values[-1]:.2f}"]
            )
    numbers = table(f"{name}{marked}", ["curve", "level", "first at step", "at the end"], rows)
    return panes(*charts) + numbers


def curve_marks(panels: Sequence[Panel]) -> dict[str, Mark]:
    """A mark for each curve by the last part of its key, so that one memory looks the same in every panel."""
    keys = [key for panel in panels for key in panel.curves]
    looks = marks(list(dict.fromkeys(key.rpartition(".")[2] for key in keys)))
    return {key: looks[key.rpartition(".")[2]] for key in keys}


def compare_runs(
    title: str,
    guide: str,
    runs: Mapping[str, Sequence[Mapping[str, object]]],
    panels: Sequence[Panel],
    *,
    control: str = "condition",
    at: Mapping[str, int] | None = None,
    at_name: str = "",
) -> Explorer:
    """Choose a condition and a seed; see that run's curves, and when each passes a level.

    Args:
        title, guide: what is compared, and what to do.
        runs: condition -> its runs, one a seed, each with the panels' curves and "probed", their steps.
        panels: the charts of a run.
        control: what a condition is called.
        at: condition -> a step to mark, which must be one of those probed. at_name: what happens there.

    Raises:
        InputError: no runs, conditions with different seeds, a curve that a run does not have or that is not as long as
            its steps, or a step to mark that was not probed.
    """
    if not runs or not panels:
        raise InputError("there is nothing to compare: give at least one condition and one panel")
    seeds = [[str(run.get("seed", place)) for place, run in enumerate(found)] for found in runs.values()]
    if len(seeds[0]) < 2 or any(other != seeds[0] for other in seeds):
        raise InputError("the conditions have different seeds, or one only: give the same two or more seeds for each")

    def draw(condition: str, place: int) -> str:
        mark = (at or {}).get(condition)
        return run_picture(f"{condition}, seed {seeds[0][place]}", runs[condition][place], panels, mark, at_name)

    names = {key: name for panel in panels for key, name in panel.curves.items()}
    looks = curve_marks(panels)
    shown = {looks[key]: key for key in reversed(names)}  # a curve in several panels is in the legend once
    return Explorer(
        title,
        guide,
        [
            choice(control, [(name, name) for name in runs], "the condition that the run is under"),
            slider("seed", [(seed, place) for place, seed in enumerate(seeds[0])], "of the random start and the data"),
        ],
        draw,
        legend=legend({key: looks[key] for key in reversed(shown.values())}, names),
    )
