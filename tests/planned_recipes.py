"""Recipes of all kinds of training, small, whose steps take the same memory each: what a plan is held to."""

from __future__ import annotations

from pathlib import Path

import glues

LLAMA = {"kind": "llama", "vocabulary": 256, "width": 64, "depth": 2, "heads": 4, "kv_heads": 2, "context": 64}
# Garbage is collected in each step: what lies in circles of references otherwise goes when Python likes.
_USUAL = ("budget={steps: 4}", "checkpoint={}", "evaluate={}", "data.validation={}", "launch.threads=1")
_USUAL += ("telemetry={gc: {steps: 1}}",)
# Every step has all samples there are, so that what numbers decide is the same in each.
_CLICKS = ("data.train.sources=[{kind: clicks, samples: 64}]", "data.test={}", "batch={size: 64, micro: 64}")
_TABLES = (*_CLICKS, "schedule={kind: constant}", "lanes=1")
_VOICES = ("data.train.sources=[{kind: harmonics, samples: 64}]", "task.model.seconds=0.2", "schedule.warmup=null")
_PAIR = (*_VOICES, "task.model.width=16", "task.model.depth=1", "task.discriminator={periods: [2], width: 2}")
_GLUE = ("task.model=bert", "task.folder=.", "task.length=32", "data.train.buckets=null", "schedule.warmup=null")

LANGUAGE = {
    "llama": (),
    "lean head, accumulated": ("task.logits_chunk=16", "batch={size: 16, micro: 2}"),
    "bf16, selective": ("precision=bf16", "activations=selective"),
    "bf16 weights, averaged": ("precision=bf16", "parameters={dtype: bf16}", "average={decay: 0.9}"),
    "recompute": ("activations=recompute",),
    "galore": ("optimizer={kind: galore, lr: 1e-3, rank: 8, gap: 200}",),
    "experts": ("task.model.experts={count: 4, top_k: 2, hidden: 32, capacity: 1.25, balance: {rate: 0, loss: 0.01}}",),
    "muon": ("optimizer={kind: muon, lr: 1e-3}",),
}
"""Changes of a small Llama."""
SHIPPED = {
    "glue": (*_GLUE, "batch={size: 96, micro: 96}", "lanes=1", "checkpoint.keep_best=null"),
    "denoise-demo": _VOICES,
    "vocoder-demo": (*_PAIR, "networks.discriminator.start=2"),
    "ctr-demo": _TABLES,
    "mmoe-demo": _TABLES,
    "two-tower-demo": (*_TABLES, "task.model.negatives={kind: in_batch}"),
}
"""Changes of shipped recipes."""
FEW = ("lean head, accumulated", "vocoder-demo", "ctr-demo")
"""Those of every test run."""


def recipe(name: str, tiny: dict, folder: Path) -> tuple[dict | str, list[str]]:
    """A recipe, or the name of one, and its overrides; what it reads is put into the folder."""
    if name in LANGUAGE:
        tree = {**tiny, "task": {"kind": "language_model", "model": LLAMA}, "batch": {"size": 16, "micro": 16}}
        return tree, [*_USUAL, *LANGUAGE[name]]
    if name == "glue":
        glues.folders(folder)
    return name, [*_USUAL, *SHIPPED[name]]
