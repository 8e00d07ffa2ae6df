"""The sweeps of the chapters on language models (`python -m assoc reproduce`)."""

from assoc.llm.birth import study_birth, study_nano
from assoc.llm.nano import model_point, nano_point, position_point
from assoc.llm.removal import smollm2_readings, smollm2_removal
from assoc.sweeps import Sweep

COVARIANCE_SWEEPS = [
    Sweep(
        "6a-nano",
        "covariances of a small GPT-NeoX against the leading terms, layer by checkpoint, with controls",
        nano_point,
        [{"seed": seed} for seed in range(3)],
        seconds=150,
    ),
    Sweep(
        "6a-smollm2",
        "covariances of SmolLM2 (it must be fetched first) against the leading terms of the stories",
        model_point,
        [{"model": "smollm2", "n_tokens": 2000, "length": 64}],
        seconds=200,
    ),
    Sweep(
        "6a-smollm2-position",
        "residuals of SmolLM2 (it must be fetched first) at the first position and at the second",
        position_point,
        [{"model": "smollm2", "n_tokens": 300, "seed": 0}],
        seconds=35,
    ),
]

INDUCTION_SWEEPS = [
    Sweep(
        "6b-smollm2",
        "induction heads of SmolLM2 (it must be fetched first), and its losses without them",
        smollm2_removal,
        [{"seed": seed} for seed in range(4)],
        seconds=45,
    ),
    Sweep(
        "6b-smollm2-readings",
        "paper B's three memories in SmolLM2 (it must be fetched first), head by head",
        smollm2_readings,
        [{"seed": 100}],
        seconds=170,
    ),
    Sweep(
        "6b-checkpoints",
        "how induction heads form in small full transformers on the bigram task",
        study_birth,
        [{"positions": positions, "seed": seed} for positions in ("learned", "rotary") for seed in range(5)],
        seconds=17,
    ),
    Sweep(
        "6b-nano",
        "heads of a small GPT-NeoX in its first 512 steps on the stories",
        study_nano,
        [{"seed": seed} for seed in range(2)],
        seconds=60,
    ),
]

SWEEPS: list[Sweep] = [*COVARIANCE_SWEEPS, *INDUCTION_SWEEPS]
