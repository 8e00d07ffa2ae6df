"""Marked sequences say the same as the batch they show, in HTML and in plain text, without relying on colour."""

from html.parser import HTMLParser

import pytest
import torch

from assoc.errors import InputError
from assoc.induction import BigramTask
from assoc.induction.display import (
    LEGEND,
    VISIBLE,
    MarkedSequences,
    mark_sequence,
    mark_sequence_text,
    visible,
)

TEXT = 'a <b> & "c"\n a&a <a> "b" & <\tb>ab & aa " <c> & \n' * 3


def make_task(**options: object) -> BigramTask:
    return BigramTask.from_text(TEXT, **({"length": 40, "n_triggers": 4} | options))


class Reader(HTMLParser):
    """Each character of some HTML with the names of the tags and the styles around it."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[tuple[str, str]] = []
        self.characters: list[tuple[str, set[str], str]] = []
        self.titles: list[str] = []
        self.feed(html)
        self.close()
        assert not self.open, "tags are left open"

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.open.append((tag, dict(attributes).get("style") or ""))
        self.titles.extend(value for name, value in attributes if name == "title" and value)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop()[0] == tag

    def handle_data(self, data: str) -> None:
        tags = {tag for tag, _ in self.open}
        styles = " ".join(style for _, style in self.open)
        self.characters.extend((character, tags, styles) for character in data)


@pytest.mark.parametrize("triggers", ["fixed", "random"])
def test_every_mark_is_where_the_batch_says(triggers: str) -> None:
    task = make_task(triggers=triggers)
    batch = task.sample(20, torch.Generator().manual_seed(0))
    for inputs, targets, occurrence in zip(*batch, strict=True):
        tokens = [*inputs.tolist(), int(targets[-1])]
        expected = "".join(VISIBLE.get(task.vocabulary[token], task.vocabulary[token]) for token in tokens)
        is_trigger = [n >= 1 for n in occurrence.tolist()] + [False]
        output = [0, *occurrence.tolist()]

        read = Reader(mark_sequence(task, inputs, occurrence, targets)).characters
        assert "".join(character for character, _, _ in read) == expected
        assert [("b" in tags) for _, tags, _ in read] == is_trigger
        assert [("u" in tags) for _, tags, _ in read] == [n >= 1 for n in output]
        assert [("dotted" in styles) for _, _, styles in read] == [n == 1 for n in output]

        text, carets, marks = (
            line.ljust(len(expected)) for line in mark_sequence_text(task, inputs, occurrence, targets).split("\n")
        )
        assert text == expected
        assert [mark == "^" for mark in carets] == is_trigger
        assert list(marks) == [" " if n == 0 else "." if n == 1 else "=" for n in output]


def test_tooltips_count_occurrences() -> None:
    task = BigramTask.from_text("abab", length=4, n_triggers=1)
    row, occurrence = torch.tensor([0, 0, 0, 1]), torch.tensor([1, 2, 3, 0])
    assert Reader(mark_sequence(task, row, occurrence)).titles == [
        "trigger, time 1",
        "output, first time; trigger, time 2",
        "output, time 2; trigger, time 3",
        "output, time 3",
    ]


def test_without_targets_the_last_output_is_not_shown() -> None:
    task = make_task()
    inputs, targets, occurrence = (table[0] for table in task.sample(1, torch.Generator().manual_seed(1)))
    longer = mark_sequence_text(task, inputs, occurrence, targets).split("\n")
    shorter = mark_sequence_text(task, inputs, occurrence).split("\n")
    for long, short in zip(longer, shorter, strict=True):
        assert long[: task.length].rstrip() == short


def test_several_sequences_show_their_rules() -> None:
    task = make_task()
    sequences = task.sample_sequences(3, torch.Generator().manual_seed(2))
    marked = MarkedSequences(task, sequences)
    plain, html = repr(marked), marked._repr_html_()
    assert plain.startswith(LEGEND)
    seen = "".join(character for character, _, _ in Reader(html).characters)
    for triggers, outputs, text in zip(sequences.triggers, sequences.outputs, marked.text, strict=True):
        for trigger, output in zip(triggers.tolist(), outputs.tolist(), strict=True):
            rule = f"{visible(task.vocabulary[trigger])}→{visible(task.vocabulary[output])}"
            assert rule in plain
            assert rule in seen
        assert text in plain
        assert text.split("\n")[0] in seen
    assert MarkedSequences(task, sequences, rows=[2, 0]).text == [marked.text[2], marked.text[0]]
    with pytest.raises(InputError, match="a whole number from 0 to 2"):
        MarkedSequences(task, sequences, rows=[3])


def luminance(colour: str) -> float:
    channels = [int(part, 16) / 255 for part in (colour[1:3], colour[3:5], colour[5:7])]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("background", ["#ffffff", "#bfe0f5"])
def test_outputs_are_legible_on_both_backgrounds(background: str) -> None:
    task = BigramTask.from_text("abab", length=4, n_triggers=1)
    html = mark_sequence(task, torch.tensor([0, 0]), torch.tensor([1, 2]))
    assert "color:#a03c00" in html
    assert background in html.replace("#fff;", "#ffffff;")
    assert (luminance(background) + 0.05) / (luminance("#a03c00") + 0.05) >= 4.5


def test_bad_input() -> None:
    task = make_task()
    batch = task.sample(2)
    for rows in (
        (batch.inputs, batch.occurrence),
        (batch.inputs[0], batch.occurrence[0, :-1]),
        (batch.inputs[0], batch.occurrence[0], batch.targets[0, :-1]),
        (batch.inputs[0, :0], batch.occurrence[0, :0]),
    ):
        with pytest.raises(InputError, match="one row of a batch"):
            mark_sequence(task, *rows)
    nameless = BigramTask(task.unigram, task.bigram, length=8, n_triggers=1)
    with pytest.raises(InputError, match="no vocabulary"):
        MarkedSequences(nameless, nameless.sample_sequences(1))
