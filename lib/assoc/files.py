"""Writing result files so that none is ever half-written."""

import errno
import json
import os
import tempfile
from pathlib import Path
from typing import Any

from assoc.errors import InputError


def check_writable(path: str | Path) -> Path:
    """The path, or an InputError before any work is done if no file can be written there. Leaves nothing behind."""
    path = Path(path)
    try:
        if "\0" in str(path):
            raise ValueError("its name holds a zero byte")
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, "it is a folder")
        # Folders that are still missing are made when there is something to write.
        with tempfile.TemporaryFile(dir=next(folder for folder in path.parents if folder.exists())):
            pass
    except (OSError, ValueError) as error:
        raise _cannot_write(path, error) from error
    return path


def _cannot_write(path: Path, error: Exception) -> InputError:
    return InputError(f"cannot write '{path}' ({getattr(error, 'strerror', None) or error}): choose another file")


def write_atomically(path: str | Path, content: str | bytes) -> Path:
    """Write `content` to a temporary file beside `path`, then rename it into place; return the path.

    Parent folders are made as needed. A reader of `path` sees the old content or the new one, never a part, and
    nothing stays behind if writing fails.

    Raises:
        InputError: the place cannot be written to, or is full.
    """
    path = check_writable(path)
    data = content.encode() if isinstance(content, str) else content
    temporary = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".assoc-")
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(temporary, 0o666 & ~umask)  # mkstemp makes files private; results are ordinary files
        os.replace(temporary, path)
    except BaseException as error:
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise _cannot_write(path, error) from error
        raise
    return path


def write_json(path: str | Path, content: dict[str, Any]) -> Path:
    """Write `content` as JSON through `write_atomically`; a number that is not finite raises ValueError."""
    return write_atomically(path, json.dumps(content, allow_nan=False, indent=1) + "\n")
