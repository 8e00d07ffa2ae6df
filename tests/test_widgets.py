"""The explorers: their pictures against the library's own functions, their links, their size, and bad input.

That they move in a real browser is tested on the built pages.
"""

import json
import math
import re
from html import unescape
from html.parser import HTMLParser
from itertools import product

import nbformat
import numpy as np
import pytest
import torch
from ipywidgets import HTML, Stack
from ipywidgets.embed import dependency_state

import notebooks
from assoc import widgets
from assoc.errors import InputError
from assoc.induction import (
    AssociativeTransformer,
    Batch,
    BigramTask,
    InductionHistory,
    after_trigger_attention,
    capacity,
    previous_token_attention,
    train_induction,
)
from assoc.leading_terms import (
    BASIS_NAMES,
    Agreement,
    AttentionOnlyTransformer,
    TrainingHistory,
    basis_functions,
    neighbours,
    step_coefficients,
    train,
)
from assoc.widgets import Explorer
from assoc.widgets.explorer import LIVE_CLASS, choice, live_box, slider
from assoc.widgets.head import ideal_places
from assoc.widgets.pictures import LEVELS, bar, heat_map, line_chart, marks, table

PAGE_BUDGET = 1_500_000  # bytes of widget state on one page
VOCABULARY = ["the", ",", "bird", "fish", "<unk>", '"', "flew", "swam"]


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.fixture(scope="module")
def tokens() -> tuple[torch.Tensor, torch.Tensor]:
    sequences = torch.randint(len(VOCABULARY), (12, 11), generator=generator())
    return sequences[:, :-1], sequences[:, 1:]


@pytest.fixture(scope="module")
def basis(tokens):
    return basis_functions(*tokens, len(VOCABULARY))


@pytest.fixture(scope="module")
def history(tokens, basis) -> TrainingHistory:
    model = AttentionOnlyTransformer(len(VOCABULARY), tokens[0].shape[1], 2)
    return train(model, *tokens, learning_rate=0.5, steps=6, basis=basis, show_progress=False)


@pytest.fixture(scope="module")
def task() -> BigramTask:
    text = "the bird sat on the tree and the fish swam in the sea <b> & "
    return BigramTask.from_text(text, length=24, n_triggers=3)


@pytest.fixture(scope="module")
def probe(task) -> Batch:
    return task.sample(3, generator(5))


@pytest.fixture(scope="module")
def induction_history(task, probe) -> InductionHistory:
    model = AssociativeTransformer(task.vocab_size, task.length, 16, generator=generator(1))
    return train_induction(
        model,
        task,
        steps=6,
        batch_size=4,
        learning_rate=0.1,
        generator=generator(2),
        evaluate_every=2,
        evaluation_size=8,
        probe_inputs=probe.inputs,
        snapshot_steps=(0, 4, 6),
    )


@pytest.fixture(scope="module")
def explorers(basis, history, induction_history, task, probe) -> dict[str, Explorer]:
    """One of each, at the size of the small fixtures."""
    return {
        "association": widgets.association_explorer(basis, VOCABULARY, words=["bird", "<unk>", '"'], top=4),
        "clock": widgets.gradient_clock(history),
        "head": widgets.head_in_motion(induction_history, task, probe, sequence=1, positions=20),
        "memory": widgets.memory_capacity((2, 8, 32), (4, 8), generator(), n_repeats=2),
        "layers": widgets.layer_by_checkpoint(*widgets.agreement_tables(history)),
        "task": widgets.bigram_task_explorer(task, 4, generator()),
    }


NAMES = ("association", "clock", "head", "memory", "layers", "task")


class Reader(HTMLParser):
    """The text of a picture, its pictures' descriptions, and what is wrong with its tags."""

    VOID = frozenset({"br", "img", "hr"})

    def __init__(self, html: str) -> None:
        super().__init__()
        self.text, self.problems, self.descriptions, self._open = "", [], [], []
        self.feed(html)
        self.close()
        self.problems += [f"<{tag}> is not closed" for tag in self._open]

    def handle_starttag(self, tag, attributes):
        values = dict(attributes)
        if tag == "svg" and values.get("aria-hidden") != "true":
            self.descriptions.append(values.get("aria-label") or "")
            if values.get("role") != "img" or not values.get("aria-label"):
                self.problems.append("a picture without description")
        if tag == "th" and values.get("scope") not in ("row", "col"):
            self.problems.append("a header cell without scope")
        if self._open[-1:] == ["table"] and tag != "caption" and "caption" not in self.text_of_table:
            self.problems.append("a table without caption")
        self.text_of_table = {"caption"} if tag == "caption" else set() if tag == "table" else self.text_of_table
        if tag not in self.VOID and not self.get_starttag_text().endswith("/>"):
            self._open.append(tag)

    text_of_table: frozenset | set = frozenset()

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)

    def handle_endtag(self, tag):
        if self._open[-1:] != [tag]:
            self.problems.append(f"</{tag}> closes {self._open[-1:]}")
        self._open = self._open[:-1]

    def handle_data(self, data):
        self.text += data


