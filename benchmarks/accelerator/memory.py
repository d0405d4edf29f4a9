"""What a plan says beside what a device's allocator has given out, and what fits."""

from __future__ import annotations

import gc
from collections.abc import Mapping
from contextlib import contextmanager
from typing import Any

import torch

from accelerator import runs
from accelerator.check import Here, NotApplicableError, require
from drivetrain.plan.memory import measured
from drivetrain.run.planning import Limit, Opened, Prediction, open_plan, predict, require_fits
from drivetrain.run.tracing import Asked, metered, traced
from drivetrain.runtime.group import Group
from drivetrain.spec.exits import Failure
from drivetrain.spec.load import load
from drivetrain.spec.mesh import MeshSizes

Figures = Mapping[str, Any]
WITHIN = 0.05
"""How far a plan may be from the allocator's peak, as a part of it."""
TRACED = 0.01
"""The same on a CPU, where the same meter sees both."""
ROOM = 0.10
"""Above the plan's peak, for what the allocator holds and does not give out."""
MEDIUM = {"vocabulary": 32000, "width": 1024, "depth": 12, "heads": 16, "context": 1024}
SEVEN_B = {"vocabulary": 32000, "width": 4096, "hidden": 11008, "depth": 32, "heads": 32, "context": 256, "tied": False}
PAPER = 24e9
"""Bytes of the device on which GaLore's paper trains 7 B parameters (arXiv 2403.03507, section 5.5)."""
_CASES: Mapping[str, Mapping[str, Any]] = {
    "fp32": {},
    "bf16": {"precision": "bf16"},
    "recompute": {"precision": "bf16", "activations": "recompute"},
    "bf16 weights": {"precision": "bf16", "parameters": {"dtype": "bf16"}},
    "galore": {"optimizer": {"kind": "galore", "lr": 1e-3, "rank": 16, "gap": 200}},
}


def trace(here: Here) -> Figures:
    """Two steps without memory beside the same of real tensors, in this process."""
    off = {}
    for name, changed in _CASES.items():
        opened = _opened(runs.recipe(here, runs.TINY, device="cpu", **changed))
        asked = Asked(opened.recipe, opened.task, MeshSizes(), opened.scale, opened.total)
        plan, real = (sum(measured(each.later).peak.peak) for each in (traced(asked), metered(asked, Group())))
        off[name] = plan / real - 1
    worst = max(map(abs, off.values()))
    require(worst <= TRACED, f"a plan is {worst:.1%} off: {off}")
    return off


def allocator(here: Here) -> Figures:
    """Peaks of a few steps, beside the plans of the same recipes."""
    _require_counting(here)
    figures: dict[str, Any] = {}
    for name, changed in _CASES.items():
        made = runs.recipe(here, MEDIUM, **_few(changed))
        plan, peak = _plan(made)[1].peak, _peak(here, made, name)
        figures[name] = {"peak_bytes": peak, "off": plan / peak - 1}
    worst = max(abs(each["off"]) for each in figures.values())
    require(worst <= WITHIN, f"a plan is {worst:.1%} off the allocator's peak: {figures}")
    return figures


def limit(here: Here) -> Figures:
    """A limit a little above the plan's peak, and one a little below: what a plan says, and what the device does."""
    _require_counting(here)
    if here.kind != "cuda":
        raise NotApplicableError(f"torch cannot limit what {here.kind} gives out")
    made = runs.recipe(here, MEDIUM, **_few({"precision": "bf16"}))
    opened, found = _plan(made)
    told = {}
    for name, factor in (("above", 1 + ROOM), ("below", 1 - WITHIN)):
        size = int(found.peak * factor)
        said = _says(opened, found, size)
        with _limited(size, here):
            did = _trains(here, made, name)
        told[name] = f"the plan says {said}, the device {did}"
        require(said == did, f"{factor:.2f} of the plan's peak: {told[name]}")
    return {"plan_bytes": found.peak} | told


def galore(here: Here) -> Figures:
    """Peak of layerwise GaLore with moments in 8 bits, at the shape of the paper's 7 B, and its plan. Weights are in
    fp32: no recipe has them in bf16 with GaLore, so it takes more than the paper's."""
    shape = runs.TINY if here.reduced else SEVEN_B
    base = {"kind": "adamw8bit"}
    optimizer = {"kind": "galore", "lr": 5e-3, "rank": min(1024, shape["width"] // 4), "gap": 500, "base": base}
    changed = {
        "optimizer": optimizer | {"layerwise": True, "clip": None},
        "precision": "bf16",
        "task": {"kind": "language_model", "model": {"kind": "llama", **shape}, "logits_chunk": "auto"},
        "lanes": 1,
        "batch": {"size": 16, "micro": 16},
    }
    made = runs.recipe(here, shape, **_few(changed))
    found = _plan(made)[1]
    figures: dict[str, Any] = {
        "plan_bytes": found.peak,
        "parameters": sum(each[0] for each in found.parameters.values()),
    }
    if here.reduced:
        runs.train(made, here.folder / "run")
        return figures
    if here.memory < found.peak * (1 + ROOM):
        raise NotApplicableError(f"it takes {found.peak:,} bytes, and the device has {here.memory:,}")
    peak = _peak(here, made, "run")
    figures |= {"peak_bytes": peak, "off": found.peak / peak - 1, "of_the_papers_device": peak / PAPER}
    require(abs(figures["off"]) <= WITHIN, f"the plan is {figures['off']:.1%} off the allocator's peak")
    return figures


def _few(changed: Mapping[str, Any]) -> dict[str, Any]:
    """Few steps, without a commit before the end."""
    return {**changed, "budget": {"steps": 4}, "checkpoint": {}}


def _require_counting(here: Here) -> None:
    here.require_device("it has no allocator that counts; `memory trace` holds a plan against real steps")


def _opened(made: Mapping[str, Any]) -> Opened:
    return open_plan(load(made).recipe, 1, data=False)


def _plan(made: Mapping[str, Any]) -> tuple[Opened, Prediction]:
    opened = _opened(made)
    return opened, predict(opened, MeshSizes())


def _peak(here: Here, made: Mapping[str, Any], name: str) -> int:
    """What a run in this process had of the allocator at most, beside what was there before."""
    gc.collect()
    torch.accelerator.empty_cache()
    before = torch.accelerator.memory_allocated()
    torch.accelerator.reset_peak_memory_stats()
    runs.train(made, here.folder / name)
    return torch.accelerator.max_memory_allocated() - before


def _says(opened: Opened, found: Prediction, size: int) -> str:
    try:
        require_fits(opened, MeshSizes(), found, Limit(size, "the check"), most=0)
    except Failure:
        return "no-go"
    return "go"


def _trains(here: Here, made: Mapping[str, Any], name: str) -> str:
    try:
        runs.train(made, here.folder / name)
    except Failure as failure:
        require("memory" in failure.outcome.cause, f"it ended for another reason: {failure.outcome.line()}")
        return "no-go"
    return "go"


@contextmanager
def _limited(size: int, here: Here):
    """While entered, this process's allocator gives out no more than so many bytes."""
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(min(1.0, size / here.memory))
    try:
        yield
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
