"""Data sets of the Hugging Face hub, or local folders of data files, as streams."""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from drivetrain.data.fingerprint import combined
from drivetrain.data.hub import open_hub, told
from drivetrain.data.recipe import Hub
from drivetrain.data.source import Source
from drivetrain.data.stream import Opener, StreamSource
from drivetrain.spec.exits import Exit, Failure
from drivetrain.spec.registry import nearest


class HubRows:
    """The rows of one split, in a pass of its own: what `datasets` tells of where it stands is this pass's."""

    thread_safe = True
    """`datasets` draws from generators of its own."""

    def __init__(self, rows: Any, fingerprint: str, place: str) -> None:
        """`rows` is an IterableDataset of `datasets`, at its beginning; `place` is for messages."""
        self.fingerprint = fingerprint
        self.num_shards = rows.num_shards
        self._place = place
        self._rows = copy.deepcopy(rows)  # or passes would share where they stand

    def __iter__(self) -> Iterator[dict[str, Any]]:
        with told(self._place):
            yield from self._rows

    def shard(self, num_shards: int, index: int) -> HubRows:
        """Some of its shards, which are mostly files."""
        return HubRows(self._rows.shard(num_shards, index), self.fingerprint, self._place)

    def state_dict(self) -> dict[str, Any]:
        """Where it stands, as `datasets` tells it."""
        return self._rows.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on there."""
        self._rows.load_state_dict(state)


def open_hub_stream(settings: Hub, cache: Path, seed: int) -> Source:
    """The rows of a split as they come.

    Raises Failure: 66 where it is not there, or `datasets` is not installed, 69 where the hub does not answer, 65 where
    it has no such configuration, split or column.
    """
    hub = open_hub(settings.path, settings.subset, settings.split)
    rows, place = hub.rows, f"hub:{settings.path}"
    if settings.columns is not None:
        there = rows.column_names or list(settings.columns)  # unknown where no features are told: reading tells
        if strange := [name for name in settings.columns if name not in there]:
            cause = f"{place} has no column {strange[0]!r}{nearest(strange[0], there)}"
            raise Failure(Exit.BAD_DATA, cause, f"there are {', '.join(there)}")
        rows = rows.select_columns(list(settings.columns))
    if settings.shuffle is not None:
        rows = rows.shuffle(seed=seed, buffer_size=settings.shuffle)
    what = {key: value for key, value in asdict(settings).items() if key not in ("path", "name", "weight")}
    content = f"{settings.path} {hub.revision}" if hub.revision else _local(Path(settings.path))
    fingerprint = combined([content, json.dumps(what, sort_keys=True)])
    return StreamSource(Opener(lambda: HubRows(rows, fingerprint, place)), place, seed, "")


def _local(folder: Path) -> str:
    """Names and sizes of the files of a folder: content would take a pass over all of it."""
    found = []
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            found.append([str(path.relative_to(folder)), path.stat().st_size])
    return hashlib.sha256(json.dumps(found).encode(errors="surrogateescape")).hexdigest()
