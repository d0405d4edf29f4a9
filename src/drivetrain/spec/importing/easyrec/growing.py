"""Tables that grow: `zch` and `dynamicemb` as rows that belong to values, which come and go."""

from __future__ import annotations

from collections.abc import Mapping

from drivetrain.spec.importing.easyrec.reader import Reader
from drivetrain.spec.importing.easyrec.tree import Node
from drivetrain.spec.tree import Path_

SHARED = 64
"""Rows of such a table that belong to no value; it has at least as many others."""
_POLICIES: Mapping[str, str] = {"lfu": "count", "lru": "recent", "distance_lfu": "count"}
_SCORES: Mapping[str, str] = {"STEP": "recent", "TIMESTAMP": "recent", "LFU": "count"}
_FULL: Mapping[str, str] = {
    "NO_EVICTION": "a table that is full ends the run, and there new ids get no row: give it more rows, or say evict",
    "CUSTOMIZED": "nobody gives scores of their own: say evict, or a table that is full ends the run",
}


def take_growing(reader: Reader, node: Node, path: Path_) -> bool:
    """A feature's table, if it is one of those that grow."""
    for name, take in (("zch", _take_collisionless), ("dynamicemb", _take_dynamic)):
        inner = node.node(name)
        if inner is not None:
            take(reader, inner, (*path, "keyed"))
            return True
    return False


def _take_rows(reader: Reader, node: Node, name: str, path: Path_) -> None:
    note = f"and {SHARED} that values without a row share"
    reader.take(node, name, (*path, "rows"), max(SHARED, node.value(name) or 0) + SHARED, note)


def _take_collisionless(reader: Reader, node: Node, path: Path_) -> None:
    _take_rows(reader, node, "zch_size", path)
    policy = node.chosen("eviction_policy")
    inner = node.node(policy) if policy else None
    if policy is None or inner is None:
        reader.mistake(node, "eviction_policy", f"none is given; there are {', '.join(_POLICIES)}")
        return
    reader.take(node, policy, (*path, "evict", "least"), _POLICIES[policy])
    if policy == "distance_lfu":
        reader.lose_whole(inner, "how often an id was seen does not fade with time: evict.least is count, or recent")
    elif policy == "lru":
        reader.spare(inner, "decay_exponent", "whoever was seen longest ago is so by any power")
    steps = max(1, reader.facts.steps(node.value("eviction_interval")))
    reader.take(node, "eviction_interval", (*path, "evict", "every", "steps"), steps)
    why = "a function in Python of how often ids came within one interval: say admit.count, which is of all they came"
    reader.lose(node, "threshold_filtering_func", why)


def _take_dynamic(reader: Reader, node: Node, path: Path_) -> None:
    _take_rows(reader, node, "max_capacity", path)
    score = node.value("score_strategy")
    if score in _SCORES:
        note = "looked for every 100 steps (evict.every); there whenever an id comes"
        reader.take(node, "score_strategy", (*path, "evict", "least"), _SCORES[score], note)
    elif score in _FULL:
        reader.lose(node, "score_strategy", _FULL[score])
    else:
        reader.mistake(node, "score_strategy", f"is one of {', '.join([*_SCORES, *_FULL])}, not {score!r}")
    admission = node.node("frequency_admission_strategy")
    if admission is None:
        return
    note = "from the next step on; there in the same one"
    reader.take(admission, "threshold", (*path, "admit", "count"), max(1, admission.value("threshold") or 0), note)
    if admission.value("counter_capacity"):
        reader.take(admission, "counter_capacity", (*path, "admit", "waiting"), admission.value("counter_capacity"))
    reader.used(admission, "counter_capacity")