def picture_by_links(explorer: Explorer, labels: tuple[str, ...]) -> str:
    """What a page without kernel shows for these values: its scripts know the links and the stacks, nothing else."""
    index = {}
    for control, label in zip(explorer.controls, labels, strict=True):
        index[control] = [name for name, _ in control.options].index(label)
    sources = {}
    for link in explorer.links:
        (control, source), (stack, target) = link.source, link.target
        assert (source, target) == ("index", "selected_index")
        sources[stack] = control
    part = explorer.stack
    while isinstance(part, Stack):
        part = part.children[index[sources[part]]]
    assert isinstance(part, HTML)
    return part.value


def state_size(*explorers: Explorer) -> int:
    """Bytes of the state that a page stores."""
    return len(json.dumps(dependency_state(list(explorers), drop_defaults=False)))


@pytest.mark.parametrize("name", NAMES)
def test_the_page_shows_every_frame_by_its_links(name, explorers) -> None:
    explorer = explorers[name]
    labels = [[label for label, _ in control.options] for control in explorer.controls]
    assert set(explorer.frames) == set(product(*labels))
    assert len(set(explorer.frames.values())) > 1
    for key, frame in explorer.frames.items():
        assert picture_by_links(explorer, key) == frame


@pytest.mark.parametrize("name", NAMES)
def test_the_first_picture_is_the_one_that_the_controls_name(name, explorers) -> None:
    explorer = explorers[name]
    part = explorer.stack
    while isinstance(part, Stack):
        part = part.children[part.selected_index]
    assert part.value == explorer.frame == explorer.frames[tuple(control.label for control in explorer.controls)]


@pytest.mark.parametrize("name", NAMES)
def test_pictures_are_well_formed_and_described(name, explorers) -> None:
    for key, frame in explorers[name].frames.items():
        read = Reader(frame)
        assert read.problems == [], (key, read.problems)
        assert read.text.strip()
        assert not re.search(r"\bnan\b|\binf\b|None", frame), key


@pytest.mark.parametrize("name", NAMES)
def test_controls_say_what_they_are(name, explorers) -> None:
    for control in explorers[name].controls:
        assert control.description
        assert control.tooltip


@pytest.mark.parametrize("name", NAMES)
def test_what_a_notebook_keeps(name, explorers) -> None:
    """The committed notebook has no widget state: a short text for nbval, and the first picture for a code host."""
    explorer = explorers[name]
    bundle = explorer._repr_mimebundle_()
    assert bundle["text/plain"] == repr(explorer)
    assert len(repr(explorer)) < 100
    assert explorer.frame in bundle["text/html"]
    assert bundle[notebooks.WIDGET_VIEW]["model_id"] == explorer.model_id
    output = nbformat.v4.new_output("display_data", data=dict(bundle))
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("explorer", outputs=[output])])
    notebooks.strip_volatile(notebook)
    assert set(notebook.cells[0].outputs[0].data) == {"text/plain", "text/html"}
    assert explorer.model_id not in nbformat.writes(notebook)


def test_the_same_input_gives_the_same_pictures(task) -> None:
    for make in (
        lambda: widgets.memory_capacity((2, 8), (4, 8), generator(3), n_repeats=2),
        lambda: widgets.bigram_task_explorer(task, 3, generator(3)),
    ):
        first, second = make(), make()
        assert first.frames == second.frames
        assert first._repr_mimebundle_()["text/html"] == second._repr_mimebundle_()["text/html"]


def test_reprs_count_what_can_be_chosen(explorers) -> None:
    assert repr(explorers["association"]) == "Association explorer: 3 x word, 2 x strength"
    assert repr(explorers["memory"]) == "Memory capacity: 3 x pairs n, 2 x dimension d"


# Paper A


