"""The sweeps of the chapters on language models (`python -m assoc reproduce`)."""

from assoc.sweeps import Sweep

SWEEPS: list[Sweep] = []
