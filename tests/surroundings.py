"""What a process has around it: its folder, its environment, and where it finds modules."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from importlib import import_module
from typing import Any


def told() -> dict[str, Any]:
    """This process's."""
    return {"folder": os.getcwd(), "environment": dict(os.environ)}


def within(given: Mapping[str, Any], worker: str, *arguments: Any) -> int:
    """Call a worker in these surroundings: the server that this process was forked from has others."""
    os.chdir(given["folder"])
    os.environ.clear()
    os.environ.update(given["environment"])
    for path in reversed(os.environ.get("PYTHONPATH", "").split(os.pathsep)):
        if path and path not in sys.path:
            sys.path.insert(0, path)
    module, _, name = worker.partition(":")
    return getattr(import_module(module), name)(*arguments)
