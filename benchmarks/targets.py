"""The ratios that tiledev aims at, as data: its time (or memory) divided by a rival's."""

from __future__ import annotations

TIME: dict[str, dict[str, float]] = {
    "W1": {"cpu": 0.66, "tcmalloc": 0.92, "inductor": 0.85},
    "W1b": {"cpu": 0.85, "inductor": 1.0},
    "W2": {"cpu": 0.85, "tcmalloc": 0.90, "inductor": 0.90},
    "W3": {"cpu": 0.85, "inductor": 1.0},
    "W4a": {"cpu": 0.27, "tcmalloc": 0.75, "inductor": 0.95},
    "W4b": {"cpu": 0.30, "tcmalloc": 1.05, "inductor": 0.3},
    "W4c": {"cpu": 0.30, "tcmalloc": 1.05, "inductor": 0.3},
    "W4d": {"cpu": 0.13, "tcmalloc": 0.5, "inductor": 0.3},
    "W5": {"cpu": 1.4},
    "W5r": {"cpu": 1.0},
    "W7": {"cpu": 0.95, "tcmalloc": 1.0},
    "W8": {"cpu": 0.9, "inductor": 1.0},
}

MEMORY: dict[str, float] = {"W1": 0.45, "W2": 0.6}
"""Growth of resident memory at its peak, tiledev / cpu."""
