"""The sweeps of the chapters on language models (`python -m assoc reproduce`)."""

from assoc.llm.birth import study_birth
from assoc.llm.removal import smollm2_readings, smollm2_removal
from assoc.sweeps import Sweep

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
]

SWEEPS: list[Sweep] = [*INDUCTION_SWEEPS]
