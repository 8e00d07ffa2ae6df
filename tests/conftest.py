"""Shared by all tests: where larger samples and reference results lie, and one thread count for repeatable numbers."""

import os
from pathlib import Path

import pytest

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
