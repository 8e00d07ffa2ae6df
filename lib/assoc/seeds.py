"""Sources of randomness that can be repeated."""

import torch

from assoc.errors import InputError


def seeded(seed: int) -> torch.Generator:
    """A generator of its own for a seed from 0 to 2^63 - 1; torch's global one is left alone.

    Raises:
        InputError: any other seed.
    """
    if not 0 <= seed < 2**63:
        raise InputError(f"seed is {seed}: give a whole number from 0 to 2^63 - 1")
    return torch.Generator().manual_seed(seed)
