"""The sweeps of paper B's chapters (`python -m assoc reproduce`)."""

from itertools import product

from assoc.induction.ablation import (
    COMPETITION,
    FROZEN,
    feed_forward_run,
    frozen_run,
    model_run,
    output_run,
    trigger_run,
)
from assoc.induction.three_step_runs import SWEEPS as THREE_STEPS
from assoc.sweeps import Sweep

SEEDS = range(5)
SIZE = {"length": 64, "dim": 96, "batch_size": 64}
"""Of every run of chapter 4B but those at the paper's size."""
PAPER_SIZE = {"length": 256, "dim": 128, "batch_size": 512}
"""The paper's own (Section 5): a step takes about a second."""

FROZEN_UNTIL = 150

TRIGGERS: list[dict[str, object]] = [
    *({"n_triggers": K, "triggers": "fixed", "trigger_offset": 0} for K in (1, 3, 5, 10)),
    {"n_triggers": 5, "triggers": "fixed", "trigger_offset": 10},
    *({"n_triggers": K, "triggers": "random", "trigger_offset": 0} for K in (5, 1)),
]
"""The most frequent K characters; the 11th to 15th; K drawn anew for every sequence."""

OTHER_MODELS: list[dict[str, object]] = [
    {"architecture": "one layer", "steps": 400, "learning_rate": 0.2},
    {"architecture": "learned embeddings", "steps": 200, "learning_rate": 0.05},
    {"architecture": "full", "steps": 120, "learning_rate": 0.2},
]
"""With every weight trained, a learning rate of 0.2 makes the simplified model diverge."""


def _trigger_points() -> list[dict[str, object]]:
    """Every kind of triggers with both losses; those that come late in a loss on all tokens get more steps."""
    points = []
    for loss_on, kind, seed in product(("repeated", "all"), TRIGGERS, SEEDS):
        is_late = kind["trigger_offset"] or kind == TRIGGERS[-1]
        steps = 200 if loss_on == "repeated" else 600 if is_late else 400
        points.append({**kind, "loss_on": loss_on, "seed": seed, "steps": steps, **SIZE})
    # As many repeated outputs an update as the other of the two kinds has with batches of 64.
    equal = [(TRIGGERS[2], 16), (TRIGGERS[4], 192)]
    return points + [
        {**kind, "loss_on": "repeated", "seed": seed, "steps": 200, **SIZE, "batch_size": batch_size}
        for (kind, batch_size), seed in product(equal, SEEDS)
    ]


SWEEPS: list[Sweep] = [
    Sweep(
        name="4b-frozen",
        shows="a memory is frozen and then released: which others wait for it (Figure 3)",
        function=frozen_run,
        points=[
            {"frozen": frozen, "until": FROZEN_UNTIL, "seed": seed, "steps": 320, **SIZE}
            for frozen, seed in product(FROZEN, SEEDS)
        ],
        seconds=10,
    ),
    Sweep(
        name="4b-triggers",
        shows="how fast in-context accuracy comes for more or fewer, rarer, and random triggers (Figure 4, left)",
        function=trigger_run,
        points=_trigger_points(),
        seconds=9,
    ),
    Sweep(
        name="4b-outputs",
        shows="trained with uniform or bigram outputs, tested with both (Figure 4, centre)",
        function=output_run,
        points=[
            {"outputs": outputs, "seed": seed, "steps": 300, **SIZE}
            for outputs, seed in product(("uniform", "bigram"), SEEDS)
        ],
        seconds=9,
    ),
    Sweep(
        name="4b-feed-forward",
        shows="W_O2 and W_F with the loss on all tokens, together and alone (Figure 4, right)",
        function=feed_forward_run,
        points=[
            {"condition": condition, "seed": seed, "steps": 400, **SIZE}
            for condition, seed in product(COMPETITION, SEEDS)
        ],
        seconds=12,
    ),
    Sweep(
        name="4b-models",
        shows="one layer, every weight trained, and an ordinary transformer on the same task",
        function=model_run,
        points=[{**options, "seed": seed, **SIZE} for options, seed in product(OTHER_MODELS, SEEDS)],
        seconds=10,
    ),
]

PAPER_SCALE: list[Sweep] = [
    Sweep(
        name="3b-paper-scale",
        shows="Figure 3 at the paper's size: nothing frozen, W_O2 until step 300, both keys until step 300",
        function=frozen_run,
        points=[
            {"frozen": frozen, "until": 300, "seed": 0, "steps": steps, "every": 10, "keep_every": 1, **PAPER_SIZE}
            for frozen, steps in (("nothing", 400), ("W_O2", 600), ("W_K1 and W_K2", 500))
        ],
        seconds=480,
    ),
    Sweep(
        name="4b-paper-triggers",
        shows="Figure 4, left, at the paper's size: fixed and random triggers, the loss on all tokens",
        function=trigger_run,
        points=[
            {**kind, "loss_on": "all", "seed": 0, "steps": steps, "every": 10, "keep_every": 1, **PAPER_SIZE}
            for kind, steps in ((TRIGGERS[2], 300), (TRIGGERS[5], 400))
        ],
        seconds=480,
    ),
]

SWEEPS += [*PAPER_SCALE, *THREE_STEPS]
