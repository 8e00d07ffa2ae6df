"""Runs that are stopped and go on: the same numbers to the last bit, and one-line errors for files of another kind."""

import math
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from assoc.__main__ import main
from assoc.errors import InputError
from assoc.leading_terms import AttentionOnlyTransformer, TrainingHistory, basis_functions, train
from assoc.leading_terms import training as training_module

N, T, V, L = 9, 8, 14, 2


def data() -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randint(V, (N, T + 1), generator=torch.Generator().manual_seed(3))
    return x[:, :-1].contiguous(), x[:, 1:].contiguous()


def run(
    steps: int, checkpoint: Path | None = None, dtype: torch.dtype = torch.float32, **options: object
) -> tuple[AttentionOnlyTransformer, TrainingHistory]:
    """A run on mini-batches whose shuffles matter."""
    inputs, targets = data()
    model = AttentionOnlyTransformer(V, T, L, dtype=dtype)
    settings = {
        "batch_size": 2,
        "generator": torch.Generator().manual_seed(7),
        "basis": basis_functions(inputs, targets, V),
        "record_every": 4,
        "show_progress": False,
    }
    history = train(model, inputs, targets, 0.3, steps, checkpoint=checkpoint, **(settings | options))
    return model, history


def assert_same_bits(a: tuple, b: tuple) -> None:
    (model, history), (other_model, other_history) = a, b
    for name, weight in model.state_dict().items():
        assert torch.equal(weight, other_model.state_dict()[name]), name
    assert history.as_dict() == other_history.as_dict()  # floats compare equal only if their bits do


class StoppedError(Exception):
    """Raised in the midst of a run."""


@pytest.mark.parametrize("stop_at", [1, 5, 8, 11])
@pytest.mark.parametrize("batch_size", [None, 2])
def test_a_stopped_run_goes_on(
    stop_at: int, batch_size: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped within epochs and at their ends, on records and between them, on checkpoints and between them."""
    whole = run(12, batch_size=batch_size)
    calls = 0
    original = training_module.loss_and_gradients

    def failing(*arguments: object) -> float:
        nonlocal calls
        calls += 1
        if calls > stop_at:
            raise StoppedError
        return original(*arguments)

    monkeypatch.setattr(training_module, "loss_and_gradients", failing)
    options = {"batch_size": batch_size, "checkpoint_every": 3}
    with pytest.raises(StoppedError):
        run(12, tmp_path / "run.pt", **options)
    monkeypatch.undo()
    assert_same_bits(run(12, tmp_path / "run.pt", **options), whole)
    assert_same_bits(run(12, tmp_path / "run.pt", **options), whole)  # from the end: nothing is left to do
    assert_same_bits(run(15, tmp_path / "run.pt", **options), run(15, batch_size=batch_size))


ENDLESS = f"""
import sys
from pathlib import Path
sys.path.insert(0, {str(Path(__file__).parent)!r})
from test_leading_terms_checkpoint import run
run(10**6, Path(sys.argv[1]))
"""


def test_a_killed_run_goes_on_with_the_same_bits(tmp_path: Path) -> None:
    """SIGKILL at a moment that nobody chose, maybe in the midst of writing."""
    path = tmp_path / "run.pt"
    process = subprocess.Popen([sys.executable, "-c", ENDLESS, str(path)], stderr=subprocess.PIPE)
    deadline = time.monotonic() + 300
    while not path.exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.02)
    assert process.poll() is None, process.stderr.read().decode()
    time.sleep(random.uniform(0, 0.5))
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    reached = torch.load(path, weights_only=True)["state"]["step"]
    assert reached >= 1
    steps = reached + 5
    assert_same_bits(run(steps, path), run(steps))


def test_a_history_survives_json() -> None:
    history = run(3)[1]
    again = TrainingHistory.from_dict(history.as_dict())
    assert again.as_dict() == history.as_dict()
    assert math.isnan(again.agreements[0][0].cosine)
    assert again.cosines("output") == pytest.approx(history.cosines("output"), nan_ok=True)


def test_nothing_is_half_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(2, tmp_path / "run.pt")
    before = (tmp_path / "run.pt").read_bytes()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("assoc.files.os.replace", full)
    with pytest.raises(InputError, match="No space left on device"):
        run(4, tmp_path / "run.pt")
    assert (tmp_path / "run.pt").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["run.pt"]


def test_bad_checkpoints(tmp_path: Path) -> None:
    path = tmp_path / "run.pt"
    run(4, path)
    (tmp_path / "text.pt").write_text("no checkpoint")
    torch.save({"format": 99}, tmp_path / "later.pt")
    (tmp_path / "half.pt").write_bytes(path.read_bytes()[:1000])
    inputs, targets = data()
    other = AttentionOnlyTransformer(V, T, L, dtype=torch.float32)
    cases = [
        (lambda: run(3, path), "4 steps far"),
        (lambda: run(5, path, batch_size=3), "differs in batch_size"),
        (lambda: run(5, path, dtype=torch.float64), "differs in dtype"),
        (lambda: run(5, path, basis=None), "differs in watched"),
        (lambda: train(other, inputs, targets.roll(1), 0.3, 5, checkpoint=path), "differs in batch_size, data, record"),
        (lambda: run(5, path, generator=None), "pass generator="),
        (lambda: run(5, path, checkpoint_every=0), "checkpoint_every"),
        (lambda: run(5, tmp_path / "text.pt"), "is not a checkpoint"),
        (lambda: run(5, tmp_path / "half.pt"), "is not a checkpoint"),
        (lambda: run(5, tmp_path / "later.pt"), "has format 99"),
        (lambda: run(5, tmp_path), "folder"),
    ]
    for call, message in cases:
        with pytest.raises(InputError, match=message) as caught:
            call()
        assert "\n" not in str(caught.value)


def test_the_command_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    sizes = ["--vocab-size", "60", "--length", "12", "--max-sequences", "24", "--unknown", "map", "--layers", "2"]
    train_ = ["train", *sizes, "--batch-size", "8", "--learning-rate", "0.5"]
    checkpoint = ["--checkpoint", str(tmp_path / "run.pt"), "--checkpoint-every", "2"]

    def losses(*arguments: str) -> str:
        assert main([*train_, *arguments, "--output", str(tmp_path / "out.json")]) == 0
        return capsys.readouterr().out.rsplit("\n", 2)[0]  # without the seconds it took

    whole = losses("--steps", "9")
    losses("--steps", "5", *checkpoint)
    assert losses("--steps", "9", *checkpoint) == whole
    assert main([*train_, "--steps", "4", *checkpoint, "--output", str(tmp_path / "out.json")]) == 2
    assert capsys.readouterr().err.startswith("error: ")
