"""Runs a command where there is no network but the machine itself, for tests of what must work offline.

    unshare --map-root-user --net python offline.py COMMAND...

The kernel gives the command a network of its own, whose only device, the loopback, is off. It is switched on here,
because Jupyter talks to its kernels through it.
"""

import fcntl
import os
import shutil
import socket
import struct
import subprocess
import sys
from pathlib import Path

SET_FLAGS, UP = 0x8914, 1  # SIOCSIFFLAGS and IFF_UP of Linux


def prefix() -> tuple[list[str], str]:
    """What to put before a command, and "" or the reason why this machine cannot cut the network."""
    unshare = shutil.which("unshare")
    if unshare is None:
        return [], "there is no program unshare to cut the network with (Linux: package util-linux)"
    said = ""
    for options in (["--map-root-user", "--net"], ["--net"]):  # the second where root may, and others may not
        start = [unshare, *options, sys.executable, str(Path(__file__))]
        run = subprocess.run([*start, sys.executable, "-c", ""], capture_output=True, text=True, check=False)
        if run.returncode == 0:
            return start, ""
        said = said or (run.stderr.strip().splitlines() or [f"status {run.returncode}"])[-1]
    return [], f"the kernel does not let the network be cut: {said}"


if __name__ == "__main__":
    with socket.socket() as any_socket:
        fcntl.ioctl(any_socket, SET_FLAGS, struct.pack("16sh14x", b"lo", UP))
    os.execvp(sys.argv[1], sys.argv[1:])
