"""Several processes that share one computation, started by `torchrun --nproc-per-node K -m assoc ...`.

Every process runs the same program with the same seed; each takes its share of the sequences, and what they find adds
up. In a single process all of this does nothing.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import Tensor

from assoc.errors import InputError


@contextmanager
def processes() -> Iterator[None]:
    """Within the block, the processes that torchrun started can share work; without torchrun there is just this one.

    CPU tensors travel by gloo, those of GPUs by nccl.

    Raises:
        InputError: the environment speaks of other processes, but they cannot be joined.
    """
    if os.environ.get("WORLD_SIZE", "1") == "1" or dist.is_initialized():
        yield
        return
    try:
        dist.init_process_group("cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo")
    except (ValueError, RuntimeError) as error:
        raise InputError(
            f"cannot join the other processes ({str(error).splitlines()[0]}): start with torchrun --nproc-per-node K "
            "-m assoc train ..., or unset WORLD_SIZE"
        ) from error
    try:
        yield
    finally:
        dist.destroy_process_group()


def count() -> int:
    """How many processes share the work."""
    return dist.get_world_size() if dist.is_initialized() else 1


def number() -> int:
    """Which of them this is, from 0. Number 0 speaks and writes files."""
    return dist.get_rank() if dist.is_initialized() else 0


def share(n: int) -> slice:
    """Which of n items this process takes: as many as the others, or one more or less; maybe none."""
    K, k = count(), number()
    return slice(n * k // K, n * (k + 1) // K)


def add_up(tensors: Sequence[Tensor]) -> None:
    """Replace each tensor, in place, by its sum over all processes; every process gets the same bits."""
    if count() > 1:
        for tensor in tensors:
            dist.all_reduce(tensor)


def wait_for_all() -> None:
    """Return when every process has come here."""
    if count() > 1:
        dist.barrier()


def check_same(what: str, value: str) -> None:
    """Raise InputError in every process unless all have the same text."""
    if count() > 1:
        values: list[str | None] = [None] * count()
        dist.all_gather_object(values, value)
        if len(set(values)) > 1:
            raise InputError(f"the processes differ in {what}: start all with the same arguments, seed and data")
