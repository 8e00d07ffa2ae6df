"""The sweeps of paper A's chapters (`python -m assoc reproduce`)."""

from assoc.leading_terms.conditions import agreement_under, removal_after_training, yardstick_agreement
from assoc.leading_terms.limits import bounds_point, reach_point, start_point
from assoc.leading_terms.paper_scale import PAPER_SCALE
from assoc.sweeps import Sweep

SEEDS = (0, 1, 2)

REMOVAL = [
    Sweep(
        name="4a-ablation",
        shows="loss after a leading term, or a part of it, was taken out of one trained weight",
        function=removal_after_training,
        points=[{"seed": seed, "tokenizer": tokenizer} for seed in (0, 1) for tokenizer in ("words", "bpe")],
        seconds=70,
    ),
    Sweep(
        name="4a-conditions",
        shows="agreement with the leading terms at other depths, starts, step sizes and batches",
        function=agreement_under,
        points=[
            {"seed": seed, **condition}
            for condition in (
                *({"n_layers": depth} for depth in (1, 2, 3, 6)),
                *({"learning_rate": 8 / steps, "steps": 2 * steps, "record_every": steps} for steps in (16, 8, 2)),
                {"positions": False},
                *({"start": 10.0**power} for power in (-4, -3, -2, -1, 0)),
                {"batch_size": 16},
                {"batch_size": 16, "learning_rate": 0.25, "steps": 64, "record_every": 32},
                {"tokenizer": "bpe"},
            )
            for seed in SEEDS
        ],
        seconds=3,
    ),
    Sweep(
        name="3a-step-sizes",
        shows="Figure 4 to its end, on the clock theta, at a small size: what the size of a step changes",
        function=agreement_under,
        points=[
            {
                "seed": 0,
                "learning_rate": 2.0**-power,
                "steps": 72 * 2**power,  # theta = 5.8; the paper's s eta = 160 is 5.4 with its larger vocabulary
                "record_every": 4 * 2**power,
                "batch_size": batch_size,
            }
            for power, batch_size in ((0, None), (1, None), (2, None), (3, None), (4, None), (4, 32))
        ],
        seconds=60,
    ),
    Sweep(
        name="4a-tokenizers",
        shows="agreement with the leading terms at s eta = 1.6, over words and over byte pairs",
        function=agreement_under,
        points=[
            {
                "seed": seed,
                "tokenizer": tokenizer,
                "vocab_size": 500,
                "learning_rate": 0.2,
                "steps": 8,
                "record_every": 8,
            }
            for tokenizer in ("words", "bpe")
            for seed in SEEDS
        ],
        seconds=6,
    ),
    Sweep(
        name="4a-yardstick",
        shows="leading terms of two disjoint samples of stories compared, over words and over byte pairs",
        function=yardstick_agreement,
        points=[{"seed": seed, "tokenizer": tokenizer} for tokenizer in ("words", "bpe") for seed in (0, 1)],
        seconds=15,
    ),
]

_REACH = {
    "vocab_size": 200,
    "length": 32,
    "n_sequences": 128,
    "n_layers": 3,
    "learning_rate": 0.75,
    "steps": 25,
    "seed": 0,
}
_PROVED = {"vocab_size": 500, "length": 144, "n_sequences": 16, "seed": 0}  # the smallest for three layers in D.10

LIMITS = [
    Sweep(
        name="5a-reach",
        shows="when agreement with the leading terms ends, over vocabulary, length, sequences and layers",
        function=reach_point,
        points=[
            _REACH,
            {**_REACH, "seed": 1},
            {**_REACH, "vocab_size": 100, "learning_rate": 0.5, "steps": 22},
            {**_REACH, "vocab_size": 400, "n_sequences": 64, "learning_rate": 1.5},
            {**_REACH, "length": 16, "n_sequences": 256},
            {**_REACH, "length": 64, "n_sequences": 64},
            {**_REACH, "length": 128, "n_sequences": 32},
            {**_REACH, "n_sequences": 32},
            {**_REACH, "n_sequences": 256},
            {**_REACH, "n_layers": 1, "learning_rate": 1.5, "steps": 30},
            {**_REACH, "n_layers": 2, "learning_rate": 1.0},
            {**_REACH, "n_layers": 5, "learning_rate": 0.5, "steps": 28},
            {**_REACH, "vocab_size": 100, "n_layers": 1, "learning_rate": 1.0, "steps": 24},
            {**_REACH, "vocab_size": 500, "length": 64, "learning_rate": 2.0},
        ],
        seconds=6,
    ),
    Sweep(
        name="5a-bounds",
        shows="errors against the theorems' bounds and the leading terms, over training times from 0.001 to 32",
        function=bounds_point,
        points=[
            {**_PROVED, "n_layers": n_layers, "learning_rate": 2.0**power, "record_at": [3, 4, 8]}
            for n_layers in (1, 3)
            for power in (-12, -9, -6, -4, -2, 0, 1, 2)
        ],
        seconds=4,
    ),
    Sweep(
        name="5a-start",
        shows="leading terms after a small Gaussian start, as far as its theorem speaks of it",
        function=start_point,
        points=[
            {**_PROVED, "n_layers": 3, "learning_rate": 1 / 144, "steps": 4, "scale": scale}
            for scale in (1.0, 1e-3, 1e-6, 1e-9)
        ],
        seconds=4,
    ),
]

SWEEPS: list[Sweep] = [*REMOVAL, *LIMITS, *PAPER_SCALE]
