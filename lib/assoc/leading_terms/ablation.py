"""Taking leading terms out of trained weights (paper A, Table 3)."""

from torch import Tensor

from assoc.errors import InputError


def remove_projection(weight: Tensor, term: Tensor) -> Tensor:
    """weight - (<weight, term>/<term, term>) term: what is left without its leading term, in the weight's dtype.

    Raises:
        InputError: shapes differ, the term is zero, or a number is not finite.
    """
    if weight.shape != term.shape:
        raise InputError(f"weight and term must have one shape; got {tuple(weight.shape)} and {tuple(term.shape)}")
    w, k = weight.detach().double(), term.detach().double()
    if not (w.isfinite().all() and k.isfinite().all()):
        raise InputError("weight and term must hold finite numbers")
    if not k.any():
        raise InputError("the leading term is zero: nothing can be projected onto it")
    k = k / k.abs().max()  # squares of the smallest terms would underflow
    return (w - (w * k).sum() / (k * k).sum() * k).to(weight.dtype)
