"""What the loop costs where two networks train against each other, over the same loop by hand.

`python benchmarks/adversarial.py [STEPS] [WIDTH]`. Each step of ours begins, in the task's `update`, with a step of
the hand-written loop on networks of its own, and what is not in that step is ours: the two are milliseconds apart, and
a machine that is slow for a second is slow for both. The hand-written loop does what one writes: gradients of the
network that stands still are switched off, fakes are made once and detached, norms are clipped, rates follow a cosine.
"""

import json
import math
import platform
import sys
import tempfile
import time
from functools import partial
from itertools import pairwise
from statistics import fmean as mean
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

import drivetrain
import drivetrain.run.opened as opened

BATCH, LENGTH, WAVES, SEED, LR, CLIP, WARMUP = 8, 2048, 512, 0, 2e-4, 1.0, 50
SKIPPED = 20
BLOCK = 20  # steps whose mean is one figure of the spread
CLOCKS = {"wall": time.perf_counter, "thread": time.thread_time}
"""By the wall, and the seconds that the training thread has computed: those do not grow while others have the cores."""


class Waves:
    """Sines of many pitches, in memory: float32 [LENGTH]."""

    def __init__(self) -> None:
        pitch = torch.linspace(0.01, 0.3, WAVES)[:, None]
        self.waves = torch.sin(pitch * torch.arange(LENGTH)[None])

    def __len__(self) -> int:
        return WAVES

    def __getitem__(self, index: int) -> Tensor:
        return self.waves[index]


def build(width: int) -> dict[str, nn.Module]:
    """A generator that restores waves, and a discriminator with strides, as in a small vocoder."""
    torch.manual_seed(SEED)

    def convolution(inputs: int, outputs: int, stride: int = 1) -> list[nn.Module]:
        return [nn.Conv1d(inputs, outputs, 9, stride=stride, padding=4), nn.LeakyReLU(0.2)]

    made = [*convolution(1, width), *convolution(width, width), *convolution(width, width), nn.Conv1d(width, 1, 1)]
    judged = [*convolution(1, width, 2), *convolution(width, width, 2), *convolution(width, width, 2)]
    return {"generator": nn.Sequential(*made), "discriminator": nn.Sequential(*judged, nn.Conv1d(width, 1, 1))}


class Duel(drivetrain.Task):
    """Both networks move in each step; before that, two by hand."""

    def __init__(self, width: int, steps: int) -> None:
        self.width, self.steps = width, steps
        self.spans: dict[str, list[tuple[float, float]]] = {name: [] for name in CLOCKS}
        self.waves, self.nets = Waves(), build(width)
        self.optimizers = {name: torch.optim.AdamW(net.parameters(), fused=True) for name, net in self.nets.items()}

    def networks(self) -> dict[str, nn.Module]:
        return build(self.width)

    def update(self, step) -> None:
        began = [clock() for clock in CLOCKS.values()]
        self.by_hand(step.index)
        for spans, begin, clock in zip(self.spans.values(), began, CLOCKS.values(), strict=True):
            spans.append((begin, clock()))
        step.minimize("generator", partial(self.made, step))
        step.minimize("discriminator", partial(self.judged, step))

    def made(self, step, nets, batch: Tensor) -> Tensor:
        fakes = nets["generator"](noisy(batch))
        step.cache["fakes"] = fakes
        return (fakes - batch[:, None]).abs().mean() + softplus(-nets["discriminator"](fakes)).mean()

    def judged(self, step, nets, batch: Tensor) -> Tensor:
        judge = nets["discriminator"]
        return (softplus(-judge(batch[:, None])) + softplus(judge(step.cache["fakes"]))).mean()

    def by_hand(self, step: int) -> None:
        """One step of the loop that one would write."""
        start = (step - 1) * BATCH
        batch = torch.stack([self.waves[(start + number) * 7 % WAVES] for number in range(BATCH)])
        make, judge = self.nets["generator"], self.nets["discriminator"]
        judge.requires_grad_(False)
        fakes = make(noisy(batch))
        loss = (fakes - batch[:, None]).abs().mean() + softplus(-judge(fakes)).mean()
        self._advance("generator", loss, step)
        judge.requires_grad_(True)
        loss = (softplus(-judge(batch[:, None])) + softplus(judge(fakes.detach()))).mean()
        self._advance("discriminator", loss, step)

    def _advance(self, name: str, loss: Tensor, step: int) -> None:
        optimizer, network = self.optimizers[name], self.nets[name]
        progress = max(0.0, (step - WARMUP) / (self.steps - WARMUP))
        for group in optimizer.param_groups:
            group["lr"] = LR * min(1.0, step / WARMUP) * (1 + math.cos(math.pi * progress)) / 2
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), CLIP)
        optimizer.step()


def noisy(batch: Tensor) -> Tensor:
    """What the generator hears: [samples, 1, LENGTH]."""
    return batch[:, None] + 0.3 * torch.randn(len(batch), 1, LENGTH)


def measure(steps: int, width: int) -> dict[str, Any]:
    """Milliseconds of a step by hand, and what ours takes longer, in percent, by each clock."""
    task = Duel(width, steps)
    recipe = {
        "name": "adversarial",
        "task": {"kind": "adversarial:Duel", "width": width, "steps": steps},
        "data": {"train": {"sources": [{"kind": "adversarial:Waves"}]}},
        "batch": {"size": BATCH},
        "budget": {"steps": steps},
        "optimizer": {"lr": LR, "clip": CLIP},
        "schedule": {"kind": "cosine", "warmup": {"steps": WARMUP}},
        "launch": {"threads": 1},
    }
    opened.build_task = lambda _: task  # this one, whose clock is read below
    with tempfile.TemporaryDirectory() as folder:
        drivetrain.train(recipe, run=folder, progress=False)
    return {"width": width, "steps": steps} | {name: compared(spans[SKIPPED:]) for name, spans in task.spans.items()}


def compared(spans: list[tuple[float, float]]) -> dict[str, float]:
    """What lies within the spans, the steps by hand, beside what lies between them."""
    hand = [end - begin for begin, end in spans[:-1]]
    own = [after[0] - before[1] for before, after in pairwise(spans)]
    blocks = [100 * (mean(own[at : at + BLOCK]) / mean(hand[at : at + BLOCK]) - 1) for at in range(0, len(own), BLOCK)]
    return {
        "by_hand_ms": 1e3 * median(hand),
        "over_it_percent": 100 * (mean(own) / mean(hand) - 1),
        "median_over_it_percent": 100 * (median(own) / median(hand) - 1),
        "blocks_median_percent": median(blocks),
        "blocks_least_percent": min(blocks),
        "blocks_most_percent": max(blocks),
    }


def main(arguments: list[str]) -> None:
    torch.set_num_threads(1)
    steps = int(arguments[0]) if arguments else 400
    widths = [int(arguments[1])] if len(arguments) > 1 else [8, 32]
    found = [measure(steps, width) for width in widths]
    print(json.dumps({"machine": platform.machine(), "torch": torch.__version__, "runs": found}))


if __name__ == "__main__":
    main(sys.argv[1:])
