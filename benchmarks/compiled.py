"""A compiled step of ours beside the same loop by hand, and what compiling costs by scope, cold and warm.

`python benchmarks/compiled.py [--steps N] [--width W] [--depth D]`. Each step of ours begins, in the task's `update`,
with a step of a loop by hand on a network of its own whose blocks are compiled alike, and what is not in that step is
ours: a machine that is slow for a second is slow for both. Seconds of compiling are those that the ledger has of one
step, in processes of their own; cold: with an empty cache of the compiler's, warm: with the one that this left.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import drivetrain
import drivetrain.run.opened as opened
from drivetrain.ledger.ledger import read
from drivetrain.tasks.language_model.llama import Llama
from drivetrain.tasks.language_model.recipe import Llama as Settings

BATCH, CONTEXT, WINDOWS, SKIPPED = 8, 128, 256, 20
LR, CLIP = 1e-3, 1.0
CLOCKS = {"wall": time.perf_counter, "thread": time.thread_time}
"""By the wall, and the seconds that the training thread has computed: those do not grow while others have the cores."""


class Windows:
    """Bytes that go up by one, in memory."""

    def __len__(self) -> int:
        return WINDOWS

    def __getitem__(self, index: int) -> Tensor:
        return (torch.arange(CONTEXT + 1) + 7 * index) % 256


def build(width: int, depth: int) -> Llama:
    torch.manual_seed(0)
    return Llama(Settings(width=width, depth=depth, heads=4, context=CONTEXT, dropout=0.0))


class Beside(drivetrain.Task):
    """A decoder; before each of its steps one by hand is made, where that is asked for."""

    def __init__(self, width: int, depth: int, by_hand: bool = False) -> None:
        self.width, self.depth = width, depth
        self.spans: dict[str, list[tuple[float, float]]] = {name: [] for name in CLOCKS}
        self.source, self.own = Windows(), None
        if by_hand:
            self.own = build(width, depth)
            for layer in self.own.layers:
                layer.forward = torch.compile(layer.forward, dynamic=False)
            self.optimizer = torch.optim.AdamW(self.own.parameters(), lr=LR, fused=True)

    def networks(self) -> dict[str, nn.Module]:
        return {"model": build(self.width, self.depth)}

    def loss(self, nets, batch: Tensor) -> Tensor:
        return of(nets["model"], batch)

    def update(self, step) -> None:
        began = [clock() for clock in CLOCKS.values()]
        if self.own is not None:
            self.by_hand(step.index)
        for spans, begin, clock in zip(self.spans.values(), began, CLOCKS.values(), strict=True):
            spans.append((begin, clock()))
        super().update(step)

    def by_hand(self, step: int) -> None:
        """One step of the loop that one would write."""
        first = (step - 1) * BATCH
        batch = torch.stack([self.source[(first + number) * 7 % WINDOWS] for number in range(BATCH)])
        self.optimizer.zero_grad()
        loss = of(self.own, batch)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.own.parameters(), CLIP)
        self.optimizer.step()
        loss.item()  # whoever trains looks at it


def of(network: nn.Module, batch: Tensor) -> Tensor:
    return F.cross_entropy(network(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())


def recipe(arguments: argparse.Namespace, compiled: Any, **task: Any) -> dict[str, Any]:
    return {
        "name": "compiled",
        "task": {"kind": "compiled:Beside", "width": arguments.width, "depth": arguments.depth, **task},
        "data": {"train": {"sources": [{"kind": "compiled:Windows"}]}},
        "batch": {"size": BATCH},
        "budget": {"steps": arguments.steps},
        "optimizer": {"lr": LR, "clip": CLIP, "weight_decay": 0.01},
        "compile": compiled,
        "checkpoint": {"every": None},
        "launch": {"threads": 1},
    }


def steps_beside(arguments: argparse.Namespace) -> dict[str, float]:
    """Milliseconds of a step by hand, and of ours over it, by each clock."""
    task = Beside(arguments.width, arguments.depth, by_hand=True)
    opened.build_task = lambda recipe: task  # to look at its clocks afterwards
    with tempfile.TemporaryDirectory(prefix="drivetrain-") as folder:
        drivetrain.train(recipe(arguments, {"scope": "block"}, by_hand=True), run=f"{folder}/run", progress=False)
    found: dict[str, float] = {}
    for name, spans in task.spans.items():
        kept = spans[SKIPPED:]
        hand = [end - begin for begin, end in kept]
        ours = [after[0] - before[1] for before, after in pairwise(kept)]
        found[f"{name}, by hand (ms)"] = round(1e3 * median(hand), 2)
        found[f"{name}, ours over it"] = round(median(own / by for own, by in zip(ours, hand[:-1], strict=True)), 3)
    return found


def seconds_of(arguments: argparse.Namespace, compiled: Any, cache: str) -> dict[str, float]:
    """Of the first step, in a process of its own: seconds of compiling by the wall, and the process's own in all."""
    environment = os.environ | {"TORCHINDUCTOR_CACHE_DIR": cache, "PYTHONPATH": os.pathsep.join(sys.path)}
    asked = json.dumps(recipe(arguments, compiled) | {"budget": {"steps": 1}})
    with tempfile.TemporaryDirectory(prefix="drivetrain-") as folder:
        before = os.times()
        code = (
            f"import json, drivetrain; drivetrain.train(json.loads({asked!r}), run={folder + '/run'!r}, progress=False)"
        )
        subprocess.run([sys.executable, "-c", code], env=environment, check=True, stdout=subprocess.DEVNULL)
        after = os.times()
        told = [record.seconds for record in read(Path(folder) / "run" / "ledger.jsonl") if record.kind == "compile"]
    used = after.children_user + after.children_system - before.children_user - before.children_system
    return {"graphs": len(told), "compiling (s)": round(sum(told), 1), "processor in all (s)": round(used, 1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("--steps", 200), ("--width", 128), ("--depth", 4)):
        parser.add_argument(name, type=int, default=default)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    print(f"torch {torch.__version__}, {platform.machine()}, load {os.getloadavg()[0]:.1f}: {steps_beside(arguments)}")
    for scope in ("block", "network"):
        with tempfile.TemporaryDirectory(prefix="inductor-") as cache:
            for how in ("cold", "warm"):
                print(f"scope {scope}, {how}: {seconds_of(arguments, {'scope': scope}, cache)}", flush=True)


if __name__ == "__main__":
    main()
