"""What training costs the processes: memory, seconds by phase, the slowest rank; and garbage, at fixed steps."""

from __future__ import annotations

import gc
import resource
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress

import torch
from torch import Tensor

from drivetrain.engine.engine import Engine
from drivetrain.ledger.records import Spread, TelemetryRecord
from drivetrain.loop.ledger_writer import LedgerWriter
from drivetrain.loop.plan_beside import PlanBeside
from drivetrain.loop.progress import Progress, Timetable
from drivetrain.loop.recipe import Telemetry
from drivetrain.runtime.device import has_own_memory
from drivetrain.runtime.group import Group

OWN = ("data", "forward", "backward", "optimizer")
"""Phases in which a rank does its own work; in the others it may wait for the rest."""


class Meter:
    """Tells the ledger, at the recipe's steps, what was spent since it last did; collects garbage at others.

    `begin` and `end` are called around the loop, `after` at the end of each step, by all ranks alike.
    """

    def __init__(
        self,
        settings: Telemetry,
        timetable: Timetable,
        group: Group,
        engine: Engine,
        ledger: LedgerWriter,
        plan: PlanBeside | None = None,
    ) -> None:
        """`plan` is there on the rank that has it made."""
        self._plan = plan
        self._settings = settings
        self._timetable = timetable
        self._group = group
        self._heartbeat = engine.heartbeat
        self._counts = engine.counts
        self._ledger = ledger
        self._device = engine.device
        self._told = 0  # the step that the last record was of
        self._collects = False  # whether Python collected by itself before the loop

    def begin(self, step: int) -> None:
        """The loop is about to make its first step after `step`."""
        self._told = step
        self._heartbeat.spent()  # what start-up has spent is no step's
        if self._settings.gc is not None:
            self._collects = gc.isenabled()
            gc.disable()

    def after(self, now: Progress) -> None:
        """A step is made."""
        settings = self._settings
        if settings.gc is not None and self._timetable.due(settings.gc, now):
            gc.collect()
        if settings.every is not None and self._timetable.due(settings.every, now):
            self._tell(now.step)
        if self._plan is not None:
            self._plan.after(now.step)

    def back(self, step: int) -> None:
        """The steps after this one are undone: what is told next begins there."""
        self._told = min(self._told, step)

    def end(self, now: Progress) -> None:
        """The loop has ended as it should, at the same step on all ranks: tell what no record has yet."""
        if self._settings.every is not None and now.step > self._told:
            self._tell(now.step)

    def restore(self) -> None:
        """Leave Python's collector as it was before the loop, and no process behind."""
        if self._plan is not None:
            self._plan.close()
        if self._collects:
            gc.enable()

    def _tell(self, step: int) -> None:
        """One record. The ranks' numbers are compared here and nowhere else."""
        phases, steps = self._heartbeat.spent(), step - self._told
        self._told = step
        host, device = host_memory(), device_memory(self._device)
        own = {
            "own_seconds": sum(phases.get(phase, 0.0) for phase in OWN) / steps,
            "host_peak": host["peak"],
        }
        if device:
            own["device_peak"] = device["peak"]
        spreads = dict(zip(own, spread(self._group, list(own.values())), strict=True))
        self._ledger.record(
            TelemetryRecord(
                step=step,
                steps=steps,
                world=self._group.world,
                phases={phase: round(seconds, 6) for phase, seconds in phases.items()},
                host=host,
                device=device,
                ranks=spreads,
                counted=self._counts.take() or None,
            )
        )


def host_memory() -> dict[str, int]:
    """Bytes of this process that are in memory, now and at most so far, as the kernel counts them. Where it does not
    tell what there is now, that is the most so far."""
    unit = 1 if sys.platform == "darwin" else 1024
    resident = peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    with suppress(FileNotFoundError), open("/proc/self/statm", "rb") as statm:  # `status` takes twice as long
        resident = int(statm.read().split()[1]) * resource.getpagesize()
    return {"resident": resident, "peak": max(peak, resident)}


def device_memory(device: torch.device) -> dict[str, int]:
    """Bytes of the device that torch's allocator has given out and holds, and gave out at most so far.

    Empty for devices that compute in the host's memory. Nothing waits for the device.
    """
    if not has_own_memory(device):
        return {}
    return {
        "allocated": torch.accelerator.memory_allocated(device),
        "reserved": torch.accelerator.memory_reserved(device),
        "peak": torch.accelerator.max_memory_allocated(device),
    }


def held(engine: Engine, captured: Mapping[str, Tensor]) -> dict[str, int]:
    """Bytes of what was captured of an engine, by kind (`networks`, `optimizers` ...), and of its `gradients`."""
    sizes: dict[str, int] = {}
    for name, tensor in captured.items():
        kind = name.partition("/")[0]
        sizes[kind] = sizes.get(kind, 0) + tensor.nbytes
    gradients = 0
    for network_optimizer in engine.network_optimizers.values():
        gradients += sum(parameter.nbytes for parameter in network_optimizer.parameters)
    return {**sizes, "gradients": gradients}


def spread(group: Group, own: Sequence[float]) -> list[Spread]:
    """Of each of a rank's numbers, below 2^53, the smallest and the largest of all ranks', and whose the largest is:
    the first one's. Every rank calls it, and hears the same."""
    lowest = group.least([*own, *[0.0 - number for number in own]])
    least, most = lowest[: len(own)], [0.0 - number for number in lowest[len(own) :]]
    mine = []
    for number, largest in zip(own, most, strict=True):
        mine.append(group.rank if number == largest else group.world)
    found = []
    for number, low, high, rank in zip(own, least, most, group.least(mine), strict=True):
        kind = type(number)  # whole numbers stay whole in the ledger
        found.append(Spread(least=kind(low), most=kind(high), rank=int(rank)))
    return found
