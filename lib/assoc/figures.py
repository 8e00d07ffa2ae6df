"""One look for the figures and tables of the book: sizes, colours with a fixed meaning, heat maps with labels.

Call `use_style()` once per notebook, then draw with matplotlib as usual.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import matplotlib as mpl
import numpy as np
import torch
from cycler import cycler
from IPython import get_ipython
from IPython.display import Markdown
from matplotlib.axes import Axes
from matplotlib.image import AxesImage

from assoc.errors import InputError

OKABE_ITO = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Okabe and Ito's colours, which stay apart for readers with a colour vision deficiency (yellow left out: it is
too faint for a line on white)."""

PALETTE: Mapping[str, str] = MappingProxyType(
    {
        # Paper A: the four kinds of weights, in the order in which they are learned.
        "output": "#0072B2",
        "value": "#D55E00",
        "attention": "#009E73",
        "position": "#CC79A7",
        # Paper B: the three memories in the order in which they are learned, lighter than their kin in paper A.
        "output2": "#56B4E9",
        "key2": "#E69F00",
        "key1": "#8CD17D",
        # Whatever a curve is compared with: a prediction, chance level, the paper's own number.
        "reference": "#000000",
    }
)
"""Colour of each weight matrix, the same in every chapter: output blue, values and second-layer keys orange,
attention and first-layer keys green, positions purple."""

SEQUENTIAL = "cividis"
"""Colour map of amounts that start at zero."""

DIVERGING = "RdBu_r"
"""Colour map of signed amounts, centred at zero: red above, blue below."""

_STYLE = {
    "figure.figsize": (7.0, 4.0),
    "figure.dpi": 150,
    "figure.facecolor": "white",  # stays legible on a dark page
    "figure.constrained_layout.use": True,
    "savefig.facecolor": "white",
    "axes.facecolor": "white",
    "axes.prop_cycle": cycler(color=OKABE_ITO),
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 12,
    "axes.labelsize": 11,
    "font.size": 11,
    "grid.color": "#DDDDDD",
    "grid.linewidth": 0.6,
    "image.cmap": SEQUENTIAL,
    "image.interpolation": "nearest",
    "legend.fontsize": 10,
    "legend.frameon": False,
    "lines.linewidth": 2.0,
    "xtick.labelsize": 10,
    "ytick.labelsize": 10,
}


def use_style() -> None:
    """Set the book's style for all figures of this process.

    Inside a notebook the pictures also lose the metadata that names the program that made them, so that the same
    numbers give the same bytes.
    """
    mpl.rcParams.update(_STYLE)
    if get_ipython() is not None:
        from matplotlib_inline.backend_inline import set_matplotlib_formats

        set_matplotlib_formats("png", metadata={"Software": None})


def heatmap(
    axes: Axes,
    matrix: torch.Tensor | np.ndarray,
    *,
    row_labels: Sequence[str] | None = None,
    column_labels: Sequence[str] | None = None,
    row_name: str = "",
    column_name: str = "",
    title: str = "",
    diverging: bool = False,
    colourbar_label: str = "",
) -> AxesImage:
    """Draw a matrix (rows, columns) as coloured cells with a colour bar; return the image.

    `diverging` centres the colours at zero, for signed entries; otherwise the scale runs from the smallest entry to
    the largest. Labels name single rows and columns; without them the ticks are indices. `row_name` and
    `column_name` say what the rows and columns are.

    Raises InputError for anything but a finite matrix, or for labels that do not match its shape.
    """
    values = torch.as_tensor(matrix).detach().cpu().numpy()
    if values.ndim != 2 or values.size == 0:
        raise InputError(f"a heat map needs a matrix, but the array has shape {values.shape}: pass two dimensions")
    if not np.isfinite(values).all():
        raise InputError("the matrix holds NaN or infinite entries: look for their cause before drawing it")
    for name, labels, count in (("row", row_labels, values.shape[0]), ("column", column_labels, values.shape[1])):
        if labels is not None and len(labels) != count:
            raise InputError(f"{len(labels)} {name} labels for {count} {name}s: pass one label for each")

    limits = {}
    if diverging:
        largest = float(np.abs(values).max()) or 1.0
        limits = {"vmin": -largest, "vmax": largest}
    image = axes.imshow(values, cmap=DIVERGING if diverging else SEQUENTIAL, aspect="auto", **limits)
    axes.grid(visible=False)
    if row_labels is not None:
        axes.set_yticks(range(len(row_labels)), row_labels)
    if column_labels is not None:
        upright = max(map(len, column_labels)) <= 2
        axes.set_xticks(
            range(len(column_labels)),
            column_labels,
            rotation=0 if upright else 60,
            ha="center" if upright else "right",
            rotation_mode="anchor",
        )
    axes.set(title=title, xlabel=column_name, ylabel=row_name)
    axes.figure.colorbar(image, ax=axes, label=colourbar_label)
    return image


def table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> Markdown:
    """A table for a notebook, from numbers of the run; cells may hold Markdown and $formulas$.

    Format the numbers yourself, with the digits that survive another machine.

    Raises InputError if a row has not one cell for each column.
    """
    for row in rows:
        if len(row) != len(header):
            raise InputError(f"a row of {len(row)} cells in a table of {len(header)} columns: {list(row)}")
    lines = [header, ["---"] * len(header), *rows]
    escaped = ([str(cell).replace("|", "\\|").replace("\n", " ") for cell in line] for line in lines)
    return Markdown("\n".join(f"| {' | '.join(cells)} |" for cells in escaped))
