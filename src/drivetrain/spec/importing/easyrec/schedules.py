"""Learning-rate schedules: theirs as kinds of ours."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from drivetrain.spec.importing.easyrec.reader import Reader
from drivetrain.spec.importing.easyrec.tree import Node
from drivetrain.spec.tree import Path_

GROUP = "learning_rate"
READ_AT: Mapping[str, str] = {"steps": "step_start", "epochs": "epoch_start"}
"""What `schedule.read_at` is for schedules by step and by epoch."""


@dataclass(frozen=True)
class Rate:
    """A schedule to import: where it goes, the peak rate that it begins at, and the micro-batches of a step."""

    path: Path_
    peak: float
    accumulation: int


def take_schedule(reader: Reader, optimizer: Node, rate: Rate) -> None:
    """The schedule of an optimizer, if it has one; constant rates are what recipes have without one."""
    name = optimizer.chosen(GROUP)
    node = optimizer.node(name) if name else None
    if name is None or node is None:
        return
    kind = _KINDS[name]
    if reader.facts.streamed and kind != "constant" and node.value("by_epoch"):
        what = "a topic has no epochs: a schedule by steps, or constant"
        reader.gap(node, "by_epoch", (*rate.path, "kind"), what, "constant")
        reader.lose_whole(node, "is by epochs, which a topic has none of")
        return
    reader.take(optimizer, name, (*rate.path, "kind"), kind)
    if kind != "constant":
        _TAKERS[name](reader, node, rate)
        _take_place(reader, node, rate)


def _take_exponential(reader: Reader, node: Node, rate: Rate) -> None:
    reader.take(node, "decay_factor", (*rate.path, "rate"), node.value("decay_factor"))
    _take_size(reader, node, "decay_size", (*rate.path, "every"), rate)
    reader.take(node, "staircase", (*rate.path, "staircase"), node.value("staircase"))
    _take_floor(reader, node, rate)
    _take_warmup(reader, node, rate)


def _take_manual(reader: Reader, node: Node, rate: Rate) -> None:
    sizes, rates = node.values("schedule_sizes"), node.values("learning_rates")
    if len(sizes) != len(rates) or not sizes:
        reader.mistake(node, "schedule_sizes", f"{len(sizes)} sizes and {len(rates)} learning_rates: each has one")
        return
    if rate.peak <= 0 or max(rates) > rate.peak:
        why = (
            f"rates above the first one ({rate.peak:g}) are no fractions of it: take the largest as the optimizer's lr"
        )
        reader.lose_whole(node, f"{why}, with a warm-up")
        return
    unit = _unit(node)
    for place, (size, value) in enumerate(zip(sizes, rates, strict=True)):
        milestone = (*rate.path, "milestones", place)
        # There a new rate begins one step, or epoch, after its size.
        reader.take(
            node, "schedule_sizes", (*milestone, "at", unit), _counted(size + 1, unit, rate), "one later, as there"
        )
        reader.take(node, "learning_rates", (*milestone, "factor"), value / rate.peak, f"{value:g} of {rate.peak:g}")
    if node.value("warmup"):
        reader.lose(node, "warmup", "a warm-up ends at the peak, not at the list's first rate: say schedule.warmup")
    reader.used(node, "warmup", "by_epoch")


def _take_cosine(reader: Reader, node: Node, rate: Rate) -> None:
    size, warmup = node.value("T_max"), node.value("warmup_size")
    if size is None:
        reader.mistake(node, "T_max", "is left out, and the decay needs its length")
        return
    unit = _unit(node)
    total = _counted(size + warmup, unit, rate)
    note = f"T_max and warmup_size {warmup}: a length is from the start on" if warmup else ""
    reader.take(node, "T_max", (*rate.path, "length", unit), total, note)
    _take_floor(reader, node, rate)
    _take_warmup(reader, node, rate)


def _take_restarts(reader: Reader, node: Node, rate: Rate) -> None:
    _take_size(reader, node, "T_0", (*rate.path, "period"), rate)
    reader.take(node, "T_mult", (*rate.path, "multiplier"), node.value("T_mult"))
    _take_floor(reader, node, rate)
    _take_warmup(reader, node, rate)


_KINDS: Mapping[str, str] = {
    "constant_learning_rate": "constant",
    "exponential_decay_learning_rate": "exponential",
    "manual_step_learning_rate": "steps",
    "cosine_annealing_learning_rate": "cosine",
    "cosine_annealing_warm_restarts_learning_rate": "cosine_restarts",
}
_TAKERS: Mapping[str, Callable[[Reader, Node, Rate], None]] = {
    "exponential_decay_learning_rate": _take_exponential,
    "manual_step_learning_rate": _take_manual,
    "cosine_annealing_learning_rate": _take_cosine,
    "cosine_annealing_warm_restarts_learning_rate": _take_restarts,
}


def _unit(node: Node) -> str:
    return "epochs" if node.value("by_epoch") else "steps"


def _counted(size: int, unit: str, rate: Rate) -> int:
    """There a micro-batch is a step of the schedule, too."""
    return -(-size // rate.accumulation) if unit == "steps" else size


def _take_size(reader: Reader, node: Node, name: str, path: Path_, rate: Rate) -> None:
    if not node.value(name):
        reader.mistake(node, name, "is left out, and the schedule needs it")
        return
    unit = _unit(node)
    note = f"{rate.accumulation} micro-batches are a step" if rate.accumulation > 1 and unit == "steps" else ""
    reader.take(node, name, (*path, unit), _counted(node.value(name), unit, rate), note)


def _take_floor(reader: Reader, node: Node, rate: Rate) -> None:
    least = node.value("min_learning_rate")
    floor = min(1.0, least / rate.peak) if rate.peak else 0.0
    reader.take(node, "min_learning_rate", (*rate.path, "floor"), floor, f"{least:g} of {rate.peak:g}")


def _warmup_from(node: Node, rate: Rate) -> float:
    """Where a warm-up begins, as a fraction of the peak."""
    start = node.value("warmup_learning_rate") if node.type != "ManualStepLR" else 0.0
    return min(1.0, start / rate.peak) if rate.peak else 0.0


def _take_warmup(reader: Reader, node: Node, rate: Rate) -> None:
    if not node.value("warmup_size"):
        reader.used(node, "warmup_size", "warmup_learning_rate")
        return
    _take_size(reader, node, "warmup_size", (*rate.path, "warmup"), rate)
    begin = _warmup_from(node, rate)
    if begin:
        note = f"{node.value('warmup_learning_rate'):g} of {rate.peak:g}"
        reader.take(node, "warmup_learning_rate", (*rate.path, "warmup_from"), begin, note)
    if node.value("warmup_learning_rate") > rate.peak:
        reader.lose(node, "warmup_learning_rate", "a warm-up begins at the peak at most")
    reader.used(node, "warmup_learning_rate")


def _take_place(reader: Reader, node: Node, rate: Rate) -> None:
    """Which place of the schedule a step has. Their first step of a warm-up from zero moves nothing, and has none."""
    by_epoch = node.value("by_epoch")
    warms = node.type != "ManualStepLR" and node.value("warmup_size")
    if not warms or _warmup_from(node, rate):
        reader.take(node, "by_epoch", (*rate.path, "read_at"), READ_AT[_unit(node)])
    elif by_epoch:
        why = "with a warm-up from zero the rate moves with every step; there it rests within an epoch, the first at 0"
        reader.lose(node, "by_epoch", f"{why}: say schedule.warmup_from and read_at: epoch_start")
    else:
        note = "with a warm-up from zero: step n has the rate of n + 1 there, whose first one moves nothing"
        reader.take(node, "warmup_size", (*rate.path, "read_at"), "step_end", note)
    reader.used(node, "by_epoch")
