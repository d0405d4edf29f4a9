"""A run's recipe as the board shows it: every key with its value, without secrets."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from drivetrain.spec.tree import Path_, dotted, pairs
from drivetrain.watch.tracker_mark import without_secrets


class RecipeFile:
    """The `resolved.json` of a run directory, read again where it was changed."""

    def __init__(self, run: Path) -> None:
        self._path = run / "resolved.json"
        self._stamp: tuple[int, int] | None = None
        self._resolved: dict[str, Any] = {}
        self._values: dict[str, Any] = {}

    @property
    def values(self) -> Mapping[str, Any]:
        """Numbers, texts, truths and nulls by dotted key; empty where there is no recipe yet."""
        self._read()
        return self._values

    @property
    def tree(self) -> Mapping[str, Any]:
        """The recipe as it is nested; empty where there is none yet."""
        self._read()
        return self._resolved.get("recipe", {})

    @property
    def origins(self) -> Mapping[str, str]:
        """Where values come from, by dotted key."""
        self._read()
        return self._resolved.get("origins", {})

    def _read(self) -> None:
        try:
            state = os.stat(self._path)
            stamp = (state.st_ino, state.st_mtime_ns)
            if stamp != self._stamp:
                self._resolved = without_secrets(json.loads(self._path.read_bytes()))
                self._values = dict(_leaves(self._resolved.get("recipe", {}), ()))
                self._stamp = stamp
        except (OSError, ValueError, AttributeError):
            # It starts, or its directory is being removed: what was known is kept.
            pass


def read_json(path: Path) -> dict[str, Any]:
    """A file of a run directory as plain data without secrets; empty where it is not there, or no JSON object."""
    try:
        told = without_secrets(json.loads(path.read_bytes()))
    except (OSError, ValueError):
        return {}
    return told if isinstance(told, dict) else {}


def _leaves(tree: Any, path: Path_) -> Iterator[tuple[str, Any]]:
    if isinstance(tree, (Mapping, list)) and tree:
        for key, part in pairs(tree):
            yield from _leaves(part, (*path, key))
    elif path:
        yield dotted(path), tree if not isinstance(tree, (Mapping, list)) else None
