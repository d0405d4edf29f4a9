"""Sizes of groups as `parallel`, and torchrun's arguments as `launch.processes`."""

from __future__ import annotations

from drivetrain.spec.importing.findings import Gap, Taken
from drivetrain.spec.importing.rules import ABSENT, Key, Keys, Lost, Spare
from drivetrain.spec.tree import dotted

_TENSOR: Key = ("--tensor-model-parallel-size",)
_PIPELINE: Key = ("--pipeline-model-parallel-size",)
_CONTEXT: Key = ("--context-parallel-size",)
_SEQUENCE: Key = ("--sequence-parallel",)
_SHARDED: tuple[Key, ...] = (("--use-torch-fsdp2",), ("--use-megatron-fsdp",), ("--use-distributed-optimizer",))
_PER_STAGE: Key = ("--num-layers-per-virtual-pipeline-stage",)
_VIRTUAL: Key = ("--num-virtual-stages-per-pipeline-rank",)


def take_layout(keys: Keys) -> int | None:
    """Processes that read samples of their own, where their number is known."""
    # Experts are shared out along `shard`, and layers with them are neither split nor staged here.
    sizes = {"tensor": _TENSOR, "pipeline": _PIPELINE, "context": _CONTEXT}
    if keys.value(("--num-experts",)) is not ABSENT:
        for axis in ("tensor", "pipeline"):
            Lost("experts stay whole: they are shared out along parallel.shard", off=(1,)).apply(keys, sizes.pop(axis))
    group = 1
    for axis, key in sizes.items():
        size = keys.whole(key)
        if keys.value(key) is not ABSENT:
            keys.take(key, f"parallel.{axis}", size or 1)
        group *= size or 1
    _take_sequence(keys)
    _take_stages(keys)
    _take_shard(keys)
    processes = _processes(keys, group)
    if processes is not None:
        return processes // group
    if group > 1:
        what = f"how many processes: a multiple of {group}"
        keys.findings.gaps.append(Gap(("launch", "processes"), what, group))
    return None


def _take_sequence(keys: Keys) -> None:
    if "parallel.tensor" in [dotted(taken.path) for taken in keys.findings.taken] and keys.whole(_TENSOR) != 1:
        keys.take(_SEQUENCE, "parallel.sequence", keys.flag(_SEQUENCE))
    else:
        Spare("is for tensor parallelism").apply(keys, _SEQUENCE)


def _take_stages(keys: Keys) -> None:
    stages, layers = keys.whole(_PIPELINE) or 1, keys.whole(("--num-layers",))
    if keys.value(("--num-experts",)) is not ABSENT:
        stages = 1
    per_stage, several = keys.whole(_PER_STAGE), keys.whole(_VIRTUAL)
    if stages == 1:
        for key in (_PER_STAGE, _VIRTUAL):
            Spare("is for pipelines").apply(keys, key)
        return
    key = _PER_STAGE if per_stage else _VIRTUAL
    if per_stage and layers:
        several = max(1, layers // stages // per_stage)
    if several and several > 1:
        keys.take(key, "parallel.pipeline_schedule", "interleaved")
        keys.take(key, "parallel.virtual_stages", several)
    else:
        Spare("one stage on each process").apply(keys, key)


def _take_shard(keys: Keys) -> None:
    asked = [key for key in _SHARDED if keys.flag(key)]
    Spare("parameters, gradients and state are shared out").apply(keys, ("--data-parallel-sharding-strategy",))
    if not asked:
        return
    note = ""
    # The last of them shares out the least, so it counts only where none of the others is asked.
    if asked[0] == _SHARDED[-1]:
        note = "there the optimizer's state is shared out, here weights are, too"
    keys.take(asked[0], "parallel.replicate", 1)
    keys.take(asked[0], "parallel.shard", "auto", note)
    for key in asked[1:]:
        keys.spare(key, f"{asked[0][0]} says it")


def _processes(keys: Keys, group: int) -> int | None:
    """How many processes there are; None where the file does not say so many as the groups need."""
    given = keys.findings.source.processes
    each: Key = ("--nproc_per_node",)
    if keys.value(each) is ABSENT:
        each = ("--nproc-per-node",)
    nodes: Key = ("--nnodes",)
    if given is not None:
        for key in (each, nodes):
            Spare("--processes says how many").apply(keys, key)
        if given % group:
            keys.mistake(_TENSOR, f"tensor x pipeline x context = {group} does not divide {given} processes")
            return None
        keys.findings.taken.append(Taken(("launch", "processes"), given, "--processes", 0))
        return given
    per_node, count = keys.whole(each), 1
    if keys.value(nodes) is not ABSENT:
        count = keys.whole(nodes)
    # A number that does not fit the groups is a stand-in for a variable more often than a mistake.
    if per_node is None or count is None or per_node * count % group:
        for key in (each, nodes):
            Spare("says no number that fits; a script has it changed by whoever calls it").apply(keys, key)
        return None
    keys.take(each, "launch.processes", per_node * count, f"{per_node} x {count} machines")
    Spare("`drivetrain submit` asks for machines; launch.processes counts all processes").apply(keys, nodes)
    return per_node * count
