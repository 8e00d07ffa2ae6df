"""Paper B, Theorem 3: the three matrices and both attentions after each of three gradient steps, in any order."""

from itertools import permutations

import torch
from ipywidgets import BoundedFloatText
from torch import Tensor

from assoc.errors import InputError
from assoc.induction.three_steps import (
    KEPT,
    NAMED,
    ORDER,
    Examples,
    OneTrigger,
    Tables,
    accuracy,
    block_of,
    gradient_steps,
    rates_for,
    read,
    recall,
    zero_tables,
)
from assoc.seeds import seeded
from assoc.widgets.explorer import Explorer, choice, live_box, slider
from assoc.widgets.pictures import heat_map, panes, scale

NAMES = {"output2": "W_O2", "key2": "W_K2", "key1": "W_K1"}
AXES = {"output2": ("predicted", "token attended to"), "key2": ("query", "key: token before"), "key1": ("query", "key")}
KEPT_NAMES = {"named": "the named blocks", "own token": "and token to token in W_K2", "all": "everything"}


def run_of_steps(
    data: OneTrigger, order: tuple[str, ...], kept: str, margins: tuple[float, float, float]
) -> list[dict[str, Tensor]]:
    """The tables at the start and after each step of the population gradient."""
    steps = gradient_steps(data, rates_for(data, margins), data.every_pattern(), order=order, kept=KEPT[kept])
    return [zero_tables(data), *(step.tables for step in steps)]


def three_steps_picture(data: OneTrigger, tables: Tables, example: Examples, everything: Examples) -> str:
    """The named block of each table, the attention of one sequence, and what the model says of it and of all others.

    Args:
        example: one sequence. everything: what accuracy is measured on.
    """
    tokens = [chr(ord("a") + token) for token in range(data.vocab_size)]
    places = [str(place + 1) for place in range(data.length)]
    pictures = []
    for name in ORDER:
        block = block_of(tables[name], data, NAMED[name][0])
        largest, labels = float(block.abs().max()), places if name == "key1" else tokens
        found = recall(tables, data, name)
        said = f"largest entry {largest:.3g}, recall {found:.2f}" if largest else "still zero"
        picture = heat_map(
            block / (largest or 1.0),
            low=-1.0,
            high=1.0,
            row_labels=labels,
            column_labels=labels,
            row_name=AXES[name][0],
            column_name=AXES[name][1],
            description=f"{NAMES[name]}: {said}",
            cell=(11, 11),
        )
        pictures.append(f"<p>{NAMES[name]}: {said}</p>{picture}")
    with torch.no_grad():
        logits, first, second = read(tables, example.inputs)
    letters = [tokens[token] for token in example.inputs[0].tolist()]
    future = torch.ones_like(first[0], dtype=torch.bool).triu(1)
    attentions = torch.cat([first[0].masked_fill(future, torch.nan), second[:1]])
    wanted = tokens[int(example.targets[0])]
    chance = float(logits[0].double().softmax(0)[example.targets[0]])
    attention = heat_map(
        attentions,
        low=0.0,
        high=1.0,
        row_labels=[*letters, "layer 2"],
        column_labels=letters,
        row_name="layer 1 from",
        column_name="attends to",
        description=f"Attention of the sequence {''.join(letters)}; the last row is layer 2 from the last place",
        cell=(16, 13),
    )
    said = f"{''.join(letters)} → {wanted}: probability {chance:.2f}; all sequences: accuracy "
    said += f"{accuracy(tables, everything):.2f}"
    return panes(*pictures, f"<p>{said}</p>{attention}")


def three_steps_explorer(
    data: OneTrigger | None = None,
    margins: tuple[float, float, float] = (10.0, 10.0, 20.0),
    generator: torch.Generator | None = None,
) -> Explorer:
    """Choose the order of the steps and what they keep of their gradients, then go from step 0 to 3.

    All gradients are exact (`OneTrigger.every_pattern`). With a kernel, any margins can be typed.

    Args:
        data: at most 26 tokens and 12 positions. Default: 10 tokens, 8 positions.
        margins: of `rates_for`. generator: draws the sequence that is shown.

    Raises:
        InputError: more than 26 tokens, or patterns that cannot be listed.
    """
    data = OneTrigger(10, 8) if data is None else data
    if data.vocab_size > 26:
        raise InputError(f"{data.vocab_size} tokens have no letters of their own: give at most 26")
    everything, example = data.every_pattern(), data.sample(1, generator or seeded(3))
    orders = [(" → ".join(NAMES[name] for name in order), order) for order in permutations(ORDER)]
    runs = {(order, kept): run_of_steps(data, order, kept, margins) for _, order in orders for kept in KEPT_NAMES}

    def draw(order: tuple[str, ...], kept: str, step: int) -> str:
        return three_steps_picture(data, runs[order, kept][step], example, everything)

    controls = [
        choice("order", orders, "which matrix takes its step first, second, third"),
        choice("keep", [(label, name) for name, label in KEPT_NAMES.items()], "what a step keeps of its gradient"),
        slider("step", [(str(step), step) for step in range(4)], "how many steps were made", index=3),
    ]
    boxes = [
        BoundedFloatText(value, min=0.01, max=1000, description=f"margin {NAMES[name]}", continuous_update=False)
        for name, value in zip(ORDER, margins, strict=True)
    ]

    def draw_anew(order: tuple[str, ...], kept: str, step: int, *typed: float) -> str:
        tables = run_of_steps(data, order, kept, typed)[step]
        return three_steps_picture(data, tables, example, everything)

    return Explorer(
        "Three gradient steps",
        "Choose an order, then drag the step: which matrices move, and where does the last place look?",
        controls,
        draw,
        legend=scale("matrix entries over the largest", -1, 1) + scale("attention", 0, 1),
        live=[live_box([*controls, *boxes], draw_anew)],
    )
