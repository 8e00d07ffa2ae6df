"""Result files are whole or absent, and a place that cannot be written to is named before any work."""

import os
from pathlib import Path

import pytest

from assoc.errors import InputError
from assoc.files import check_writable, write_atomically, write_json


def test_content_and_folders_are_written(tmp_path: Path) -> None:
    path = write_atomically(tmp_path / "deep" / "file.txt", "words")
    assert path.read_text() == "words"
    assert write_atomically(path, b"bytes").read_bytes() == b"bytes"
    assert [entry.name for entry in path.parent.iterdir()] == ["file.txt"]
    assert path.stat().st_mode & 0o777 == 0o666 & ~_umask()


def _umask() -> int:
    umask = os.umask(0)
    os.umask(umask)
    return umask


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_failure_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    path = tmp_path / "file.txt"
    path.write_text("old")

    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(InputError if isinstance(error, OSError) else KeyboardInterrupt) as caught:
        write_atomically(path, "new")
    assert path.read_text() == "old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["file.txt"]
    if isinstance(error, OSError):
        assert "No space left" in str(caught.value)


def test_the_new_file_appears_by_renaming(tmp_path: Path) -> None:
    """Whoever has the old file open goes on reading it."""
    path = tmp_path / "file.txt"
    path.write_text("old")
    with path.open() as reader:
        write_atomically(path, "new and longer")
        assert reader.read() == "old"


@pytest.mark.parametrize("place", ["", ".", "/dev/null/x.json"])
def test_places_that_cannot_be_written_to(place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="cannot write"):
        check_writable(place)
    assert list(tmp_path.iterdir()) == []


def test_json_holds_finite_numbers_only(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="JSON compliant"):
        write_json(tmp_path / "x.json", {"loss": float("nan")})
    assert list(tmp_path.iterdir()) == []