@pytest.mark.parametrize("normalised", [False, True])
@pytest.mark.parametrize("word", ["bird", "<unk>", '"'])
def test_association_frames_are_the_neighbours(word, normalised, basis, explorers) -> None:
    found = {name: neighbours(basis, VOCABULARY, word, name, 4, normalised) for name in BASIS_NAMES}
    frame = explorers["association"].frames[word, "normalised" if normalised else "raw"]
    assert frame == widgets.association_table(word, found, normalised)
    cells = [unescape(cell) for cell in re.findall(r"<td>([^<]*) <small>", frame)]
    # A column is shorter where the data ties fewer than four words to this one.
    ranks = [(rank, name) for rank in range(4) for name in BASIS_NAMES if rank < len(found[name])]
    assert cells == [found[name][rank].word for rank, name in ranks]
    assert len(cells) > len(BASIS_NAMES)


def test_association_explorer_offers_the_commonest_words_of_letters(basis) -> None:
    labels = [label for label, _ in widgets.association_explorer(basis, VOCABULARY).controls[0].options]
    assert labels == ["the", "bird", "fish", "flew", "swam"]


def test_with_a_kernel_any_word_can_be_typed(basis, explorers) -> None:
    explorer = explorers["association"]
    box = explorer.children[-1]
    assert LIVE_CLASS in box._dom_classes
    text, answer = box.children
    text.value = "Swam"
    found = {name: neighbours(basis, VOCABULARY, "swam", name, 4) for name in BASIS_NAMES}
    assert answer.value == widgets.association_table("Swam", found, False)
    text.value = "<b>whale"
    assert "role='alert'" in answer.value
    assert "&lt;b&gt;whale" in answer.value
    text.value = ""
    assert answer.value == ""


def test_clock_frames_tell_cosine_coefficient_and_loss(history) -> None:
    for record, steps in enumerate(history.steps):
        frame = widgets.clock_picture(history, record)
        text = Reader(frame).text
        assert f"After {steps} steps of η = 0.5 (s η = {steps * 0.5:g}): loss {history.loss[record]:.2f} nats" in text
        theory = step_coefficients(steps, 0.5)
        rows = re.findall(r"<tr><th scope='row'>(.*?)</th><td>(.*?)</td>.*?<td>([^<]*)</td></tr>", frame)
        assert len(rows) == len(history.agreements[record]) == 7
        for (name, cosine, ratio), agreement in zip(rows, history.agreements[record], strict=True):
            assert name == (agreement.kind + (f" {agreement.layer}" if agreement.layer else ""))
            expected = getattr(theory, agreement.kind)
            assert cosine == ("still zero" if math.isnan(agreement.cosine) else f"{agreement.cosine:.4f}")
            assert ratio == (f"{agreement.coefficient / expected:.2f}" if expected else "–")


def test_clock_offers_the_training_times(history, explorers) -> None:
    assert [label for label, _ in explorers["clock"].controls[0].options] == ["0", "0.5", "1", "1.5", "2", "2.5", "3"]
    few = widgets.gradient_clock(history, at_most=3)
    assert [label for label, _ in few.controls[0].options] == ["0", "1.5", "3"]


def test_agreement_tables_are_the_cosines(history) -> None:
    tables, times = widgets.agreement_tables(history)
    assert times == [f"{time:g}" for time in history.training_time]
    assert {kind: tuple(values.shape) for kind, values in tables.items()} == {
        "output": (1, 7),
        "value": (2, 7),
        "attention": (2, 7),
        "position": (2, 7),
    }
    np.testing.assert_array_equal(tables["value"][1], history.cosines("value", 2))
    np.testing.assert_array_equal(tables["output"][0], history.cosines("output"))


# Paper B


def test_head_frames_tell_recalls_and_attention(induction_history, explorers, probe) -> None:
    assert [key for (key,) in explorers["head"].frames] == ["0", "4", "6"]
    for (label,), frame in explorers["head"].frames.items():
        step = int(label)
        text = Reader(frame).text
        for name, shown in (("in_context_accuracy", "in-context accuracy"), ("key2", "recall of W_K2")):
            assert f"{shown}{induction_history.at_step(name, step):.2f}" in text
        first, second = (maps[1, :20, :20] for maps in induction_history.snapshots[step])
        assert f"Layer 1: {previous_token_attention(first):.2f} to the previous token" in text
        row = [part[1:2, :20] for part in probe]
        found = after_trigger_attention(second[None], row[0], row[2])
        assert f"Layer 2: {found:.2f} from repeated triggers" in text


