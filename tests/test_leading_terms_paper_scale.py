"""The run at the paper's sizes, at smaller ones: what it reports, and that it goes on after a stop."""

import json
from pathlib import Path

import pytest

from assoc.errors import InputError
from assoc.leading_terms import training as training_module
from assoc.leading_terms.paper_scale import PAPER_SCALE, paper_scale_run
from assoc.sweeps import rounded

SMALL = {"seed": 0, "n_sequences": 48, "learning_rate": 2.0, "steps": 6, "marks": [4]}
SIZES = {"vocab_size": 120, "length": 24, "n_layers": 2}


class StoppedError(Exception):
    """Raised in the midst of a run."""


def test_a_small_run_agrees_and_goes_on_after_a_stop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = paper_scale_run(**SMALL, **SIZES, checkpoints=tmp_path)
    assert whole["times"] == [2.0 * step for step in range(7)]
    assert [entry["time"] for entry in whole["beyond"]] == [8.0, 12.0]
    assert whole["loss"] == sorted(whole["loss"], reverse=True)
    assert min(min(cosines) for cosines in whole["cosines"][4].values()) > 0.95
    assert [len(cosines) for cosines in whole["cosines"][4].values()] == [1, 2, 2, 2]
    assert all(0.5 < ratio < 2 for ratio in whole["coefficients"]["output"])
    assert 0.5 < whole["coverage"] < 1
    json.dumps(rounded(whole), allow_nan=False)
    assert list(tmp_path.iterdir()) == []

    calls = 0
    original = training_module.loss_and_gradients

    def failing(*arguments: object) -> float:
        nonlocal calls
        calls += 1
        if calls > 3:
            raise StoppedError
        return original(*arguments)

    monkeypatch.setattr(training_module, "loss_and_gradients", failing)
    with pytest.raises(StoppedError):
        paper_scale_run(**SMALL, **SIZES, checkpoints=tmp_path)
    assert len(list(tmp_path.iterdir())) == 1
    monkeypatch.undo()
    assert rounded(paper_scale_run(**SMALL, **SIZES, checkpoints=tmp_path)) == rounded(whole)


def test_too_many_sequences_are_one_line() -> None:
    with pytest.raises(InputError, match="there are"):
        paper_scale_run(**(SMALL | {"n_sequences": 10**6}), **SIZES)


def test_the_plan_is_at_the_papers_sizes() -> None:
    (point,) = PAPER_SCALE[0].points
    assert point["learning_rate"] * point["steps"] == 48  # epoch 30 of Figure 4
    assert 16 / point["learning_rate"] in point["marks"]  # the end of Table 1
