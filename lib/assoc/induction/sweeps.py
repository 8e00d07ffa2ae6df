"""The sweeps of paper B's chapters (`python -m assoc reproduce`)."""

from assoc.sweeps import Sweep

SWEEPS: list[Sweep] = []
