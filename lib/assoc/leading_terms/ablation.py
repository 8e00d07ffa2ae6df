"""Taking leading terms out of trained weights (paper A, Table 3)."""

from torch import Tensor

from assoc.errors import InputError


def remove_projection(weight: Tensor, term: Tensor) -> Tensor:
    """weight - (<weight, term>/<term, term>) term: what is left without its leading term, in the weight's dtype.

    Raises:
        InputError: shapes differ, or the term is zero.
    """
    if weight.shape != term.shape:
        raise InputError(f"weight and term must have one shape; got {tuple(weight.shape)} and {tuple(term.shape)}")
    w, k = weight.detach().double(), term.double()
    square = (k * k).sum()
    if square == 0:
        raise InputError("the leading term is zero: nothing can be projected onto it")
    return (w - (w * k).sum() / square * k).to(weight.dtype)
