"""Shared by all tests: where larger samples and reference results lie, and the pages, built once."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

os.environ["TQDM_DISABLE"] = "1"  # tests compare what is said on stderr; bars depend on the machine's pace

ROOT = Path(__file__).resolve().parent.parent
SHARED = Path(os.environ.get("ASSOC_SHARED", ROOT.parent / "shared"))


def shared_file(relative: str) -> Path:
    """A file that is not part of the project; the test skips, with the reason, where it is absent."""
    path = SHARED / relative
    if not path.exists():
        pytest.skip(f"{relative} is not on this machine (set ASSOC_SHARED to the folder that holds it)")
    return path


@pytest.fixture(scope="session")
def reference() -> dict:
    """Results of the papers' own programs on small random inputs, as numpy arrays."""
    import numpy as np

    with np.load(shared_file("reference/small.npz")) as file:
        return dict(file)


@pytest.fixture(scope="session")
def site() -> Path:
    """The pages, built anew by the same command as `make book`."""
    import book

    run = subprocess.run(
        [sys.executable, str(ROOT / "tools" / "book.py")], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert str(book.HTML / "index.html") in run.stdout
    return book.HTML


def relative_error(ours: Any, theirs: Any) -> float:
    """|ours - theirs| / |theirs| in the Frobenius norm, float64."""
    import torch

    ours, theirs = (torch.as_tensor(tensor).detach().double() for tensor in (ours, theirs))
    assert ours.shape == theirs.shape, (ours.shape, theirs.shape)
    return float((ours - theirs).norm() / theirs.norm())
