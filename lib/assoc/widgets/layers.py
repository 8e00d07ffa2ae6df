"""A number per layer and checkpoint: a heat map for the whole, a curve for one layer."""

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from assoc.errors import InputError, whole_number
from assoc.figures import PALETTE
from assoc.leading_terms.theory import KINDS
from assoc.leading_terms.training import TrainingHistory
from assoc.widgets.clock import chosen_records
from assoc.widgets.explorer import Explorer, choice, slider
from assoc.widgets.pictures import Mark, heat_map, line_chart, marks, panes, scale


def agreement_tables(history: TrainingHistory, at_most: int = 16) -> tuple[dict[str, Tensor], list[str]]:
    """Cosines of a run as tables for `layer_by_checkpoint`: kind -> (layers, records), and s eta of the records.

    NaN stands where a weight was still zero. Of a longer history, `at_most` records are taken, evenly spread.
    """
    if not history.agreements:
        raise InputError("this history compares no weights with leading terms: pass basis= to train")
    records = chosen_records(len(history.steps), whole_number("at_most", at_most, minimum=1))
    layers = {kind: [layer for name, layer in history.weights() if name == kind] for kind in KINDS}
    tables = {
        kind: torch.tensor([history.cosines(kind, layer) for layer in layers[kind]], dtype=torch.float64)[:, records]
        for kind in KINDS
    }
    return tables, [f"{history.training_time[record]:g}" for record in records]


def layer_picture(
    name: str,
    values: Tensor,
    row: int,
    layers: Sequence[str],
    checkpoints: Sequence[str],
    *,
    quantity: str,
    checkpoint_name: str,
    limits: tuple[float, float],
) -> str:
    """A table (layers, checkpoints) as a heat map with one layer framed, and that layer as a curve.

    Args:
        name: what the table is of. quantity: what its numbers are. limits: the ends of the colour scale.
    """
    line = values[row].double().tolist()
    ends = [(label, value) for label, value in zip(checkpoints, line, strict=True) if not math.isnan(value)]
    spoken = (
        f"{ends[0][1]:.3f} at {checkpoint_name} {ends[0][0]}, {ends[-1][1]:.3f} at {ends[-1][0]}"
        if ends
        else "no value"
    )
    what = f"{quantity} of {name}, layer {layers[row]}: {spoken}"
    picture = heat_map(
        values,
        low=limits[0],
        high=limits[1],
        row_labels=layers,
        column_labels=checkpoints,
        row_name="layer",
        column_name=checkpoint_name,
        description=f"Heat map of {len(layers)} layers and {len(checkpoints)} checkpoints: {what}",
        cell=(max(14, 5 + 6 * max(map(len, checkpoints))), 18 if len(layers) <= 12 else 11),
        marked_row=row,
    )
    place = list(range(len(checkpoints)))
    curve = line_chart(
        place,
        {name: line},
        {name: marks([name])[name] if name in PALETTE else Mark("#0072B2", *marks([name])[name][1:])},
        x_name=f"{checkpoint_name} (one place each)",
        y_name=quantity,
        description=what,
        y_range=limits,
        tick_labels=checkpoints,
    )
    return f"<p>{what}</p>{panes(picture, curve)}"


def layer_by_checkpoint(
    tables: Mapping[str, Tensor],
    checkpoints: Sequence[object],
    *,
    layers: Sequence[object] | None = None,
    quantity: str = "cosine",
    checkpoint_name: str = "step",
    limits: tuple[float, float] | None = None,
) -> Explorer:
    """Choose what is compared and a layer; see the heat map layer by checkpoint and the layer's curve.

    Args:
        tables: name -> numbers (layers, checkpoints), all with the same checkpoints; NaN where there is none.
        checkpoints: their labels. layers: labels of the rows. Default: 1, 2, ...
        quantity, checkpoint_name: what the numbers and the checkpoints are.
        limits: the ends of the colour scale, of all tables. Default: 0 and 1, or further if the numbers are.

    Raises:
        InputError: no tables or checkpoints, shapes that do not fit the labels, numbers that are infinite, or limits
            that are not two ascending numbers.
    """
    if not tables or not checkpoints:
        raise InputError("there are no tables to choose from: give at least one, with a checkpoint")
    if limits is not None and not -math.inf < limits[0] < limits[1] < math.inf:
        raise InputError(f"limits are {limits}: give two finite numbers, the smaller one first")
    tables = {name: torch.as_tensor(values).detach().double().cpu() for name, values in tables.items()}
    labels = [str(checkpoint) for checkpoint in checkpoints]
    n_layers = max((len(values) for values in tables.values() if values.ndim), default=0)
    rows = [str(layer) for layer in (range(1, n_layers + 1) if layers is None else layers)]
    for name, values in tables.items():
        if values.ndim != 2 or not 1 <= len(values) <= len(rows) or values.shape[1] != len(labels):
            raise InputError(
                f"the table {name!r} has shape {tuple(values.shape)}; with these labels it must be "
                f"({len(rows)} layers, {len(labels)} checkpoints)"
            )
        if values.isinf().any():
            raise InputError(f"the table {name!r} holds infinite entries: look for their cause before showing it")
    if limits is None:
        finite = torch.cat([values[~values.isnan()] for values in tables.values()])
        limits = (min(0.0, float(finite.min())), max(1.0, float(finite.max()))) if len(finite) else (0.0, 1.0)

    def draw(name: str, row: int = 0) -> str:
        values = tables[name]
        row = min(row, len(values) - 1)  # a table of fewer layers than the others, such as one output matrix
        return layer_picture(
            name,
            values,
            row,
            rows[: len(values)],
            labels,
            quantity=quantity,
            checkpoint_name=checkpoint_name,
            limits=limits,
        )

    controls = [choice("compared", [(name, name) for name in tables], "which of the tables is shown")]
    if len(rows) > 1:
        numbered = [(label, row) for row, label in enumerate(rows)]
        controls.append(slider("layer", numbered, "the layer that is framed and drawn as a curve"))
    return Explorer(
        "Layer by checkpoint",
        "Choose what is compared, then a layer: the heat map shows all layers over training, the curve the framed one.",
        controls,
        draw,
        legend=scale(quantity, *limits),
    )
