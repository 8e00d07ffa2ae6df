"""Writing result files so that none is ever half-written."""

import json
import os
import tempfile
from pathlib import Path
from typing import Any

from assoc.errors import InputError


def write_atomically(path: str | Path, content: str | bytes) -> Path:
    """Write `content` to a temporary file beside `path`, then rename it into place; return the path.

    Parent folders are made as needed. A reader of `path` sees the old content or the new one, never a part.

    Raises:
        InputError: the place cannot be written to.
    """
    path = Path(path)
    data = content.encode() if isinstance(content, str) else content
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_dir():
            raise IsADirectoryError("it is a folder")
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    except OSError as error:
        raise InputError(f"cannot write '{path}' ({error.strerror or error}): choose another file") from error
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(temporary, 0o666 & ~umask)  # mkstemp makes files private; results are ordinary files
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    return path


def write_json(path: str | Path, content: dict[str, Any]) -> Path:
    """Write `content` as JSON through `write_atomically`; a number that is not finite raises ValueError."""
    return write_atomically(path, json.dumps(content, allow_nan=False, indent=1) + "\n")
