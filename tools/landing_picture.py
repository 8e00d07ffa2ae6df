"""The picture of the first page: one order of learning, in the runs of both papers.

    python tools/landing_picture.py run     train both models (about 10 s), keep the numbers, draw
    python tools/landing_picture.py draw    draw again from the kept numbers

The numbers are in book/_static/one-order.json with the command, the versions and the seed that made them; the pictures,
one for light and one for dark pages, are beside it.
"""

import argparse
import io
import json
import sys
from importlib.metadata import version
from itertools import product
from pathlib import Path
from typing import Any

import matplotlib as mpl
import matplotlib.pyplot as plt
import torch
from matplotlib.axes import Axes

from assoc import figures
from assoc.corpus import load_corpus, load_texts
from assoc.files import write_atomically, write_json
from assoc.induction import AssociativeTransformer, BigramTask, train_induction
from assoc.induction.alignment import watch_memories
from assoc.leading_terms import AttentionOnlyTransformer, basis_functions, step_coefficients, train
from notebooks import BOOK

RECORD = BOOK / "_static" / "one-order.json"
SEED = 0
KINDS = {"output": "output: what to say", "value": "values", "attention": "attention: where to look"}
MEMORIES = {
    "output2": "$W_{O2}$: what to output",
    "key2": "$W_{K2}$: what to look for",
    "key1": "$W_{K1}$: the token before",
}
THEMES = {"light": ("#1f2328", "#c9ced6"), "dark": ("#e3e6ea", "#50565f")}
"""Ink and grid of the pictures; their ground is transparent."""


def run_paper_a(learning_rate: float = 0.5, steps: int = 16) -> dict[str, Any]:
    """Chapter 0's run of paper A: each kind's coefficient along its leading term, and the paper's, by step."""
    corpus = load_corpus("stories", vocab_size=200, length=16, unknown="map", max_sequences=256)
    basis = basis_functions(corpus.inputs, corpus.targets, corpus.vocab_size)
    model = AttentionOnlyTransformer(corpus.vocab_size, 16, n_layers=2)
    history = train(model, corpus.inputs, corpus.targets, learning_rate, steps, basis=basis)
    predicted = [step_coefficients(step, learning_rate) for step in history.steps]
    return {
        "training_time": history.training_time,
        "coefficient": {kind: history.coefficients(kind, layer=0 if kind == "output" else 1) for kind in KINDS},
        "predicted": {kind: [getattr(coefficients, kind) for coefficients in predicted] for kind in KINDS},
    }


def run_paper_b(steps: int = 100) -> dict[str, Any]:
    """A run like chapter 3B's: cosine of what training has added to each memory with the ideal one, by step."""
    generator = torch.Generator().manual_seed(SEED)
    task = BigramTask.from_text(load_texts("stories").texts, length=64, n_triggers=5)
    model = AssociativeTransformer(task.vocab_size, 64, dim=128, generator=generator)
    with watch_memories(model, task, every=2) as watch:
        train_induction(model, task, steps=steps, batch_size=64, learning_rate=0.2, generator=generator)
    return {"steps": watch.steps, "cosine": watch.cosine}


def run() -> None:
    """Train both models and keep what they did."""
    torch.set_num_threads(2)
    record = {
        "command": "python tools/landing_picture.py run",
        "seed": SEED,
        "versions": {name: version(name) for name in ("assoc", "torch")},
        "paper_a": run_paper_a(),
        "paper_b": run_paper_b(),
    }
    rounded = json.loads(json.dumps(record), parse_float=lambda number: float(f"{float(number):.5g}"))
    write_json(RECORD, rounded)


def _colour(name: str, theme: str) -> tuple[float, float, float]:
    """The book's colour of a weight, on dark pages a third of the way to white."""
    red, green, blue = mpl.colors.to_rgb(figures.PALETTE[name])
    share = 1 / 3 if theme == "dark" else 0.0
    return red + share * (1 - red), green + share * (1 - green), blue + share * (1 - blue)


def _draw_paper_a(axes: Axes, record: dict[str, Any], theme: str) -> None:
    """Coefficients as shares of the one predicted for the end: marks measured, lines the paper's closed form."""
    for kind, label in KINDS.items():
        predicted, measured = record["predicted"][kind], record["coefficient"][kind]
        times, colour = record["training_time"], _colour(kind, theme)
        axes.plot(times, [c / predicted[-1] for c in predicted], color=colour, label=label)
        axes.plot(times, [c / predicted[-1] for c in measured], "o", color=colour, markersize=4)
    axes.set(
        title="Paper A: weights on natural text",
        xlabel=r"training time $s\eta$",
        ylabel="coefficient, of the last one predicted",
    )


def _draw_paper_b(axes: Axes, record: dict[str, Any], theme: str) -> None:
    """How much of each memory's direction is there."""
    for memory, label in MEMORIES.items():
        axes.plot(record["steps"], record["cosine"][memory], color=_colour(memory, theme), label=label)
    axes.set(title="Paper B: birth of an induction head", xlabel="steps", ylabel="cosine with the ideal memory")


def draw(record: dict[str, Any], paper: str, theme: str) -> str:
    """The picture of paper "a" or "b" as SVG for a "light" or "dark" page, the same text for the same record."""
    ink, grid = THEMES[theme]
    look = dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), ink)
    look |= {"grid.color": grid, "svg.hashsalt": "one-order", "savefig.transparent": True}
    with mpl.rc_context():
        figures.use_style()
        mpl.rcParams.update(look)
        figure, axes = plt.subplots(figsize=(5, 3.9))
        {"a": _draw_paper_a, "b": _draw_paper_b}[paper](axes, record[f"paper_{paper}"], theme)
        axes.legend(labelcolor=ink)
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
        plt.close(figure)
    return "\n".join(line.rstrip() for line in buffer.getvalue().splitlines()) + "\n"


def picture(paper: str, theme: str) -> Path:
    """Where a picture is kept."""
    return RECORD.with_name(f"one-order-{paper}-{theme}.svg")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("command", choices=("run", "draw"))
    if parser.parse_args(arguments).command == "run":
        run()
    record = json.loads(RECORD.read_text())
    for paper, theme in product("ab", THEMES):
        print(write_atomically(picture(paper, theme), draw(record, paper, theme)).relative_to(BOOK.parent))
    return 0


if __name__ == "__main__":
    sys.exit(main())
