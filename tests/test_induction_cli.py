"""`python -m assoc induction`, through the program's own entry point."""

import json
import shlex
from pathlib import Path

import pytest

from assoc import __version__
from assoc.__main__ import main
from assoc.induction import InductionHistory

SIZES = {"length": 12, "dim": 8, "steps": 4, "batch-size": 4, "evaluate-every": 2, "n-triggers": 2}
SMALL = [part for name, value in SIZES.items() for part in (f"--{name}", str(value))]


@pytest.fixture
def text(tmp_path: Path) -> str:
    path = tmp_path / "text.txt"
    path.write_text("abracadabra, said the cat. " * 20)
    return str(path)


def test_writes_the_history_it_prints(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "new" / "induction.json"
    frozen = ["--frozen-until", "output2=2", "--frozen-until", "key1=1"]
    arguments = ["induction", "--text", text, *SMALL, *frozen, "--feed-forward", "--seed", "3", "--output", str(output)]
    assert main(arguments) == 0
    printed = capsys.readouterr().out
    written = json.loads(output.read_text())
    assert written["version"] == __version__
    assert written["seed"] == 3
    assert shlex.split(written["command"]) == ["python", "-m", "assoc", *arguments]
    assert not {"run", "command", "command_line"} & written["settings"].keys()
    assert written["settings"]["frozen_until"] == ["output2=2", "key1=1"]
    history = InductionHistory.load(output)
    assert history.steps == [0, 2, 4]
    assert {"key1", "key2", "output2"} <= history.recall.keys()
    assert len(history.feed_forward_kl) == 3
    last = [line for line in printed.splitlines() if line.startswith("     4")]
    assert f"{history.in_context_accuracy[-1]:.3f}" in last[0]
    assert str(output) in printed
    assert [path.name for path in output.parent.iterdir()] == ["induction.json"]
    # The same seed, the same numbers.
    assert main(arguments) == 0
    assert InductionHistory.load(output).in_context_loss == history.in_context_loss


@pytest.mark.parametrize("model", ["one-layer", "full"])
def test_other_models(model: str, text: str, tmp_path: Path) -> None:
    output = tmp_path / "out.json"
    options = ["--triggers", "random", "--outputs", "bigram", "--loss-on", "all", "--model", model]
    assert main(["induction", "--text", text, *SMALL, *options, "--output", str(output)]) == 0
    assert len(json.loads(output.read_text())["in_context_accuracy"]) == 3


def test_options_of_the_task_reach_it(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    losses = []
    for options in ([], ["--trigger-offset", "2"], ["--outputs", "bigram"]):
        output = tmp_path / "out.json"
        assert main(["induction", "--text", text, *SMALL, *options, "--output", str(output)]) == 0
        printed = capsys.readouterr().out
        assert all(option.lstrip("-").replace("-", "_") in printed for option in options)
        losses.append(InductionHistory.load(output).in_context_loss)
    assert losses[0] != losses[1]
    assert losses[0] != losses[2]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--text", "no-such-file"], "no-such-file"),
        (["--triggers", "often"], "'fixed' or 'random'"),
        (["--n-triggers", "99"], "n_triggers = 99"),
        (["--length", "1"], "length is 1"),
        (["--dim", "0"], "dim is 0"),
        (["--steps", "0"], "steps is 0"),
        (["--batch-size", "0"], "batch_size is 0"),
        (["--learning-rate", "nan"], "learning_rate is nan"),
        (["--frozen-until", "output2"], "NAME=STEP"),
        (["--frozen-until", "output2=-5"], "NAME=STEP"),
        (["--frozen-until", "output9=5"], "output9"),
        (["--loss-on", "none"], "'repeated' or 'all'"),
        (["--model", "huge"], "associative, one-layer, full"),
        (["--model", "full", "--feed-forward"], "leave out --feed-forward"),
        (["--seed", "-1"], "seed is -1"),
        (["--output", "."], "folder"),
    ],
)
def test_bad_input_is_one_line_and_status_2(
    arguments: list[str], message: str, text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "out.json"
    assert main(["induction", "--text", text, *SMALL, "--output", str(output), *arguments]) == 2
    captured = capsys.readouterr()
    lines = [line for line in captured.err.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1
    assert message in lines[0]
    assert "Traceback" not in captured.err
    assert not output.exists()


def test_no_place_to_write_is_noticed_before_training(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    assert main(["induction", "--text", text, "--output", str(tmp_path / "file" / "out.json")]) == 2
    assert "cannot write" in capsys.readouterr().err
