"""Sequences of the bigram task as a reader sees them: triggers and outputs marked, as HTML and as plain text.

Marks never rely on colour alone: triggers are bold, outputs underlined, with dots where they come for the first time.
"""

from collections.abc import Iterable
from html import escape
from typing import NamedTuple

from torch import Tensor

from assoc.checks import check_whole
from assoc.errors import InputError, whole_number
from assoc.induction.task import BigramTask, Sequences

VISIBLE = {" ": "␣", "\n": "↵", "\t": "⇥"}
"""Signs that stand for characters which leave no ink."""

LEGEND = "^ trigger    . output, first time    = output, known from the context"

# Block and marks bring their own colours, which stay legible on a dark page: 4.8 to 1 or more on either background.
_BLOCK = "font-family:monospace;white-space:pre;overflow-x:auto;line-height:1.7;padding:0 0.5em;"
_BLOCK += "background:#fff;color:#000"
_TRIGGER = "background:#bfe0f5;color:inherit"
_OUTPUT = "color:#a03c00;text-decoration:underline {line} 2px;text-underline-offset:3px"


class _Character(NamedTuple):
    sign: str
    trigger: int  # this is the trigger's n-th occurrence as an input; 0: no trigger
    output: int  # the output of a trigger's n-th occurrence; 0: no output


def visible(token: str) -> str:
    """The token with signs for blanks and line breaks."""
    return "".join(VISIBLE.get(character, character) for character in token)


def mark_sequence(task: BigramTask, inputs: Tensor, occurrence: Tensor, targets: Tensor | None = None) -> str:
    """One sequence as HTML: triggers bold on blue, outputs underlined (dotted the first time), with tooltips.

    Args:
        task: gives the characters; needs a vocabulary.
        inputs, occurrence: a row of a `Batch` each, int64 (T,).
        targets: the row of targets (T,); with it the last token, z_{T+1}, is shown too.

    Raises:
        InputError: rows of different shapes, or a task without vocabulary.
    """
    spans = "".join(_span(character) for character in _characters(task, inputs, occurrence, targets))
    return f'<div style="{_BLOCK}">{spans}</div>'


def mark_sequence_text(task: BigramTask, inputs: Tensor, occurrence: Tensor, targets: Tensor | None = None) -> str:
    """The same in plain text: the sequence, and under it a line for triggers and a line for outputs (see `LEGEND`)."""
    characters = _characters(task, inputs, occurrence, targets)
    lines = (
        "".join(character.sign for character in characters),
        "".join("^" if character.trigger else " " for character in characters),
        "".join(" .="[min(character.output, 2)] for character in characters),
    )
    return "\n".join(line.rstrip() for line in lines)


class MarkedSequences:
    """Several sequences for a notebook, each below its triggers and their outputs; `print` gives the plain text.

    Args:
        task: the task that drew them; needs a vocabulary.
        sequences: what `task.sample_sequences` returned.
        rows: the sequences to show, by their numbers. Default: all.

    Raises:
        InputError: a row that is not there, or a task without vocabulary.
    """

    def __init__(self, task: BigramTask, sequences: Sequences, rows: Iterable[int] | None = None) -> None:
        n_sequences = len(sequences.inputs)
        rows = range(n_sequences) if rows is None else rows
        chosen = [whole_number("a row", row, minimum=0, maximum=n_sequences - 1) for row in rows]
        sequences = Sequences(*(table[chosen] for table in sequences))
        self.rules = [
            "  ".join(
                f"{visible(task.decode(trigger[None]))}→{visible(task.decode(output[None]))}"
                for trigger, output in zip(triggers, outputs, strict=True)
            )
            for triggers, outputs in zip(sequences.triggers, sequences.outputs, strict=True)
        ]
        tables = list(zip(sequences.inputs, sequences.occurrence, sequences.targets, strict=True))
        self.html = [mark_sequence(task, *row) for row in tables]
        self.text = [mark_sequence_text(task, *row) for row in tables]

    def __repr__(self) -> str:
        blocks = (f"{rules}\n{text}" for rules, text in zip(self.rules, self.text, strict=True))
        return "\n\n".join([LEGEND, *blocks])

    def _repr_html_(self) -> str:
        marks = ((1, 0, "trigger"), (0, 1, "output, first time"), (0, 2, "output, known from the context"))
        legend = "   ".join(_span(_Character(text, trigger, output)) for trigger, output, text in marks)
        blocks = (
            f'<div style="{_BLOCK};margin-top:0.8em">{escape(rules)}</div>{html}'
            for rules, html in zip(self.rules, self.html, strict=True)
        )
        return f'<div style="{_BLOCK}">{legend}</div>{"".join(blocks)}'


def _characters(task: BigramTask, inputs: Tensor, occurrence: Tensor, targets: Tensor | None) -> list[_Character]:
    rows = [inputs, occurrence] + ([] if targets is None else [targets])
    if not all(isinstance(row, Tensor) for row in rows):
        raise InputError("pass rows of a batch as tensors: convert with torch.as_tensor")
    if inputs.ndim != 1 or len(inputs) == 0 or any(row.shape != inputs.shape for row in rows):
        shapes = ", ".join(str(tuple(row.shape)) for row in rows)
        raise InputError(f"pass one row of a batch each, of one shape (T,); got {shapes}")
    check_whole("occurrence", occurrence, inputs.shape)
    tokens = [*inputs, *([] if targets is None else [targets[-1]])]
    numbers = [0, *occurrence.tolist(), 0]
    signs = (visible(task.decode(token[None])) for token in tokens)
    return [_Character(sign, numbers[t + 1], numbers[t]) for t, sign in enumerate(signs)]


def _span(character: _Character) -> str:
    html, titles = escape(character.sign), []
    if character.output:
        titles.append("output, first time" if character.output == 1 else f"output, time {character.output}")
        line = "dotted" if character.output == 1 else "solid"
        html = f'<u style="{_OUTPUT.format(line=line)}">{html}</u>'
    if character.trigger:
        titles.append(f"trigger, time {character.trigger}")
        html = f'<b style="{_TRIGGER}">{html}</b>'
    return f'<span title="{"; ".join(titles)}">{html}</span>' if titles else html
