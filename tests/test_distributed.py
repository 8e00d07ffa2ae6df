"""Two processes under torchrun find what one finds: statistics of shares, training on shares of batches."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from assoc import distributed
from assoc.__main__ import main
from assoc.errors import InputError
from assoc.leading_terms import AttentionOnlyTransformer, basis_functions, train
from assoc.leading_terms.basis import basis_functions_of_batches
from conftest import relative_error

N, T, V, L = 7, 8, 12, 2


def data() -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randint(V, (N, T + 1), generator=torch.Generator().manual_seed(5))
    return x[:, :-1].contiguous(), x[:, 1:].contiguous()


def everything() -> dict[str, torch.Tensor]:
    """Statistics and trained weights, by however many processes there are."""
    inputs, targets = data()
    found = {}
    for n in (N, 1):  # of a single sequence one process has nothing
        own = distributed.share(n)
        basis = basis_functions_of_batches([(inputs[own], targets[own])], V, T, over_processes=True)
        found |= {f"{name} of {n}": tensor for name, tensor in basis.items()}
    for batch_size in (None, 3, 1):
        model = AttentionOnlyTransformer(V, T, L)
        model.value[1].requires_grad_(False)
        generator = torch.Generator().manual_seed(2)
        history = train(model, inputs, targets, 0.4, 9, batch_size=batch_size, generator=generator, show_progress=False)
        found |= {f"{name}, batches of {batch_size}": weight for name, weight in model.state_dict().items()}
        found[f"loss, batches of {batch_size}"] = torch.tensor(history.loss)
    return found


def write(path: Path) -> None:
    """What each process of the test runs."""
    with distributed.processes():
        assert distributed.count() == 2
        assert distributed.share(5) == (slice(2, 5) if distributed.number() else slice(0, 2))
        found = everything()
        torch.save(found, path / f"{distributed.number()}.pt")
        model = AttentionOnlyTransformer(V, T, L)
        with pytest.raises(InputError, match="the processes differ in what they train"):
            train(model, *data(), learning_rate=1.0 + distributed.number(), steps=1, show_progress=False)


def torchrun(*command: str) -> str:
    environment = os.environ | {"OMP_NUM_THREADS": "1", "TQDM_DISABLE": "1"}
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    run = subprocess.run([*launcher, *command], env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    return run.stdout


def test_two_processes_find_what_one_finds(tmp_path: Path) -> None:
    torchrun(__file__, str(tmp_path))
    first, second = (torch.load(tmp_path / f"{number}.pt", weights_only=True) for number in (0, 1))
    for name, expected in everything().items():
        assert torch.equal(first[name], second[name]), name
        if expected.any():
            assert relative_error(first[name], expected) < 1e-12, name


def test_the_command_under_torchrun(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    sizes = ["--vocab-size", "60", "--length", "12", "--max-sequences", "25", "--unknown", "map", "--layers", "2"]
    train_ = ["train", *sizes, "--learning-rate", "0.5", "--dtype", "float64"]
    both, one, checkpoint = (tmp_path / name for name in ("both.json", "one.json", "run.pt"))
    printed = torchrun("-m", "assoc", *train_, "--steps", "3", "--output", str(both), "--checkpoint", str(checkpoint))
    assert printed.count("loss") == 1  # the first process speaks
    # One process goes on from the checkpoint of two.
    assert main([*train_, "--steps", "6", "--output", str(both), "--checkpoint", str(checkpoint)]) == 0
    assert main([*train_, "--steps", "6", "--output", str(one)]) == 0
    assert capsys.readouterr().err == ""
    found, expected = (json.loads(path.read_text()) for path in (both, one))
    assert found["loss"] == pytest.approx(expected["loss"], rel=1e-12)
    assert found["steps"] == expected["steps"]


def test_alone_nothing_is_shared() -> None:
    assert distributed.count() == 1
    assert distributed.share(7) == slice(0, 7)
    with distributed.processes():
        assert distributed.number() == 0
    tensor = torch.ones(3)
    distributed.add_up([tensor])
    distributed.check_same("anything", "x")
    assert torch.equal(tensor, torch.ones(3))
    inputs, targets = data()
    for name, tensor in basis_functions_of_batches([(inputs, targets)], V, T, over_processes=True).items():
        assert torch.equal(tensor, getattr(basis_functions(inputs, targets, V), name))


if __name__ == "__main__":
    write(Path(sys.argv[1]))
