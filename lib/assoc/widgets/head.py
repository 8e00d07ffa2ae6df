"""Paper B, Section 5: both attention maps, recalls and accuracy of the two-layer model as it trains."""

from collections.abc import Sequence

import torch
from torch import Tensor

from assoc.errors import InputError, whole_number
from assoc.induction.memory import after_trigger_attention, previous_token_attention
from assoc.induction.task import Batch, BigramTask, Sequences
from assoc.induction.training import InductionHistory
from assoc.widgets.explorer import Explorer, slider
from assoc.widgets.pictures import Mark, bar, heat_map, legend, line_chart, marks, panes, scale, table
from assoc.widgets.sequences import token_names

SERIES = {
    "in_context_accuracy": "in-context accuracy",
    "output2": "recall of W_O2",
    "key2": "recall of W_K2",
    "key1": "recall of W_K1",
}


def _series(history: InductionHistory) -> dict[str, str]:
    """Accuracy, and those of the three memories that this model has: name in the history -> name for readers."""
    return {key: name for key, name in SERIES.items() if key == "in_context_accuracy" or key in history.recall}


def head_picture(history: InductionHistory, step: int, names: Sequence[str], row: Batch, maps: Sequence[Tensor]) -> str:
    """The model at one step: accuracy and recalls, their curves, and one attention map a layer.

    Frames mark where an ideal induction head looks: in the first layer at the previous token; in the last, from a
    repeated trigger at what followed it before.

    Args:
        names: the tokens of the sequence as readers see them, T. row: the sequence, (T,) each.
        maps: attention of each layer, (T, T).
    """
    series = _series(history)
    looks = marks(list(series))
    values = {key: history.at_step(key, step) for key in series}
    rows = [
        [name, f"{values[key]:.2f}", f"<div class='track'>{bar(values[key], looks[key].colour)}</div>"]
        for key, name in series.items()
    ]
    curves = line_chart(
        history.steps,
        {key: history.series(key) for key in series},
        looks,
        x_name="training step",
        y_name="share",
        description=f"Accuracy and recalls over training; at step {step}: "
        + ", ".join(f"{name} {values[key]:.2f}" for key, name in series.items()),
        at=history.steps.index(step),
        y_range=(0.0, 1.0),
    )
    numbers = table(f"After {step} steps", ["measure", "value", ""], rows)
    pictures = [_map(maps, layer, step, names, row) for layer in range(len(maps))]
    return panes(numbers, curves) + panes(*pictures)


def ideal_places(row: Batch, is_first_layer: bool) -> Tensor:
    """Where an ideal induction head looks in a sequence of T tokens, booleans (T, T), one row a query."""
    T = len(row.inputs)
    if is_first_layer:
        return torch.ones(T - 1, dtype=torch.bool).diag(-1)
    follows = torch.zeros(T, T, dtype=torch.bool)
    follows[:, 1:] = row.inputs[:, None] == row.inputs[None, :-1]
    return follows.tril() & (row.occurrence >= 2)[:, None]


def _map(maps: Sequence[Tensor], layer: int, step: int, names: Sequence[str], row: Batch) -> str:
    is_first = layer == 0 and len(maps) > 1
    attention = maps[layer]
    if is_first:
        measured = f"{previous_token_attention(attention):.2f} to the previous token"
    elif (row.occurrence >= 2).any():
        found = after_trigger_attention(attention[None], row.inputs[None], row.occurrence[None])
        measured = f"{found:.2f} from repeated triggers to what followed"
    else:
        measured = "no trigger is repeated here"
    future = torch.ones_like(attention, dtype=torch.bool).triu(1)
    picture = heat_map(
        attention.masked_fill(future, torch.nan),
        low=0.0,
        high=1.0,
        row_labels=names,
        column_labels=names,
        row_name="attends from",
        column_name="to",
        description=f"Attention of layer {layer + 1} at step {step}; on average {measured}",
        outlined=ideal_places(row, is_first),
    )
    return f"<p>Layer {layer + 1}: {measured}</p>{picture}"


def head_in_motion(
    history: InductionHistory, task: BigramTask, probe: Batch | Sequences, sequence: int = 0, positions: int = 26
) -> Explorer:
    """Drag the training step; see both attention maps on one sequence, the recalls and the accuracy.

    Args:
        history: of `train_induction` with `probe_inputs=probe.inputs` and `snapshot_steps`, each a probed step.
        task: names the tokens.
        probe: the sequences of the snapshots. sequence: which of them.
        positions: how many of its first positions to show; attention looks back only, so these maps are exact.

    Raises:
        InputError: no snapshots or only one, snapshots of other sequences or with several heads, a step not probed.
    """
    if len(history.snapshots) < 2:
        raise InputError("head_in_motion needs snapshots: pass probe_inputs= and snapshot_steps= to train_induction")
    positions = min(whole_number("positions", positions, minimum=2), probe.inputs.shape[1])
    if not 0 <= sequence < len(probe.inputs):
        raise InputError(f"no sequence {sequence} in this probe: give 0 to {len(probe.inputs) - 1}")
    for maps in history.snapshots.values():
        for attention in maps:
            if attention.ndim == 4 and attention.shape[1] > 1:
                raise InputError(f"the snapshots hold {attention.shape[1]} heads a layer: show a model with one head")
            if len(attention) != len(probe.inputs) or attention.shape[-1] != probe.inputs.shape[1]:
                raise InputError(
                    f"the snapshots have shape {tuple(attention.shape)}, the probe {tuple(probe.inputs.shape)}: "
                    "pass the batch whose inputs were given to train_induction as probe_inputs"
                )
    row = Batch(*(part[sequence, :positions] for part in probe[:3]))
    tokens = token_names(task, row.inputs)

    def draw(step: int) -> str:
        maps = [attention.flatten(0, -3)[sequence, :positions, :positions] for attention in history.snapshots[step]]
        return head_picture(history, step, tokens, row, maps)

    steps = [(str(step), step) for step in sorted(history.snapshots)]
    names = _series(history)
    frame = Mark("#D55E00", "none", "M0 0")
    return Explorer(
        "A head in motion",
        "Drag the training step and watch which memory fills first, and where each layer looks.",
        [slider("training step", steps, "how many updates the model has had", index=len(steps) // 2)],
        draw,
        legend=legend(marks(list(names)), names)
        + scale("attention", 0, 1)
        + legend({"frame": frame}, {"frame": "framed cells: where an induction head looks"}),
    )
