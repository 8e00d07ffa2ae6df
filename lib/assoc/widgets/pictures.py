"""Small pictures as HTML and SVG text: tables with bars, curves, heat maps. They take the colours of the page.

Attributes are quoted with ' because widget state is JSON, where every " costs a byte more.
"""

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import NamedTuple

import torch
from matplotlib import colormaps
from matplotlib.colors import to_hex
from matplotlib.ticker import MaxNLocator
from torch import Tensor

from assoc.figures import PALETTE, SEQUENTIAL

LEVELS = 16
"""Steps of the colour scale of heat maps."""

_COLOURS = [to_hex(colormaps[SEQUENTIAL](level / (LEVELS - 1))) for level in range(LEVELS)]

STYLE = """
.assoc-explorer { --line: color-mix(in srgb, currentColor 25%, transparent); line-height: 1.4; }
.assoc-explorer .widget-html-content { line-height: 1.4; font-size: inherit; }
.assoc-explorer p { margin: 0.3em 0; }
.assoc-explorer .panes { display: flex; flex-wrap: wrap; gap: 0.5em 1em; align-items: flex-start; }
.assoc-explorer .panes p { width: 0; min-width: 100%; } /* as wide as the picture beneath */
.assoc-explorer table { border-collapse: collapse; margin: 0.3em 0; width: auto; font-size: 0.9em; color: inherit; }
.assoc-explorer caption { caption-side: top; text-align: left; font-style: normal; color: inherit; padding: 0; }
.assoc-explorer th, .assoc-explorer td { text-align: left; padding: 0.1em 0.7em 0.1em 0; vertical-align: middle;
  border: 0; border-bottom: 1px solid var(--line); background: none; color: inherit; }
.assoc-explorer small { font-size: 0.85em; opacity: 0.8; }
.assoc-explorer .bar { display: block; height: 0.35em; min-width: 1px; background: #0072B2; }
.assoc-explorer .track { width: 7em; background: var(--line); }
.assoc-explorer .track .bar { height: 0.7em; }
.assoc-explorer svg { max-width: 100%; height: auto; overflow: visible; }
.assoc-explorer svg text { fill: currentColor; font: 11px system-ui, sans-serif; }
.assoc-explorer svg .mono { font: 10px ui-monospace, monospace; white-space: pre; }
.assoc-explorer svg .axis { stroke: var(--line); fill: none; }
.assoc-explorer svg .now { stroke: currentColor; stroke-dasharray: 3 3; }
.assoc-explorer svg .frame { stroke: #D55E00; stroke-width: 1.5; fill: none; }
.assoc-explorer .legend { display: flex; flex-wrap: wrap; gap: 0.2em 1.2em; font-size: 0.9em; margin: 0.3em 0; }
.assoc-explorer .legend span { white-space: nowrap; }
.assoc-explorer .scale b { display: inline-block; width: 0.7em; height: 0.9em; vertical-align: middle; }
.assoc-explorer .sequence > div { white-space: pre-wrap !important; overflow-wrap: anywhere; }
""" + "".join(
    f".assoc-explorer .l{level} {{ stroke: {colour}; background: {colour}; }}\n"
    for level, colour in enumerate(_COLOURS)
)
"""The look of all pictures, in the colours of whatever page they stand on."""


class Mark(NamedTuple):
    """How a curve looks: a colour, and a dash and a symbol for those who cannot tell colours apart."""

    colour: str
    dash: str
    symbol: str  # an SVG path around (0, 0)


_DASHES = ("none", "7 3", "2 2", "8 3 2 3", "4 4", "12 3")
_SYMBOLS = (
    "M-4 0a4 4 0 1 0 8 0a4 4 0 1 0-8 0z",  # circle
    "M-4-4h8v8h-8z",  # square
    "M0-5l5 9h-10z",  # triangle
    "M0-6l5 6l-5 6l-5-6z",  # diamond
    "M0 5l5-9h-10z",  # triangle upside down
    "M-5-1.5h3.500v-3.500h3v3.500h3.500v3h-3.500v3.500h-3v-3.500h-3.500z",  # plus
)


def marks(names: Sequence[str]) -> dict[str, Mark]:
    """A mark for each curve: its colour in the book's palette if it has one, the text's colour if not."""
    return {
        name: Mark(PALETTE.get(name, "currentColor"), _DASHES[place % 6], _SYMBOLS[place % 6])
        for place, name in enumerate(names)
    }


