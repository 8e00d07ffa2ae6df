"""Paper B's induction heads in a language model: remove some, and see what is left of its in-context gain."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from assoc.errors import InputError
from assoc.llm.removal import losses_without
from assoc.widgets.explorer import Explorer, choice, slider
from assoc.widgets.pictures import Mark, bar, heat_map, legend, line_chart, marks, panes, scale, table

Points = Sequence[Mapping[str, Any]]

SETS = {
    "induction": ("best induction heads", "#0072B2"),
    "previous-token": ("best previous-token heads", "#009E73"),
    "same layers": ("random heads of the same layers", "#D55E00"),
    "random": ("random heads", "#767676"),
}
"""What is removed: set of `study_removal` -> name for readers, colour."""

_RANKED = {"induction": ("induction", "induction_heads"), "previous-token": ("previous_token", "previous_token_heads")}


def set_marks() -> dict[str, Mark]:
    """How the curve of each set looks."""
    return {name: Mark(SETS[name][1], *mark[1:]) for name, mark in marks(list(SETS)).items()}


def heads_picture(points: Points, counts: Sequence[int], heads: str, n: int) -> str:
    """The losses without n heads of a set, the curves of all sets, and where the heads are.

    Args:
        points: of a sweep over `study_removal`. counts: the numbers of heads, 0 first. heads: a key of SETS.
    """
    name = SETS[heads][0]
    here = losses_without(points, heads, n) if n else losses_without(points, "none", 0)
    whole = losses_without(points, "none", 0)
    rows = []
    for key, label in (("first", "first copy"), ("second", "second copy"), ("text", "stories")):
        now, before = float(here[key].mean()), float(whole[key].mean())
        rows.append([label, f"{now:.1f}", f"{before:.1f}", f"<div class='track'>{bar(now / 15)}</div>"])
    numbers = table(f"Loss without {n} {name}, nats", ["on", "without", "whole model", ""], rows)
    curves = {
        key: [float(losses_without(points, key if k else "none", k)["second"].mean()) for k in counts] for key in SETS
    }
    chart = line_chart(
        list(range(len(counts))),
        curves,
        set_marks(),
        x_name="heads removed (one place each)",
        y_name="loss on second copy (nats)",
        description=f"Loss on the second copy over the number of heads removed; without {n} {name}: "
        f"{float(here['second'].mean()):.1f} nats, with all heads {float(whole['second'].mean()):.1f}",
        at=list(counts).index(n),
        y_range=(0.0, 15.0),
        tick_labels=[str(k) for k in counts],
    )
    return panes(numbers, chart, _map(points, heads, n))


def _map(points: Points, heads: str, n: int) -> str:
    """Scores of all heads; framed, those that are removed in the first point."""
    score, ranking = _RANKED.get(heads, _RANKED["induction"])
    values = torch.tensor([point[score] for point in points], dtype=torch.float64).mean(0)
    framed = torch.zeros(values.shape, dtype=torch.bool)
    if heads in _RANKED:
        for layer, head in points[0][ranking][:n]:
            framed[layer, head] = True
    of_what = score.replace("_", "-") + " score"
    picture = heat_map(
        values,
        low=0.0,
        high=1.0,
        row_labels=[str(layer) for layer in range(len(values))],
        column_labels=[str(head) for head in range(values.shape[1])],
        row_name="layer",
        column_name="head",
        description=f"{of_what} of all heads by layer; {int(framed.sum())} heads framed",
        cell=(16, 9 if len(values) > 12 else 16),
        outlined=framed,
    )
    removed = "framed: removed" if framed.any() else "other heads are drawn each time"
    return f"<p>{of_what}, {removed if n else 'nothing removed'}</p>{picture}"


def removed_heads(points: Points) -> Explorer:
    """Choose which heads are removed and how many; see the losses on both copies of a repeated block.

    Args:
        points: of a sweep over `assoc.llm.removal.study_removal`, at least one.

    Raises:
        InputError: no points.
    """
    if not points:
        raise InputError("there are no points: give those of a sweep over study_removal")
    counts = [0, *sorted({row["n"] for row in points[0]["removed"] if row["n"]})]
    return Explorer(
        "Heads removed",
        "Choose a kind of heads, then drag how many of them are removed: the second copy of a block is cheap as long "
        "as the induction heads are there.",
        [
            choice("heads", [(label, name) for name, (label, _) in SETS.items()], "which heads are removed"),
            slider("how many", [(str(n), n) for n in counts], "number of heads that are removed"),
        ],
        lambda heads, n: heads_picture(points, counts, heads, n),
        legend=legend(set_marks(), {name: label for name, (label, _) in SETS.items()}) + scale("score", 0.0, 1.0),
    )
