"""The sweeps of paper A's chapters (`python -m assoc reproduce`)."""

from assoc.leading_terms.limits import bounds_point, reach_point, start_point
from assoc.sweeps import Sweep

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
            {**_REACH, "vocab_size": 500, "length": 64, "n_sequences": 256, "learning_rate": 2.0, "steps": 26},
            {**_REACH, "vocab_size": 800, "length": 64, "learning_rate": 2.0, "steps": 34},
        ],
        seconds=20,
    ),
    Sweep(
        name="5a-bounds",
        shows="errors against the theorems' bounds and the leading terms, over training times from 0.001 to 32",
        function=bounds_point,
        points=[
            {**_PROVED, "n_layers": n_layers, "learning_rate": 2.0**power, "records": [3, 4, 8]}
            for n_layers in (1, 3)
            for power in (-12, -9, -6, -4, -2, 0, 1, 2)
        ],
        seconds=8,
    ),
    Sweep(
        name="5a-start",
        shows="leading terms after a small Gaussian start, as far as its theorem speaks of it",
        function=start_point,
        points=[
            {**_PROVED, "n_layers": 3, "learning_rate": 1 / 144, "steps": 4, "scale": scale}
            for scale in (1.0, 1e-3, 1e-6, 1e-9)
        ],
        seconds=6,
    ),
]

SWEEPS: list[Sweep] = [*LIMITS]
