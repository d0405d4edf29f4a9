"""The scheduler: its shape, its landmarks in steps, and the peak learning rate where it has one of its own."""

from __future__ import annotations

from drivetrain.spec.importing.deepspeed.table import SCHEDULES
from drivetrain.spec.importing.deepspeed.typed import lose_all, take_params, type_of
from drivetrain.spec.importing.findings import Gap
from drivetrain.spec.importing.rules import ABSENT, Key, Keys, shown
from drivetrain.spec.registry import nearest

_KEY: Key = ("scheduler",)
_PARAMS: Key = (*_KEY, "params")
_CYCLE = 2000  # steps of OneCycle's first half where it is left out


def take_schedule(keys: Keys) -> Key | None:
    """The key of the peak learning rate where it is the scheduler's, not the optimizer's."""
    kind_path = ("schedule", "kind")
    if keys.value(_KEY) is ABSENT:
        what = "the file has none: constant, unless your script makes one"
        keys.findings.gaps.append(Gap(kind_path, what, "constant", ("schedule",)))
        return None
    named = type_of(keys, _KEY)
    if named is None:
        return None
    kind = SCHEDULES.get(named)
    if kind is None:
        lose_all(keys, _KEY, f"there is no such schedule{nearest(named, list(SCHEDULES))}")
        keys.findings.gaps.append(Gap(kind_path, f"in place of {shown(named)}", "constant", by=()))
        return None
    keys.take((*_KEY, "type"), "schedule.kind", kind.kind)
    take_params(keys, _KEY, kind.params)
    if named == "OneCycle":
        _take_cycle(keys)
    elif "total_num_steps" in kind.params:
        _take_length(keys)
    if kind.peak is None:
        return None
    peak = (*_PARAMS, kind.peak)
    # A schedule without a peak of its own takes the optimizer's; only this one has a default.
    return peak if keys.value(peak) is not ABSENT or named == "WarmupDecayLR" else None


def _take_length(keys: Keys) -> None:
    key = (*_PARAMS, "total_num_steps")
    if keys.is_auto(key):
        keys.spare(key, "the schedule ends with the budget")
    elif keys.value(key) is ABSENT:
        keys.mistake(key, "is missing")
    elif (total := keys.whole(key)) is not None:
        keys.take(key, "schedule.length.steps", total)


def _take_cycle(keys: Keys) -> None:
    """A rise, and a fall to where the rise began."""
    first_key, second_key = (*_PARAMS, "cycle_first_step_size"), (*_PARAMS, "cycle_second_step_size")
    first = keys.whole(first_key) or _CYCLE
    second = keys.whole(second_key, 0)
    if second is None:
        second = first
    keys.take(first_key, "schedule.warmup.steps", first, "from zero")
    keys.take(second_key, "schedule.length.steps", first + second, f"{first} + {second}")
    low_key, high_key = (*_PARAMS, "cycle_min_lr"), (*_PARAMS, "cycle_max_lr")
    low, high = _rate(keys, low_key), _rate(keys, high_key)
    if low is None or high is None:
        return
    if low > high or high == 0:
        keys.mistake(low_key, f"{low:g} is the lower end of the cycle, and {high:g} (cycle_max_lr) the upper")
        return
    keys.take(low_key, "schedule.floor", low / high, f"{low:g} / {high:g}")
    if low:
        keys.lose(low_key, "is where the fall ends, as there; but the rise begins at zero")


def _rate(keys: Keys, key: Key) -> float | None:
    """A rate of the cycle; None where it is none, or one for each parameter group."""
    value = keys.value(key)
    if isinstance(value, list):
        if key[-1] == "cycle_min_lr":
            keys.lose(key, "is a list, one for each parameter group")
        return None
    if value is ABSENT:
        keys.mistake(key, "is missing")
        return None
    if not isinstance(value, (int, float)) or isinstance(value, bool) or value < 0:
        keys.mistake(key, f"is a learning rate, not {shown(value)}")
        return None
    return float(value)
