"""How often a law is tried: `make drill` has the numbers of examples that tests name, `make test` a part of them."""

from __future__ import annotations

import os

DRILL = "DRILL" in os.environ
USUAL = 100 if DRILL else 40
"""Examples of a law that names no number."""


def examples(some: int, many: int) -> int:
    """`many` in a drill, else `some`: for laws of which an example takes long."""
    return many if DRILL else some
