"""Paper B, Section 3: sequences of the bigram task, with triggers and outputs marked."""

from html import escape

import torch
from ipywidgets import BoundedIntText
from torch import Tensor

from assoc.errors import InputError, whole_number
from assoc.induction.display import mark_sequence, visible
from assoc.induction.task import BigramTask, Sequences
from assoc.seeds import seeded
from assoc.widgets.explorer import Explorer, live_box, slider
from assoc.widgets.pictures import table

LEGEND = (
    "<div class='legend'><span><b>bold</b>: trigger</span>"
    "<span><u style='text-decoration-style:dotted'>dotted line</u>: its output, the first time</span>"
    "<span><u>full line</u>: its output, known from the context</span></div>"
)


def token_names(task: BigramTask, tokens: Tensor) -> list[str]:
    """Tokens as readers see them: characters, blanks made visible; numbers if the task has no vocabulary."""
    if task.vocabulary is None:
        return [str(token) for token in tokens.tolist()]
    return [visible(task.vocabulary[token]) for token in tokens.tolist()]


def sequence_picture(task: BigramTask, sequences: Sequences, row: int) -> str:
    """One sequence with its marks, beneath a table of its triggers, their outputs and how often they occur."""
    inputs, targets, occurrence, triggers, outputs = (part[row] for part in sequences)
    counts = (inputs == triggers[:, None]).sum(dim=1).tolist()
    names = zip(token_names(task, triggers), token_names(task, outputs), counts, strict=True)
    rows = [[escape(trigger), escape(output), str(count)] for trigger, output, count in names]
    known = int((occurrence >= 2).sum())
    drawn = table("Triggers of this sequence", ["trigger", "output", "times"], rows)
    marked = f"<div class='sequence'>{mark_sequence(task, inputs, occurrence, targets)}</div>"
    return f"<p>Of {len(inputs)} next tokens, the context gives away {known}.</p>{drawn}{marked}"


def bigram_task_explorer(task: BigramTask, n_sequences: int = 10, generator: torch.Generator | None = None) -> Explorer:
    """Draw a sequence; see its triggers, and their outputs the first time and when the context gives them away.

    With a kernel, any seed can be typed.

    Args:
        task: has a vocabulary. n_sequences: how many to choose from.
        generator: source of the sequences, drawn here and now; the same state gives the same pictures.

    Raises:
        InputError: a task without vocabulary, or fewer than two sequences.
    """
    if task.vocabulary is None:
        raise InputError("this task has no vocabulary: pass vocabulary= when making it")
    sequences = task.sample_sequences(whole_number("n_sequences", n_sequences, minimum=2), generator)

    def draw_anew(seed: int) -> str:
        fresh = task.sample_sequences(1, seeded(seed))
        return sequence_picture(task, fresh, 0)

    seed = BoundedIntText(
        0, min=0, max=2**31 - 1, description="new seed", tooltip="any whole number", continuous_update=False
    )
    return Explorer(
        "The bigram task",
        "Draw another sequence: the same global bigrams, but new outputs behind the triggers.",
        [slider("sequence", [(str(row + 1), row) for row in range(n_sequences)], "which sequence is shown")],
        lambda row: sequence_picture(task, sequences, row),
        legend=LEGEND,
        live=[live_box([seed], draw_anew)],
    )
