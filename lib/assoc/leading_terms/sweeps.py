"""The sweeps of paper A's chapters (`python -m assoc reproduce`)."""

from assoc.sweeps import Sweep

SWEEPS: list[Sweep] = []
