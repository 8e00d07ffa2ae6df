"""Resolve requirements.txt in a throw-away environment and write the whole set, pinned, to requirements.lock."""

import re
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

from assoc.files import write_atomically

ROOT = Path(__file__).resolve().parent.parent
HEADER = "# The whole resolved set, written by `make lock`: pip's constraints beside requirements.txt.\n"


def pins(frozen: str) -> list[str]:
    """The `name==version` lines of `pip freeze`, without paths and without build labels (2.13.0+cpu is 2.13.0)."""
    lines = (re.sub(r"\+[\w.]+$", "", line.strip()) for line in frozen.splitlines())
    return sorted((line for line in lines if re.fullmatch(r"[\w.-]+==\S+", line)), key=str.lower)


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        venv.create(folder, with_pip=True)
        pip = [str(Path(folder) / "bin" / "python"), "-m", "pip", "--disable-pip-version-check"]
        subprocess.run([*pip, "install", "--requirement", ROOT / "requirements.txt"], check=True)
        frozen = subprocess.run([*pip, "freeze"], check=True, capture_output=True, text=True).stdout
    write_atomically(ROOT / "requirements.lock", HEADER + "\n".join(pins(frozen)) + "\n")
    print(f"requirements.lock: {len(pins(frozen))} packages")
    return 0


if __name__ == "__main__":
    sys.exit(main())
