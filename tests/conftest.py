"""Shared by all tests: where larger samples and reference results lie, the pages, built once, and no network."""

import ipaddress
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
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


def leaves_the_machine(host: str | bytes | None) -> bool:
    """Whether a host name or address is another machine's."""
    name = host.decode() if isinstance(host, bytes) else host or "localhost"
    try:
        address = ipaddress.ip_address(name.partition("%")[0])
    except ValueError:
        return name.lower() not in {"localhost", socket.gethostname().lower()}
    return not (address.is_loopback or address.is_unspecified)


@pytest.fixture(scope="session", autouse=True)
def no_network() -> Iterator[None]:
    """A test that looks for another machine, by name or by address, fails at once; what it starts is not watched.

    The failure is no Exception, so no code can take it for a network that is down, and go on.
    """

    def guarded(real: Callable[..., Any], host_of: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            host = host_of(*arguments, **options)
            if host is not False and leaves_the_machine(host):
                pytest.fail(f"a test tried to reach {host!r}: tests must do without a network")
            return real(*arguments, **options)

        return call

    def host_of_connection(connection: socket.socket, address: Any) -> Any:
        return address[0] if connection.family in (socket.AF_INET, socket.AF_INET6) else False

    with pytest.MonkeyPatch.context() as patch:
        for name in ("connect", "connect_ex"):
            patch.setattr(socket.socket, name, guarded(getattr(socket.socket, name), host_of_connection))
        patch.setattr(socket, "getaddrinfo", guarded(socket.getaddrinfo, lambda host, *_, **__: host))
        yield


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