def test_ideal_places_are_where_the_construction_looks(probe) -> None:
    row = Batch(*(part[0] for part in probe))
    T = len(row.inputs)
    assert int((row.occurrence >= 2).sum()) > 0
    for is_first in (True, False):
        places = ideal_places(row, is_first)
        for t in range(T):
            for s in range(T):
                if is_first:
                    expected = s == t - 1
                else:
                    repeated = row.occurrence[t] >= 2 and 0 < s <= t
                    expected = bool(repeated and row.inputs[s - 1] == row.inputs[t])
                assert bool(places[t, s]) == expected, (is_first, t, s)


def test_capacity_frames_are_the_capacity(explorers) -> None:
    pairs, dims, draws = (2, 8, 32), (4, 8), generator()
    expected = [[capacity(n, d, draws, 2) for d in dims] for n in pairs]
    recall = widgets.capacity_table(pairs, dims, generator(), 2)
    np.testing.assert_array_equal(recall, expected)
    for (i, n), (j, d) in product(enumerate(pairs), enumerate(dims)):
        frame = explorers["memory"].frames[str(n), str(d)]
        assert frame == widgets.capacity_picture(recall, pairs, dims, i, j)
        assert f"{n} pairs in dimension {d}: recall {expected[i][j]:.2f}" in Reader(frame).text


def test_sequence_frames_mark_triggers_and_outputs(task, explorers) -> None:
    sequences = task.sample_sequences(4, generator())
    for row in range(4):
        frame = explorers["task"].frames[(str(row + 1),)]
        assert frame == widgets.sequence_picture(task, sequences, row)
        known = int((sequences.occurrence[row] >= 2).sum())
        assert f"Of 24 next tokens, the context gives away {known}." in frame
        n_triggers = int((sequences.occurrence[row] >= 1).sum())
        assert len(re.findall(r"trigger, time \d", frame)) == n_triggers


def test_with_a_kernel_any_numbers_can_be_typed(explorers) -> None:
    n_box, d_box, answer = explorers["memory"].children[-1].children
    n_box.value, d_box.value = 3, 64
    assert "3 pairs in dimension 64: recall 1.000" in answer.value
    seed, answer = explorers["task"].children[-1].children
    seed.value = 7
    first = answer.value
    seed.value = 8
    assert first != answer.value
    seed.value = 7
    assert first == answer.value


# Both


def test_layers_frame_one_layer_and_tell_its_ends() -> None:
    values = torch.tensor([[math.nan, 0.25, 0.5], [0.1, 0.2, 1.5]])
    explorer = widgets.layer_by_checkpoint({"a": values, "b": -values[:1]}, [0, 1, 512], layers=["x", "y"])
    assert "cosine of a, layer x: 0.250 at step 1, 0.500 at 512" in explorer.frames["a", "x"]
    assert "cosine of a, layer y: 0.100 at step 0, 1.500 at 512" in explorer.frames["a", "y"]
    # A table of fewer layers shows its last one.
    assert explorer.frames["b", "y"] == explorer.frames["b", "x"]
    assert ": -0.5 " in explorer.children[0].value  # the colour scale reaches as far as the numbers
    assert " 1.5<" in explorer.children[0].value


def test_one_layer_needs_no_slider() -> None:
    explorer = widgets.layer_by_checkpoint({"a": torch.rand(1, 3), "b": torch.rand(1, 3)}, "xyz")
    assert list(explorer.frames) == [("a",), ("b",)]


def test_heat_maps_show_every_cell_in_its_level() -> None:
    values = torch.rand(7, 9, generator=generator()) * 3 - 1
    values[2, 3:6] = math.nan
    svg = heat_map(
        values,
        low=-0.5,
        high=1.5,
        row_labels=list("abcdefg"),
        column_labels=list("123456789"),
        row_name="row",
        column_name="column",
        description="a < b",
    )
    drawn = np.full(values.shape, -1)
    for level, path in re.findall(r"<path class='l(\d+)' d='([^']*)'", svg):
        strokes = re.findall(r"M(\d+) (\d+)h(\d+)", path)
        assert "".join(f"M{a} {b}h{c}" for a, b, c in strokes) == path
        for column, row, width in strokes:
            cells = drawn[int(row), int(column) : int(column) + int(width)]
            assert len(cells) == int(width)
            assert (cells == -1).all()
            cells[:] = int(level)
    share = (values.double().numpy() + 0.5) / 2
    expected = np.rint(np.clip(share, 0, 1) * (LEVELS - 1))
    np.testing.assert_array_equal(drawn, np.where(np.isnan(expected), -1, expected))
    assert Reader(svg).descriptions == ["a < b"]


