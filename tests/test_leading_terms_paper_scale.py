"""The run at the paper's sizes, at smaller ones: what it reports, and that it goes on after a stop."""

import json
import math
from pathlib import Path

import pytest
import torch

from assoc.errors import InputError
from assoc.leading_terms import training as training_module
from assoc.leading_terms.paper_scale import PAPER_SCALE, coefficients_of_rates, frequency_entropy, paper_scale_run
from assoc.leading_terms.theory import step_coefficients
from assoc.sweeps import rounded

SMALL = {"seed": 0, "n_sequences": 48, "learning_rate": 2.0, "steps": 6, "marks": [4]}
SIZES = {"vocab_size": 120, "length": 24, "n_layers": 2}


class StoppedError(Exception):
    """Raised in the midst of a run."""


def test_a_small_run_agrees(tmp_path: Path) -> None:
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


@pytest.mark.parametrize("after", [3, 7, 12])  # gradients: before the mark, beyond it, in the later phase
def test_a_run_goes_on_after_a_stop(after: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = {**SMALL, **SIZES, "later": [(0.5, 4)], "checkpoints": tmp_path}
    whole = paper_scale_run(**arguments)
    calls = 0
    original = training_module.loss_and_gradients

    def failing(*arguments: object) -> float:
        nonlocal calls
        calls += 1
        if calls > after:
            raise StoppedError
        return original(*arguments)

    monkeypatch.setattr(training_module, "loss_and_gradients", failing)
    with pytest.raises(StoppedError):
        paper_scale_run(**arguments)
    assert list(tmp_path.iterdir())
    monkeypatch.undo()
    assert rounded(paper_scale_run(**arguments)) == rounded(whole)
    assert list(tmp_path.iterdir()) == []


def test_later_steps_continue_the_run(tmp_path: Path) -> None:
    """Twice the same rate is one run; a smaller one goes on from where the first ended."""
    whole = paper_scale_run(**(SMALL | {"steps": 8}), **SIZES, checkpoints=tmp_path)
    parts = paper_scale_run(**SMALL, later=[(2.0, 2)], **SIZES, checkpoints=tmp_path)
    for key in ("times", "loss", "coefficients"):
        assert rounded(parts[key]) == rounded(whole[key]), key
    finer = paper_scale_run(**SMALL, later=[(1e-3, 2)], **SIZES, checkpoints=tmp_path)
    assert finer["times"] == pytest.approx([0, 2, 4, 6, 8, 10, 12, 12.001, 12.002])
    assert finer["loss"][-1] == pytest.approx(whole["loss"][6], abs=1e-3)
    assert [record["time"] for record in finer["beyond"]] == pytest.approx([8.0, 12.0, 12.002])


@pytest.mark.parametrize("steps", [1, 2, 3, 9])
def test_coefficients_of_equal_rates_are_the_theorems(steps: int) -> None:
    assert coefficients_of_rates([0.3] * steps) == pytest.approx(step_coefficients(steps, 0.3))


def test_entropy_of_frequencies() -> None:
    assert frequency_entropy(torch.tensor([[0, 0], [1, 2]]), 5) == pytest.approx(1.5 * math.log(2))


def test_too_many_sequences_are_one_line() -> None:
    with pytest.raises(InputError, match="there are"):
        paper_scale_run(**(SMALL | {"n_sequences": 10**6}), **SIZES)


def test_the_plans_are_at_the_papers_sizes() -> None:
    early, late, tinystories = (point for sweep in PAPER_SCALE for point in sweep.points)
    assert early["learning_rate"] * early["steps"] == 48  # epoch 30 of Figure 4
    assert tinystories["learning_rate"] * tinystories["steps"] == 16  # the end of Table 1
    assert sum(rate * steps for rate, steps in [(late["learning_rate"], late["steps"]), *late["later"]]) > 64
    for point in (early, late, tinystories):
        assert 16 / point["learning_rate"] in [*point["marks"], point["steps"]]
        assert point.keys().isdisjoint({"vocab_size", "length", "n_layers"})
