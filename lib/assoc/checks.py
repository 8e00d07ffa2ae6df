"""Checks of tensors that readers pass in; each raises InputError with a line that says what is wrong."""

import torch
from torch import Tensor

from assoc.errors import InputError

MOST_LAYERS = 1000
"""Of a model: more are a mistake, which would fill any memory before it shows."""

Shape = tuple[int | None, ...]
"""Sizes of a tensor; None stands for any size above 0."""


def check_numbers(name: str, values: Tensor, shape: Shape, dtype: torch.dtype | None = None) -> None:
    """Raise InputError unless values are finite floating-point numbers of this shape (and dtype, if given)."""
    if not _fits(values, shape) or not values.is_floating_point():
        raise InputError(f"{name} must be floating-point numbers of shape {_words(shape)}; got {_what(values)}")
    if dtype is not None and values.dtype != dtype:
        raise InputError(f"{name} must be {dtype}, as what it is joined with; got {values.dtype}: convert with .to()")
    if not values.isfinite().all():
        raise InputError(f"{name} holds a number that is not finite: look for the NaN or infinity first")


def check_whole(name: str, values: Tensor, shape: Shape, below: int | None = None) -> None:
    """Raise InputError unless values are int64 of this shape, from 0 to below - 1 (None: with no end)."""
    if not _fits(values, shape) or values.dtype != torch.int64:
        raise InputError(f"{name} must be int64 of shape {_words(shape)}; got {_what(values)}: convert with .long()")
    low, high = int(values.min()), int(values.max())
    if low < 0 or (below is not None and high >= below):
        limits = "none below 0" if below is None else f"from 0 to {below - 1}"
        raise InputError(f"{name} hold {low} to {high}: give whole numbers {limits}")


def check_chosen(name: str, chosen: Tensor, shape: Shape) -> None:
    """Raise InputError unless chosen are booleans of this shape."""
    if not _fits(chosen, shape) or chosen.dtype != torch.bool:
        raise InputError(f"{name} must be booleans of shape {_words(shape)}; got {_what(chosen)}")


def _fits(values: Tensor, shape: Shape) -> bool:
    return (
        isinstance(values, Tensor)
        and values.ndim == len(shape)
        and all(
            size == wanted or (wanted is None and size > 0) for size, wanted in zip(values.shape, shape, strict=True)
        )
    )


def _words(shape: Shape) -> str:
    sizes = ", ".join("n" if size is None else str(size) for size in shape)
    return f"({sizes},)" if len(shape) == 1 else f"({sizes})"


def _what(values: object) -> str:
    return f"{values.dtype} {tuple(values.shape)}" if isinstance(values, Tensor) else f"a {type(values).__name__}"