def test_curves_pass_through_their_points_and_leave_gaps() -> None:
    svg = line_chart(
        [0, 1, 2, 3],
        {"a": [0.0, math.nan, 1.0, 0.5]},
        marks(["a"]),
        x_name="x",
        y_name="y",
        description="curve",
        at=3,
        y_range=(0.0, 1.0),
    )
    path = re.search(r"<path d='([^']*)' fill='none' stroke='currentColor'", svg)[1]
    points = [tuple(map(float, point)) for point in re.findall(r"[ML]([\d.]+) ([\d.]+)", path)]
    assert [letter for letter in path if letter.isalpha()] == ["M", "M", "L"]
    (x0, y0), (x2, y2), (x3, y3) = points
    assert (x2 - x0) / (x3 - x0) == pytest.approx(2 / 3, abs=0.01)
    assert y2 < y3 < y0
    assert y3 == pytest.approx((y0 + y2) / 2, abs=0.1)
    assert f"translate({x3:.0f} {y3:.1f})" in svg


@pytest.mark.parametrize(("share", "width"), [(0.5, 50), (-1.0, 0), (2.0, 100), (math.nan, 0)])
def test_bars_stay_within_their_track(share, width) -> None:
    assert f"width:{width}%" in bar(share)


def test_what_readers_give_is_shown_as_text() -> None:
    assert "&lt;i&gt;" in table("<i>", ["a"], [["b"]])
    explorer = Explorer("<t>", "<g>", [choice("x", [("1", 1)], "")], str)
    assert "<t>" not in explorer.children[0].value.split("</style>")[1]


def test_three_controls_stack_three_deep() -> None:
    controls = [
        choice("a", [("1", 1), ("2", 2)], "a"),
        slider("b", [("x", "x"), ("y", "y"), ("z", "z")], "b", index=1),
        slider("c", [("p", "p"), ("q", "q")], "c"),
    ]
    explorer = Explorer("title", "guide", controls, lambda a, b, c: f"<p>{a}{b}{c}</p>")
    assert len(explorer.frames) == 12
    for a, b, c in explorer.frames:
        assert picture_by_links(explorer, (a, b, c)) == f"<p>{a}{b}{c}</p>"
    assert explorer.frame == "<p>1yp</p>"


# Size


def large_explorers() -> dict[str, Explorer]:
    """Explorers at the size of the chapters, over numbers that compress badly."""
    noise = generator(9)
    vocabulary = [f"w{number:03}x" for number in range(600)]
    letters = [f"word{chr(97 + number // 26)}{chr(97 + number % 26)}" for number in range(60)]
    vocabulary[:60] = letters
    inputs = torch.randint(600, (64, 32), generator=noise)
    basis = basis_functions(inputs, inputs.roll(1, 1), 600)

    weights = [("output", 0), *((kind, layer) for kind in ("value", "attention", "position") for layer in (1, 2, 3))]
    cosines = torch.rand(101, len(weights), generator=noise).tolist()
    training = TrainingHistory(
        0.5,
        steps=list(range(101)),
        loss=torch.rand(101, generator=noise).tolist(),
        agreements=[[Agreement(*weight, c, 1.0) for weight, c in zip(weights, line, strict=True)] for line in cosines],
    )

    task = BigramTask.from_text("".join(chr(33 + n % 90) for n in range(8000)), length=256, n_triggers=5)
    probe = task.sample(1, noise)
    steps = list(range(0, 610, 10))
    induction = InductionHistory(
        steps=steps,
        in_context_accuracy=torch.rand(61, generator=noise).tolist(),
        recall={name: torch.rand(61, generator=noise).tolist() for name in ("output2", "key2", "key1")},
        snapshots={
            step: tuple((4 * torch.randn(2, 1, 256, 256, generator=noise)).tril().softmax(-1)) for step in steps[::3]
        },
    )
    llm = {name: torch.rand(24, 11, generator=noise) for name in ("embedding", "no MLP", "attention", "transposed")}
    return {
        "association": widgets.association_explorer(basis, vocabulary),
        "clock": widgets.gradient_clock(training),
        "head": widgets.head_in_motion(induction, task, probe),
        "memory": widgets.memory_capacity(n_repeats=1, generator=noise),
        "layers": widgets.layer_by_checkpoint(llm, [0] + [2**n for n in range(10)]),
        "task": widgets.bigram_task_explorer(task, generator=noise),
    }


