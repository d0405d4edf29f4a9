"""Weights & Biases: rows go to its library's own journal in the run directory, from which that uploads them.

A row is certain only at the library's end: its process keeps blocks of the journal in memory. So an attempt that was
cut off is sent again, but for what the server, or offline the journal, has of it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

from drivetrain.ledger.records import Histogram
from drivetrain.watch.recipe import Wandb
from drivetrain.watch.tracker_mark import TrackerRow
from drivetrain.watch.trackers import PATIENCE, About, require

_BEGIN = 30.0  # seconds to reach the server in; the next try comes later
_BLOCK, _HEAD = 32768, 7  # bytes of a journal's blocks and of the headers in it
_WHOLE, _FIRST, _LAST = 1, 2, 4  # kinds of a record's parts


class WandbTracker:
    """The library's own step is the number of the row, so that it drops one that comes again; `step` is the axis."""

    name = "wandb"
    holds = True

    def __init__(self, settings: Wandb) -> None:
        """Raises Failure(78) where the package is missing."""
        require("wandb")
        self.target = f"{settings.entity}/{settings.project}/{settings.mode}"
        self._settings = settings
        self._run: Any = None

    def open(self, about: About) -> int:
        """Begin or resume the run of this id; the server tells what it has, or the journals of earlier attempts do."""
        wandb = import_module("wandb")
        # Of an attempt to open that has failed half-way: its process would go on beside the new one.
        if self._run is not None:
            with suppress(Exception):
                self._run.finish()
            self._run = None
        if self._settings.mode == "online" and not wandb.login(prompt=False):  # it would ask on the terminal
            raise RuntimeError("no key is set: wandb login, or WANDB_API_KEY")
        self._run = wandb.init(
            project=self._settings.project,
            entity=self._settings.entity,
            mode=self._settings.mode,
            id=about.id,
            name=about.name,
            resume="allow",
            dir=str(about.folder),
            config=dict(about.config),
            reinit="create_new",  # beside a run that the user's own code may have begun
            settings=_quiet(wandb),
        )
        self._run.define_metric("*", step_metric="step")
        if self._settings.mode == "online":
            return self._run.starting_step - 1
        last = 0
        for journal in about.folder.glob(f"wandb/offline-run-*-{about.id}/*.wandb"):
            for number in _numbers(journal):
                last = max(last, number)
        return last

    def send(self, rows: Sequence[TrackerRow]) -> None:
        """Hand the rows to the journal."""
        for row in rows:
            drawn = {name: _histogram(one) for name, one in row.histograms.items()}
            told = {**row.values, **drawn, "step": row.step, "_timestamp": row.time}
            self._run.log(told, step=row.number, commit=True)
            if row.notes:
                self._run.summary.update(dict(row.notes))

    def close(self) -> None:
        """Upload what is left; raises TimeoutError where that takes too long."""
        self._run.finish()


def _histogram(one: Histogram) -> Any:
    return import_module("wandb").Histogram(np_histogram=(one.counts, one.edges))


def _quiet(wandb: Any) -> Any:
    """Neither output nor anything about machine, environment or code, which may hold secrets; never a long wait."""
    return wandb.Settings(
        silent=True,
        console="off",
        disable_code=True,
        disable_git=True,
        disable_job_creation=True,
        x_disable_meta=True,
        x_disable_machine_info=True,
        x_disable_stats=True,
        x_save_requirements=False,
        init_timeout=_BEGIN,
        finish_timeout=PATIENCE - 1,
        finish_timeout_raises=True,
    )


def _numbers(journal: Path) -> Iterator[int]:
    """The numbers of the rows that a journal has."""
    proto = import_module("wandb.proto.wandb_internal_pb2")
    for content in _records(journal.read_bytes()):
        record = proto.Record.FromString(content)
        for item in record.history.item:
            if item.key == "_step" or list(item.nested_key) == ["_step"]:
                yield int(item.value_json)


def _records(data: bytes) -> Iterator[bytes]:
    """The whole records of a journal: LevelDB's log format behind a header of seven bytes."""
    at, content = _HEAD, b""
    while at + _HEAD <= len(data):
        if _BLOCK - at % _BLOCK < _HEAD:  # the rest of a block that no header fits in
            at += _BLOCK - at % _BLOCK
            continue
        _, length, kind = struct.unpack_from("<IHB", data, at)
        part = data[at + _HEAD : at + _HEAD + length]
        if len(part) < length or kind == 0:  # cut off
            return
        # A record that does not fit into the rest of a block goes on in the next ones.
        content = part if kind in (_WHOLE, _FIRST) else content + part
        if kind in (_WHOLE, _LAST):
            yield content
        at += _HEAD + length
