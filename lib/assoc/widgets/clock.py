"""Paper A, Section 5.1: every weight against its leading term as the training time s eta goes on."""

import math
from collections.abc import Sequence

from assoc.errors import InputError, whole_number
from assoc.figures import PALETTE
from assoc.leading_terms.theory import KINDS, step_coefficients
from assoc.leading_terms.training import Agreement, TrainingHistory
from assoc.widgets.explorer import Explorer, slider
from assoc.widgets.pictures import bar, legend, line_chart, marks, panes, table

KIND_MARKS = marks(KINDS)
LOSS_MARK = marks(["loss"])


def chosen_records(n_records: int, at_most: int) -> list[int]:
    """Indices of at most so many records, evenly spread, the first and the last among them."""
    n = min(n_records, at_most)
    return [round(place * (n_records - 1) / max(n - 1, 1)) for place in range(n)]


def clock_picture(history: TrainingHistory, record: int) -> str:
    """One record of a training run: each weight's cosine with its leading term, its coefficient along it over the
    theory's, and where the run stands in the curves of cosines and loss."""
    time, steps = history.training_time[record], history.steps[record]
    theory = step_coefficients(steps, history.learning_rate)
    rows = [_row(agreement, getattr(theory, agreement.kind)) for agreement in history.agreements[record]]
    loss_now = f"{history.loss[record]:.2f} nats"
    caption = f"After {steps} steps of η = {history.learning_rate:g} (s η = {time:g}): loss {loss_now}"
    smallest = {kind: _smallest(history, kind) for kind in KINDS}
    lowest = min((value for values in smallest.values() for value in values if not math.isnan(value)), default=0.0)
    cosines = line_chart(
        history.training_time,
        smallest,
        KIND_MARKS,
        x_name="training time s η",
        y_name="smallest cosine",
        description=f"Smallest cosine over the layers, over training time; at s η = {time:g}: "
        + ", ".join(f"{kind} {_number(values[record])}" for kind, values in smallest.items()),
        at=record,
        y_range=(min(0.9, math.floor(10 * lowest) / 10), 1.0),
    )
    loss = line_chart(
        history.training_time,
        {"loss": history.loss},
        LOSS_MARK,
        x_name="training time s η",
        y_name="loss in nats",
        description=f"Loss over training time; at s η = {time:g}: {loss_now}",
        at=record,
    )
    return table(caption, ["weight", "cosine", "", "coefficient / theory"], rows) + panes(cosines, loss)


def _row(agreement: Agreement, theory: float) -> list[str]:
    name = agreement.kind if agreement.layer == 0 else f"{agreement.kind} {agreement.layer}"
    track = f"<div class='track'>{bar(agreement.cosine, PALETTE[agreement.kind])}</div>"
    ratio = f"{agreement.coefficient / theory:.2f}" if theory > 0 else "–"
    return [name, _number(agreement.cosine), track, ratio]


def _number(cosine: float) -> str:
    return "still zero" if math.isnan(cosine) else f"{cosine:.4f}"


def _smallest(history: TrainingHistory, kind: str) -> Sequence[float]:
    """Smallest cosine over the layers at each record, NaN while a weight is zero."""
    layers = [layer for name, layer in history.weights() if name == kind]
    columns = zip(*(history.cosines(kind, layer) for layer in layers), strict=True)
    return [math.nan if any(map(math.isnan, column)) else min(column) for column in columns]


def gradient_clock(history: TrainingHistory, at_most: int = 40) -> Explorer:
    """Drag s eta; see every weight against its leading term, and the loss.

    Args:
        history: of `assoc.leading_terms.train` with `basis`.
        at_most: values of the slider; of a longer history, records evenly spread.

    Raises:
        InputError: a history without agreements, or with a single record.
    """
    if not history.agreements:
        raise InputError("this history compares no weights with leading terms: pass basis= to train")
    records = chosen_records(len(history.steps), whole_number("at_most", at_most, minimum=2))
    times = [(f"{history.training_time[record]:g}", record) for record in records]
    return Explorer(
        "Gradient clock",
        "Drag the training time s η: the weights leave zero one kind after the other; compare each with its leading "
        "term.",
        [slider("s η", times, "training time: steps taken times learning rate", index=len(times) // 2)],
        lambda record: clock_picture(history, record),
        legend=legend(KIND_MARKS),
    )
