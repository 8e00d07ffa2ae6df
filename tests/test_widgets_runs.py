"""The explorer of runs under several conditions: its numbers are those of the runs, and its marks those of the book."""

import re

import pytest

from assoc.errors import InputError
from assoc.figures import PALETTE
from assoc.widgets.runs import Panel, compare_runs, curve, curve_marks, run_picture
from test_widgets import Reader, picture_by_links, state_size

PANELS = (
    Panel("share", {"accuracy": "accuracy", "recall.key1": "W_K1"}, (0, 1), 0.5),
    Panel("signal", {"signal.key1": "W_K1"}, (-1, 6), 3),
)


def run(seed: int, top: float) -> dict:
    return {
        "seed": seed,
        "probed": [0, 10, 20],
        "accuracy": [0.0, 0.25, top],
        "recall": {"key1": [0.0, None, 0.5]},
        "signal": {"key1": [0.0, 1.0, 2.0]},
    }


RUNS = {"nothing": [run(0, 0.9), run(1, 0.8)], "W_<O2>": [run(0, 0.4), run(1, 0.3)]}


def test_curves_are_found_by_their_path() -> None:
    assert curve(run(0, 1), "accuracy") == [0, 0.25, 1]
    found = curve(run(0, 1), "recall.key1")
    assert found[0] == 0
    assert found[1] != found[1]
    for key in ("recall", "recall.key2", "probed.x", "loss"):
        with pytest.raises(InputError, match="no curve"):
            curve(run(0, 1), key)


def test_tables_tell_when_a_level_is_passed() -> None:
    text = Reader(run_picture("a run", run(0, 0.9), PANELS)).text
    assert "accuracy0.5200.90" in text
    assert "W_K10.5200.50" in text
    assert "W_K13never2.00" in text


def test_a_step_is_marked_and_named() -> None:
    picture = run_picture("a run", run(0, 0.9), PANELS, 10, "released")
    assert picture.count("class='now'") == 2
    assert "released at step 10" in Reader(picture).text
    assert all("released at step 10" in words for words in Reader(picture).descriptions)
    assert "class='now'" not in run_picture("a run", run(0, 0.9), PANELS)


def test_a_memory_looks_the_same_in_every_panel() -> None:
    looks = curve_marks(PANELS)
    assert looks["recall.key1"] == looks["signal.key1"] != looks["accuracy"]
    assert looks["recall.key1"].colour == PALETTE["key1"]


def test_the_page_shows_every_run() -> None:
    explorer = compare_runs("Runs", "Choose.", RUNS, PANELS, at={"nothing": 10}, at_name="released")
    assert set(explorer.frames) == {(name, str(seed)) for name in RUNS for seed in (0, 1)}
    assert len(set(explorer.frames.values())) == 4
    for key, frame in explorer.frames.items():
        assert picture_by_links(explorer, key) == frame
        read = Reader(frame)
        assert read.problems == []
        assert not re.search(r"\bnan\b|None", frame)
        assert ("released" in frame) == (key[0] == "nothing")
    assert "W_&lt;O2&gt;" in explorer.frames["W_<O2>", "0"]
    assert explorer._repr_mimebundle_()["text/html"].count("W_K1</span>") == 1  # one entry in the legend
    assert state_size(explorer) < 100_000


@pytest.mark.parametrize(
    ("runs", "panels", "message"),
    [
        ({}, PANELS, "nothing to compare"),
        (RUNS, (), "nothing to compare"),
        ({"a": RUNS["nothing"], "b": RUNS["nothing"][:1]}, PANELS, "different seeds"),
        ({"a": RUNS["nothing"][:1]}, PANELS, "different seeds"),
        (RUNS, (Panel("loss", {"loss": "loss"}, (0, 1), 0.5),), "no curve 'loss'"),
    ],
)
def test_what_cannot_be_compared_is_refused(runs, panels, message: str) -> None:
    with pytest.raises(InputError, match=message):
        compare_runs("Runs", "Choose.", runs, panels)
