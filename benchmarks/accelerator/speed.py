"""How far a device is used, beside others in the same run: blocks of steps in turn, and what is missing by kernels."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Mapping
from itertools import islice
from typing import Any

import torch
from torch.profiler import profile

from accelerator import runs
from accelerator.check import Here, NotApplicableError, require
from accelerator.peers import PEERS, Batches, Steps
from accelerator.profile import accounts, kernels_of
from drivetrain.plan.flops import flops_per_sample, peak
from drivetrain.tasks.language_model.recipe import LanguageModel, Llama
from drivetrain.tasks.language_model.task import LanguageModelTask

SHAPES: Mapping[str, Mapping[str, Any]] = {
    "160m": {"vocabulary": 50304, "width": 768, "hidden": 2048, "depth": 12, "heads": 12, "context": 4096},
    "1.2b": {"vocabulary": 32000, "width": 2048, "hidden": 5632, "depth": 21, "heads": 16, "context": 4096},
}
BATCHES = {"160m": (32, 8), "1.2b": (8, 1)}
"""Samples of a step, and of a forward pass: three copies of the larger one train in turn on one device."""
TARGETS = {"160m": 0.45, "1.2b": 0.55}
"""The least MFU."""
GAPS = 0.01
"""The largest share of a step between kernels."""
REDUCED = {"160m": runs.TINY | {"context": 64}, "1.2b": runs.TINY | {"depth": 4, "context": 64}}
_WARM, _PROFILED = 1, 3  # blocks that are not counted; steps under the profiler
_OURS = "drivetrain"


class InTurn(LanguageModelTask):
    """The shipped decoder. Between blocks of its steps others make as many, on the same batch; then it is profiled."""

    told: dict[str, Any] = {}
    """What the run of this process has come to: seconds of blocks by who made them, others left out and why, kernels.
    It is read by who started the run, in the same process."""

    def __init__(self, model: dict[str, Any], block: int, rounds: int) -> None:
        super().__init__(LanguageModel(model=Llama(**model), logits_chunk="auto"))
        self.block, self.rounds = block, rounds
        self.peers: dict[str, Steps] = {}
        self.began = 0.0
        self.profiler: profile | None = None

    def update(self, step) -> None:
        made = step.index - 1
        turn, over = divmod(made, self.block)
        if over == 0 and turn <= self.rounds:
            self._turn(step, turn)
        if made == self.rounds * self.block:
            self.profiler = profile()
            self.profiler.start()
        super().update(step)
        if self.profiler is not None and made == self.rounds * self.block + _PROFILED - 1:
            device = step._engine.device
            synchronize()
            self.profiler.stop()
            type(self).told["kernels"] = kernels_of(self.profiler, on_host=device.type == "cpu")

    def _turn(self, step, turn: int) -> None:
        """A block of ours is over: the others make theirs."""
        synchronize()
        told = type(self).told
        if turn == 0:
            self.peers = self._opened(step, told)
        else:
            told["seconds"][_OURS].append(time.perf_counter() - self.began)
        if turn < self.rounds:
            for name, steps in self.peers.items():
                began = time.perf_counter()
                steps(self.block)
                synchronize()
                told["seconds"][name].append(time.perf_counter() - began)
        self.began = time.perf_counter()

    def _opened(self, step, told: dict[str, Any]) -> dict[str, Steps]:
        device, settings = step._engine.device, self._model
        batches: Batches = [micro.batch for micro in step._batch.micro_batches]
        found: dict[str, Steps] = {}
        told |= {"left out": {}, "seconds": {_OURS: []}}
        for name, build in PEERS.items():
            try:
                found[name] = build(settings, device, batches, compiled=device.type != "cpu")
            except NotApplicableError as why:
                told["left out"][name] = str(why)
        told["seconds"] |= {name: [] for name in found}
        return found


def speed(here: Here, size: str) -> Mapping[str, Any]:
    """Tokens a second, MFU, ratios to others by pairs of blocks, and shares of a step, of a decoder of this size."""
    _one_device()
    shape = REDUCED[size] if here.reduced else SHAPES[size]
    block, rounds = (2, 3) if here.reduced else (10, 6)
    samples, micro = (2, 1) if here.reduced else BATCHES[size]
    made = runs.recipe(here, shape, batch={"size": samples, "micro": micro}, lanes=1, checkpoint={})
    made["task"] = {"kind": "accelerator.speed:InTurn", "model": dict(shape), "block": block, "rounds": rounds}
    made["budget"] = {"steps": block * rounds + _PROFILED}
    if not here.reduced:
        made |= {"precision": "bf16", "matmul": "high", "compile": {"scope": "block"}}
    made["launch"] = {"threads": 1, "hang_after": None}  # steps of others are no sign of life
    runs.train(made, here.folder / "run")
    own = Llama(**shape).shape
    figures = _rates(InTurn.told, block, samples * own.context)
    most = None if here.reduced else peak(here.name, "bf16")
    ideal = samples * flops_per_sample(own) / most if most else 0.0  # seconds of a step at the device's peak
    figures["MFU"] = ideal / figures["seconds"][_OURS] if most else "not known: no peak of this device"
    figures["shares"] = accounts(InTurn.told["kernels"], _PROFILED * ideal * 1e6)
    if here.reduced:
        figures["shares"].pop("gaps", None)  # between operations of a CPU there is Python
    else:
        _require_targets(figures, TARGETS[size] if most else 0.0)
    return figures


def _require_targets(figures: Mapping[str, Any], least: float) -> None:
    """Raises CheckFailedError, with all figures, where one is missed; the MFU is at `least` so much, 0 where it is not
    known."""
    missed = []
    if least and figures["MFU"] < least:
        missed.append(f"MFU below {least}")
    if figures["shares"].get("gaps", 0.0) > GAPS:
        missed.append(f"gaps between kernels above {GAPS}")
    missed += [f"slower than {name}" for name, ratio in figures["of their time"].items() if ratio["median"] > 1]
    require(not missed, f"{', '.join(missed)}: {figures}")


def _rates(told: Mapping[str, Any], block: int, tokens: int) -> dict[str, Any]:
    """Seconds of a step by who made it, ours as a part of others' by pairs of blocks, tokens a second."""
    counted = {name: list(islice(seconds, _WARM, None)) for name, seconds in told["seconds"].items()}
    own = counted[_OURS]
    of_step = {name: statistics.median(seconds) / block for name, seconds in counted.items()}
    ratios = {}
    for name in counted.keys() - {_OURS}:
        pairs = [one / other for one, other in zip(own, counted[name], strict=True)]
        ratios[name] = {"median": statistics.median(pairs), "least": min(pairs), "most": max(pairs)}
    figures: dict[str, Any] = {"tokens_per_second": tokens / of_step[_OURS], "seconds": of_step}
    return figures | {"of their time": ratios} | ({"left out": told["left out"]} if told["left out"] else {})


def _one_device() -> None:
    """Have this process see one device: of several the Trainer would take all. Torch must not have looked yet."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "0")
    os.environ["CUDA_VISIBLE_DEVICES"] = visible.partition(",")[0]
    os.environ.setdefault("PYTORCH_ALLOC_CONF", "expandable_segments:True")


def synchronize() -> None:
    """Wait for the device, where there is one."""
    if torch.accelerator.is_available():
        torch.accelerator.synchronize()
