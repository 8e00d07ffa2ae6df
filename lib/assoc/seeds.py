"""Sources of randomness that can be repeated."""

import torch

from assoc.errors import whole_number


def seeded(seed: int) -> torch.Generator:
    """A generator of its own for a seed from 0 to 2^63 - 1; torch's global one is left alone.

    Raises:
        InputError: any other seed.
    """
    return torch.Generator().manual_seed(whole_number("seed", seed, minimum=0))
