"""The explorer of the three gradient steps: its pictures against the library, its links, its size, and bad input."""

import re

import pytest

from assoc import widgets
from assoc.errors import InputError
from assoc.induction.three_steps import (
    KEPT,
    NAMED,
    ORDER,
    Examples,
    OneTrigger,
    accuracy,
    block_of,
    gradient_steps,
    rates_for,
    read,
    recall,
)
from assoc.seeds import seeded
from assoc.widgets import three_steps as module
from test_widgets import Reader, picture_by_links, state_size

DATA = OneTrigger(6, 7)
MARGINS = (10.0, 10.0, 20.0)


@pytest.fixture(scope="module")
def explorer() -> widgets.Explorer:
    return widgets.three_steps_explorer(DATA, MARGINS, seeded(0))


def test_every_combination_has_a_well_formed_picture(explorer) -> None:
    assert len(explorer.frames) == 6 * 3 * 4
    for labels, frame in explorer.frames.items():
        assert picture_by_links(explorer, labels) == frame
        read = Reader(frame)
        assert read.problems == [], labels
        assert len(read.descriptions) == 4
        assert not re.search(r"\bnan\b|\binf\b|None", frame)
    assert len(set(explorer.frames.values())) >= 9


def test_pictures_tell_recalls_and_accuracy(explorer) -> None:
    everything = DATA.every_pattern()
    names = {"output2": "W_O2", "key2": "W_K2", "key1": "W_K1"}
    steps = list(gradient_steps(DATA, rates_for(DATA, MARGINS), everything, kept=KEPT["named"]))
    for number, step in enumerate(steps, 1):
        text = Reader(explorer.frames["W_O2 → W_K2 → W_K1", "the named blocks", str(number)]).text
        assert f"accuracy {accuracy(step.tables, everything):.2f}" in text
        for name in ORDER:
            if step.tables[name].any():
                assert f"{names[name]}: largest entry" in text
                assert f"recall {recall(step.tables, DATA, name):.2f}" in text
            else:
                assert f"{names[name]}: still zero" in text


def test_pictures_show_the_tables_the_attention_and_the_chance_as_they_are(monkeypatch) -> None:
    shown = []
    monkeypatch.setattr(module, "heat_map", lambda matrix, **_: shown.append(matrix) or "")
    everything = DATA.every_pattern()
    example = Examples(everything.inputs[-1:], everything.targets[-1:])  # trigger at T - 2: the head is sure of it
    order = ("output2", "key2", "key1")
    rates = rates_for(DATA, MARGINS)
    *_, last = gradient_steps(DATA, rates, everything, order=order, kept=KEPT["named"])
    text = module.three_steps_picture(DATA, last.tables, example, everything)
    for name, picture in zip(ORDER, shown, strict=False):
        block = block_of(last.tables[name], DATA, NAMED[name][0])
        assert picture.equal(block / block.abs().max())
    reading = read(last.tables, example.inputs)
    assert shown[3][-1].equal(reading.attention2[0])
    assert shown[3][:-1].nan_to_num(0).equal(reading.attention1[0])
    chance = float(reading.logits[0].double().softmax(0)[example.targets[0]])
    assert chance > 0.5
    assert f"probability {chance:.2f}" in text


def test_a_matrix_that_goes_first_stays_where_its_gradient_is_zero(explorer) -> None:
    text = Reader(explorer.frames["W_K2 → W_K1 → W_O2", "the named blocks", "2"]).text
    assert all(f"{name}: still zero" in text for name in ("W_O2", "W_K2", "W_K1"))


def test_before_the_first_step_all_orders_are_alike(explorer) -> None:
    assert len({frame for labels, frame in explorer.frames.items() if labels[-1] == "0"}) == 1


def test_with_a_kernel_any_margins_can_be_typed(explorer) -> None:
    *boxes, answer = explorer.children[-1].children
    boxes[1].value = 0.5
    first = answer.value
    assert Reader(first).problems == []
    boxes[1].value = 12.0
    assert answer.value != first


def test_the_default_explorer_is_small_enough_for_a_page() -> None:
    assert state_size(widgets.three_steps_explorer()) < 600_000


def test_bad_input() -> None:
    with pytest.raises(InputError, match="letters"):
        widgets.three_steps_explorer(OneTrigger(27, 5))
    with pytest.raises(InputError, match="use sample"):
        widgets.three_steps_explorer(OneTrigger(10, 13))


def test_the_same_seed_gives_the_same_pictures(explorer) -> None:
    again = widgets.three_steps_explorer(DATA, MARGINS, seeded(0))
    assert again.frames == explorer.frames
    assert widgets.three_steps_explorer(DATA, MARGINS, seeded(1)).frames != explorer.frames
