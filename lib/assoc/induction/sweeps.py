"""The sweeps of paper B's chapters (`python -m assoc reproduce`)."""

from assoc.induction.three_step_runs import SWEEPS as THREE_STEPS
from assoc.sweeps import Sweep

SWEEPS: list[Sweep] = []

SWEEPS += THREE_STEPS
