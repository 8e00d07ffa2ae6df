"""Figures: colours that readers with a colour vision deficiency can tell apart, maps centred where they must be."""

import itertools

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch

from assoc import figures
from assoc.errors import InputError

mpl.use("agg")

# Machado, Oliveira and Fernandes (2009), full severity, acting on linear RGB.
VISION = {
    "normal": np.eye(3),
    "protanopia": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "deuteranopia": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
    "tritanopia": np.array(
        [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]]
    ),
}
XYZ_FROM_RGB = np.array(
    [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750], [0.0193339, 0.1191920, 0.9503041]]
)
WHITE = XYZ_FROM_RGB.sum(axis=1)
SMALLEST_DIFFERENCE = 15.0  # CIELAB; about 2 is just noticeable side by side, thin lines need much more


def cielab(colour: str, vision: np.ndarray) -> np.ndarray:
    rgb = np.array(mpl.colors.to_rgb(colour))
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    xyz = XYZ_FROM_RGB @ np.clip(vision @ linear, 0, 1) / WHITE
    f = np.where(xyz > (6 / 29) ** 3, np.cbrt(xyz), xyz / (3 * (6 / 29) ** 2) + 4 / 29)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def closest_pair(colours: list[str], vision: np.ndarray) -> float:
    points = [cielab(colour, vision) for colour in colours]
    return min(float(np.linalg.norm(a - b)) for a, b in itertools.combinations(points, 2))


@pytest.fixture(autouse=True)
def _own_settings():
    with mpl.rc_context():
        yield
    plt.close("all")


@pytest.mark.parametrize("name", VISION)
@pytest.mark.parametrize("colours", [list(figures.PALETTE.values()), list(figures.OKABE_ITO)], ids=["palette", "cycle"])
def test_colours_stay_apart(colours: list[str], name: str) -> None:
    assert closest_pair(colours, VISION[name]) >= SMALLEST_DIFFERENCE


def test_the_colour_check_can_fail() -> None:
    green_and_orange = ["#66A61E", "#E69F00"]
    assert closest_pair(green_and_orange, VISION["normal"]) >= SMALLEST_DIFFERENCE
    assert closest_pair(green_and_orange, VISION["protanopia"]) < SMALLEST_DIFFERENCE


@pytest.mark.parametrize(("theirs", "ours"), [("output2", "output"), ("key2", "value"), ("key1", "attention")])
def test_matrices_of_one_kind_look_related(theirs: str, ours: str) -> None:
    target = cielab(figures.PALETTE[theirs], VISION["normal"])
    paper_a = ("output", "value", "attention", "position")
    distance = {name: np.linalg.norm(cielab(figures.PALETTE[name], VISION["normal"]) - target) for name in paper_a}
    assert min(distance, key=distance.get) == ours


def test_style_cycles_through_the_palette_on_white() -> None:
    figures.use_style()
    figure, axes = plt.subplots()
    (line,) = axes.plot([0, 1], [0, 1])
    assert line.get_color() == figures.OKABE_ITO[0]
    assert mpl.colors.to_hex(figure.get_facecolor()) == "#ffffff"


def test_diverging_heat_map_is_centred_at_zero() -> None:
    _, axes = plt.subplots()
    image = figures.heatmap(axes, torch.tensor([[-1.0, 0.0], [3.0, 0.5]]), diverging=True)
    assert image.norm(0.0) == pytest.approx(0.5)
    assert image.get_clim() == (-3.0, 3.0)
    assert figures.heatmap(axes, torch.zeros(2, 2), diverging=True).get_clim() == (-1.0, 1.0)


def test_sequential_heat_map_spans_its_entries_and_is_labelled() -> None:
    _, axes = plt.subplots()
    matrix = np.arange(6.0).reshape(2, 3)
    image = figures.heatmap(
        axes, matrix, row_labels=["a", "b"], column_labels=["bird", "fish", "cat"], row_name="from", column_name="to",
        title="Counts", colourbar_label="pairs",
    )  # fmt: skip
    assert image.get_clim() == (0.0, 5.0)
    assert [tick.get_text() for tick in axes.get_yticklabels()] == ["a", "b"]
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["bird", "fish", "cat"]
    assert (axes.get_title(), axes.get_xlabel(), axes.get_ylabel()) == ("Counts", "to", "from")
    assert image.colorbar.ax.get_ylabel() == "pairs"


def test_heat_map_accepts_parameters_that_require_gradients() -> None:
    _, axes = plt.subplots()
    assert figures.heatmap(axes, torch.nn.Parameter(torch.eye(3))).get_array().shape == (3, 3)


@pytest.mark.parametrize(
    ("matrix", "labels", "words"),
    [
        (torch.zeros(3), None, "shape (3,)"),
        (torch.zeros(0, 3), None, "shape (0, 3)"),
        (torch.tensor([[float("nan")]]), None, "NaN"),
        (torch.zeros(2, 2), ["a"], "1 row labels for 2 rows"),
    ],
)
def test_bad_heat_map_input_says_what_to_do(matrix: torch.Tensor, labels: list[str] | None, words: str) -> None:
    _, axes = plt.subplots()
    with pytest.raises(InputError) as caught:
        figures.heatmap(axes, matrix, row_labels=labels)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_table_is_markdown_with_one_line_a_row() -> None:
    table = figures.table(["what", "here"], [["|W|", 0.5], ["two\nlines", "$x$"]])
    assert table.data.splitlines() == [
        "| what | here |",
        "| --- | --- |",
        r"| \|W\| | 0.5 |",
        "| two lines | $x$ |",
    ]
    with pytest.raises(InputError, match="a row of 1 cells in a table of 2 columns"):
        figures.table(["what", "here"], [["alone"]])