def legend(marks: Mapping[str, Mark], names: Mapping[str, str] | None = None) -> str:
    """The marks with their names (by default the keys themselves)."""
    samples = (
        f"<span><svg width='34' height='12' aria-hidden='true'><path d='M0 6h34' stroke='{mark.colour}' "
        f"stroke-width='2' stroke-dasharray='{mark.dash}'/><path d='{mark.symbol}' transform='translate(17 6)' "
        f"fill='{mark.colour}'/></svg> {escape((names or {}).get(key, key))}</span>"
        for key, mark in marks.items()
    )
    return f"<div class='legend'>{''.join(samples)}</div>"


def scale(name: str, low: float, high: float) -> str:
    """The colour scale of heat maps."""
    steps = "".join(f"<b class='l{level}'></b>" for level in range(LEVELS))
    return f"<div class='legend'><span class='scale'>{escape(name)}: {low:g} {steps} {high:g}</span></div>"


def table(caption: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table whose first column names the rows. The caption is text; the cells are HTML."""
    head = "".join(f"<th scope='col'>{cell}</th>" for cell in header)
    body = "".join(
        f"<tr><th scope='row'>{row[0]}</th>{''.join(f'<td>{cell}</td>' for cell in row[1:])}</tr>" for row in rows
    )
    return f"<table><caption>{escape(caption)}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def bar(share: float, colour: str | None = None) -> str:
    """A bar of a share from 0 to 1; anything outside is cut, and NaN is empty."""
    width = 0 if math.isnan(share) else round(100 * min(max(share, 0), 1))
    paint = f";background:{colour}" if colour else ""
    return f"<span class='bar' style='width:{width}%{paint}'></span>"


def panes(*parts: str) -> str:
    """Parts of a picture side by side, one beneath the other where there is no room."""
    return f"<div class='panes'>{''.join(f'<div>{part}</div>' for part in parts)}</div>"


WIDTH, HEIGHT = 296, 190
_LEFT, _RIGHT, _TOP, _BOTTOM = 54, 10, 8, 36


def line_chart(
    x: Sequence[float],
    curves: Mapping[str, Sequence[float]],
    curve_marks: Mapping[str, Mark],
    *,
    x_name: str,
    y_name: str,
    description: str,
    at: int | None = None,
    y_range: tuple[float, float] | None = None,
    logarithmic: bool = False,
    tick_labels: Sequence[str] | None = None,
) -> str:
    """Curves over x, with a symbol on each at x[at]; NaN leaves a gap.

    Args:
        curves: name -> values, as many as x. curve_marks: a mark for each name.
        description: the picture in words, for those who cannot see it.
        y_range: default: the range of the values. logarithmic: the x axis, for x > 0.
        tick_labels: names of the x, where these are mere places.
    """
    finite = [value for values in curves.values() for value in values if math.isfinite(value)] or [0.0]
    low, high = y_range or (min(finite), max(finite))
    if low == high:
        low, high = low - 0.5, high + 0.5
    along = [math.log(value) for value in x] if logarithmic else list(x)
    start, span = along[0], (along[-1] - along[0]) or 1.0

    def across(value: float) -> str:
        return f"{_LEFT + (value - start) / span * (WIDTH - _LEFT - _RIGHT):.0f}"

    def up(value: float) -> str:
        return f"{HEIGHT - _BOTTOM - (value - low) / (high - low) * (HEIGHT - _TOP - _BOTTOM):.1f}"

    parts = [f"<path class='axis' d='M{_LEFT} {_TOP}V{HEIGHT - _BOTTOM}H{WIDTH - _RIGHT}'/>"]
    parts += [
        f"<path class='axis' d='M{_LEFT} {up(tick)}H{WIDTH - _RIGHT}'/>"
        f"<text x='{_LEFT - 4}' y='{up(tick)}' dy='4' text-anchor='end'>{tick:g}</text>"
        for tick in MaxNLocator(4).tick_values(low, high)
        if low <= tick <= high
    ]
    parts += [
        f"<text x='{across(place)}' y='{HEIGHT - _BOTTOM + 14}' text-anchor='middle'>{escape(label)}</text>"
        for label, place in _ticks(x, along, logarithmic, tick_labels)
    ]
    parts.append(
        f"<text x='{(WIDTH + _LEFT) // 2}' y='{HEIGHT - 4}' text-anchor='middle'>{escape(x_name)}</text>"
        f"<text transform='translate(11 {(HEIGHT - _BOTTOM) // 2}) rotate(-90)' text-anchor='middle'>"
        f"{escape(y_name)}</text>"
    )
    if at is not None:
        parts.append(f"<path class='now' d='M{across(along[at])} {_TOP}V{HEIGHT - _BOTTOM}'/>")
    for name, values in curves.items():
        mark = curve_marks[name]
        path, pen = [], "M"
        for place, value in zip(along, values, strict=True):
            if math.isfinite(value):
                path.append(f"{pen}{across(place)} {up(min(max(value, low), high))}")
            pen = "L" if math.isfinite(value) else "M"
        parts.append(
            f"<path d='{''.join(path)}' fill='none' stroke='{mark.colour}' stroke-width='2' "
            f"stroke-dasharray='{mark.dash}'/>"
        )
        if at is not None and math.isfinite(values[at]):
            centre = f"{across(along[at])} {up(min(max(values[at], low), high))}"
            parts.append(f"<path d='{mark.symbol}' transform='translate({centre})' fill='{mark.colour}'/>")
    return _svg(WIDTH, HEIGHT, description, parts)


def _ticks(
    x: Sequence[float], along: Sequence[float], logarithmic: bool, labels: Sequence[str] | None
) -> list[tuple[str, float]]:
    """Labels and places of the x axis: round numbers, or about six of the x if these are named or logarithmic."""
    if labels is None and not logarithmic:
        ticks = MaxNLocator(5).tick_values(x[0], x[-1])
        return [(f"{tick:g}", tick) for tick in ticks if x[0] <= tick <= x[-1]]
    names = [f"{value:g}" for value in x] if labels is None else labels
    return list(zip(names, along, strict=True))[:: math.ceil(len(x) / 6)]


def heat_map(
    values: Tensor,
    *,
    low: float,
    high: float,
    row_labels: Sequence[str],
    column_labels: Sequence[str],
    row_name: str,
    column_name: str,
    description: str,
    cell: tuple[int, int] = (10, 10),
    outlined: Tensor | None = None,
    marked_row: int | None = None,
) -> str:
    """A table (rows, columns) as coloured cells in LEVELS steps from low to high; NaN is left empty.

    Neighbouring cells of a row in one colour are one stroke, which keeps maps of sparse attention small.

    Args:
        cell: width and height of a cell in pixels. outlined: cells to put a frame around, booleans (rows, columns).
        marked_row: a row to put a frame around.
    """
    values = values.double()
    steps = ((values - low) / (high - low)).clamp(0, 1).mul(LEVELS - 1).round()
    levels = torch.where(values.isnan(), -1.0, steps).int().tolist()
    strokes: dict[int, list[str]] = {}
    for row, line in enumerate(levels):
        begin = 0
        for column in range(1, len(line) + 1):
            if column == len(line) or line[column] != line[begin]:
                strokes.setdefault(line[begin], []).append(f"M{begin} {row}h{column - begin}")
                begin = column
    strokes.pop(-1, None)
    width, height = cell
    left, top = 20 + 6 * max(map(len, row_labels)), 30
    n_rows, n_columns = values.shape
    parts = [f"<g transform='translate({left} {top})'>"]
    # Strokes of width 1 through the middle of their row, in units of cells.
    parts.append(f"<g transform='scale({width} {height}) translate(0 .5)' shape-rendering='crispEdges'>")
    parts += [f"<path class='l{level}' d='{''.join(paths)}'/>" for level, paths in sorted(strokes.items())]
    parts.append("</g>")
    if outlined is not None and outlined.any():
        frames = (f"M{c * width} {r * height}h{width}v{height}h-{width}z" for r, c in outlined.nonzero().tolist())
        parts.append(f"<path class='frame' d='{''.join(frames)}'/>")
    if marked_row is not None:
        span = n_columns * width
        parts.append(f"<path class='frame' d='M0 {marked_row * height}h{span}v{height}h-{span}z'/>")
    parts.append("<g text-anchor='end'>")
    parts += [
        f"<text class='mono' x='-4' y='{(row + 0.5) * height + 4:g}'>{escape(label)}</text>"
        for row, label in enumerate(row_labels)
    ]
    parts.append("</g><g text-anchor='middle'>")
    parts += [
        f"<text class='mono' x='{(column + 0.5) * width:g}' y='-4'>{escape(label)}</text>"
        for column, label in enumerate(column_labels)
    ]
    parts.append(
        f"<text x='{n_columns * width // 2}' y='-19'>{escape(column_name)}</text>"
        f"<text transform='translate({10 - left} {n_rows * height // 2}) rotate(-90)'>{escape(row_name)}</text></g></g>"
    )
    return _svg(left + n_columns * width + 4, top + n_rows * height + 4, description, parts)


def _svg(width: int, height: int, description: str, parts: Sequence[str]) -> str:
    return (
        f"<svg role='img' aria-label='{escape(description)}' width='{width}' height='{height}' "
        f"viewBox='0 0 {width} {height}'>{''.join(parts)}</svg>"
    )