def test_state_stays_within_the_budget_of_a_page() -> None:
    explorers = large_explorers()
    assert len(explorers["association"].frames) == 120
    assert len(explorers["head"].frames) == 21
    sizes = {name: state_size(explorer) for name, explorer in explorers.items()}
    assert max(sizes.values()) < PAGE_BUDGET / 2, sizes
    # The three largest fit on one page.
    assert sum(sorted(sizes.values())[-3:]) < PAGE_BUDGET, sizes


# Bad input


def test_bad_input_is_refused_in_one_line(basis, history, task, probe, induction_history) -> None:
    silent = TrainingHistory(0.1, steps=[0, 1], loss=[1.0, 0.9])
    bare = InductionHistory(steps=[0], in_context_accuracy=[0.0])
    unnamed = BigramTask(task.unigram, task.bigram, length=4, n_triggers=1)
    heads = InductionHistory(snapshots={step: (torch.zeros(3, 2, 24, 24),) for step in (0, 1)})
    late = InductionHistory(
        steps=[0], in_context_accuracy=[0.0], snapshots=dict.fromkeys((1, 2), (torch.zeros(3, 24, 24),))
    )
    table_23 = torch.zeros(2, 3)
    cases = [
        (lambda: widgets.association_explorer(basis, VOCABULARY, words=["whale"]), "'whale' is not among"),
        (lambda: widgets.association_explorer(basis, VOCABULARY, words=[]), "nothing to choose from for 'word'"),
        (lambda: widgets.association_explorer(basis, VOCABULARY, words=["bird", "Bird"]), "more than once"),
        (lambda: widgets.association_explorer(basis, VOCABULARY[:-1]), "the vocabulary has 7 words"),
        (lambda: widgets.association_explorer(basis, VOCABULARY, top=0), "top is 0"),
        (lambda: widgets.gradient_clock(silent), "pass basis= to train"),
        (lambda: widgets.gradient_clock(history, at_most=1), "at_most is 1"),
        (lambda: widgets.agreement_tables(silent), "pass basis= to train"),
        (lambda: widgets.head_in_motion(bare, task, probe), "needs snapshots"),
        (lambda: widgets.head_in_motion(induction_history, task, probe, sequence=3), "no sequence 3"),
        (lambda: widgets.head_in_motion(induction_history, task, probe, positions=1), "positions is 1"),
        (lambda: widgets.head_in_motion(induction_history, task, task.sample(2)), "pass the batch whose inputs"),
        (lambda: widgets.head_in_motion(heads, task, probe), "2 heads a layer"),
        (lambda: widgets.head_in_motion(late, task, probe), "step 1 was not probed"),
        (lambda: widgets.memory_capacity(pairs=(2,)), "two or more numbers that ascend"),
        (lambda: widgets.memory_capacity(dims=(8, 4)), "dims must be two or more numbers that ascend"),
        (lambda: widgets.memory_capacity(pairs=(0, 4)), "pairs is 0"),
        (lambda: widgets.layer_by_checkpoint({}, [1, 2]), "no tables"),
        (lambda: widgets.layer_by_checkpoint({"a": table_23}, [1, 2]), "shape (2, 3)"),
        (lambda: widgets.layer_by_checkpoint({"a": table_23}, [1, 2, 3], layers=[1]), "(1 layers, 3 checkpoints)"),
        (lambda: widgets.layer_by_checkpoint({"a": table_23 - torch.inf}, [1, 2, 3]), "infinite entries"),
        (lambda: widgets.bigram_task_explorer(unnamed), "has no vocabulary"),
        (lambda: widgets.bigram_task_explorer(task, n_sequences=1), "n_sequences is 1"),
    ]
    for make, expected in cases:
        with pytest.raises(InputError) as caught:
            make()
        assert expected in str(caught.value), str(caught.value)
        assert "\n" not in str(caught.value)


def test_errors_of_live_boxes_are_shown_in_place() -> None:
    number = slider("n", [("1", 1), ("2", 2)], "n")

    def refuse(value: int) -> str:
        raise InputError(f"no <{value}>")

    box = live_box([number], refuse)
    number.index = 1
    assert box.children[-1].value == "<p role='alert'>no &lt;2&gt;</p>"
