"""Paper B, Section 4: how many pairs a sum of outer products recalls."""

from collections.abc import Sequence

import torch
from ipywidgets import BoundedIntText
from torch import Tensor

from assoc.errors import InputError, whole_number
from assoc.induction.memory import capacity
from assoc.widgets.explorer import Explorer, live_box, slider
from assoc.widgets.pictures import Mark, bar, legend, line_chart, marks, panes, table

PAIRS = (4, 8, 16, 32, 64, 128, 256, 512, 1024)
DIMS = (8, 16, 32, 64)
LARGEST = 4096  # pairs that can be asked for with a kernel: their scores fill 64 MB


def capacity_table(
    pairs: Sequence[int], dims: Sequence[int], generator: torch.Generator | None = None, n_repeats: int = 4
) -> Tensor:
    """`capacity` for every number of pairs and dimension: (len(pairs), len(dims)) float64."""
    return torch.tensor([[capacity(n, d, generator, n_repeats) for d in dims] for n in pairs], dtype=torch.float64)


def capacity_picture(recall: Tensor, pairs: Sequence[int], dims: Sequence[int], pair: int, dim: int) -> str:
    """Recall of pairs[pair] pairs in dimension dims[dim], among the curves of all dimensions.

    Args:
        recall: of `capacity_table`, (len(pairs), len(dims)).
    """
    n, d, found = pairs[pair], dims[dim], float(recall[pair, dim])
    curves = line_chart(
        pairs,
        {str(other): recall[:, column].tolist() for column, other in enumerate(dims)},
        dim_marks(dims, dim),
        x_name="pairs n (logarithmic)",
        y_name="recall",
        description=f"Recall over the number of pairs, one curve a dimension; {n} pairs in dimension {d}: {found:.2f}",
        at=pair,
        y_range=(0.0, 1.0),
        logarithmic=True,
    )
    rows = [
        [f"{other}", f"{recall[pair, column]:.2f}", f"<div class='track'>{bar(float(recall[pair, column]))}</div>"]
        for column, other in enumerate(dims)
    ]
    noise = f"a right match scores about 1, a wrong one √n/d = {n**0.5 / d:.2f}"
    return f"<p>{n} pairs in dimension {d}: recall {found:.2f}; {noise}</p>" + panes(
        table(f"Recall of {n} pairs", ["d", "recall", ""], rows), curves
    )


def dim_marks(dims: Sequence[int], chosen: int | None = None) -> dict[str, Mark]:
    """A mark for each dimension, the chosen one in colour."""
    looks = marks([str(dim) for dim in dims])
    if chosen is not None:
        name = str(dims[chosen])
        looks[name] = looks[name]._replace(colour="#D55E00")
    return looks


def memory_capacity(
    pairs: Sequence[int] = PAIRS,
    dims: Sequence[int] = DIMS,
    generator: torch.Generator | None = None,
    n_repeats: int = 4,
) -> Explorer:
    """Drag the number of pairs and the dimension; see the recall of W = sum_i u_i v_i'.

    With a kernel, any two numbers can be typed.

    Args:
        pairs, dims: the sliders' values, ascending.
        generator: source of the random vectors, drawn here and now; the same state gives the same pictures.
        n_repeats: independent draws behind each number.

    Raises:
        InputError: fewer than two values of either, not ascending, or a number below 1.
    """
    for name, values in (("pairs", pairs), ("dims", dims)):
        for value in values:
            whole_number(name, value, minimum=1)
        if len(values) < 2 or list(values) != sorted(set(values)):
            raise InputError(f"{name} must be two or more numbers that ascend; got {list(values)}")
    recall = capacity_table(pairs, dims, generator, n_repeats)

    def measure(n: int, d: int) -> str:
        return f"<p>{n} pairs in dimension {d}: recall {capacity(n, d, n_repeats=n_repeats):.3f}</p>"

    n_box, d_box = (
        BoundedIntText(value, min=1, max=largest, description=name, continuous_update=False)
        for name, value, largest in (("any n", pairs[0], LARGEST), ("any d", dims[0], 1024))
    )
    return Explorer(
        "Memory capacity",
        "Drag the number of pairs n and the dimension d, and find where the memory begins to fail.",
        [
            slider("pairs n", _numbered(pairs), "pairs stored as outer products", index=len(pairs) // 2),
            slider("dimension d", _numbered(dims), "dimension of the vectors", index=len(dims) // 2),
        ],
        lambda pair, dim: capacity_picture(recall, pairs, dims, pair, dim),
        legend=legend(dim_marks(dims), {str(dim): f"d = {dim}" for dim in dims}),
        live=[live_box([n_box, d_box], measure)],
    )


def _numbered(values: Sequence[int]) -> list[tuple[str, int]]:
    return [(str(value), place) for place, value in enumerate(values)]
