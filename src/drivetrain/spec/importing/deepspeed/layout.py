"""ZeRO's stage and groups, and tensor parallelism, as `parallel`."""

from __future__ import annotations

from drivetrain.spec.importing.deepspeed.table import ZERO
from drivetrain.spec.importing.findings import Gap
from drivetrain.spec.importing.rules import ABSENT, Key, Keys, Nested

TENSOR: Key = ("tensor_parallel", "autotp_size")
_ZERO: Key = ("zero_optimization",)
_GROUPS = {
    "mics_shard_size": "",
    "zero_hpz_partition_size": "gradients and the optimizer's state, too, are shared out over the group only",
}
"""Keys that say how many processes share out one copy of the weights, with what is not the same here."""


def take_layout(keys: Keys) -> int:
    """Processes that share out one copy of the weights, where that is a number; 1: all of them, or none."""
    group = 1
    if isinstance(keys.value(_ZERO), bool):  # as the oldest files have it
        _take_stage(keys, _ZERO, int(keys.flag(_ZERO)), group)
    else:
        Nested(ZERO).apply(keys, _ZERO)
        key = (*_ZERO, "stage")
        stage = keys.whole(key, 0) or 0
        if stage > 3:
            keys.mistake(key, f"is 0, 1, 2 or 3, not {stage}")
        elif keys.is_auto(key):
            keys.mistake(key, "is 0, 1, 2 or 3: nobody fills it in")
        group = _take_group(keys, stage)
        _take_stage(keys, key, stage, group)
    tensor = keys.whole(TENSOR, 0) or 1
    if tensor > 1:
        keys.take(TENSOR, "parallel.tensor", tensor)
    elif keys.value(TENSOR) is not ABSENT:
        keys.spare(TENSOR, "layers are not split")
    if tensor * group > 1 and keys.findings.source.processes is None:
        what = f"how many processes: a multiple of {tensor * group}"
        keys.findings.gaps.append(Gap(("launch", "processes"), what, tensor * group))
    return group


def _take_stage(keys: Keys, key: Key, stage: int, group: int) -> None:
    if stage == 0:
        keys.take(key, "parallel.replicate", "auto", "every process holds everything")
        keys.take(key, "parallel.shard", 1)
        return
    note = ""
    if stage < 3:
        note = f"stage {stage} leaves weights whole; here they are shared out as in stage 3"
    if group == 1:
        keys.take(key, "parallel.replicate", 1)
        keys.take(key, "parallel.shard", "auto", note)
    else:
        keys.take(key, "parallel.replicate", "auto")


def _take_group(keys: Keys, stage: int) -> int:
    found = 1
    for name, note in _GROUPS.items():
        key = (*_ZERO, name)
        value = keys.value(key)
        if value is ABSENT:
            continue
        size = 1
        if value != -1:  # MiCS's word for none
            size = keys.whole(key, 0) or 1
        if size == 1 or found > 1 or stage != 3:
            keys.spare(key, "makes no groups: those are of stage 3, and of more than one process")
            continue
        found = size
        keys.take(key, "parallel.shard", size, note)
    return found
