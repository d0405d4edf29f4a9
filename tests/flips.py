"""Tasks in whose memory a bit flips once, on one rank or on all, as cosmic rays would have it."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.optim.optimizer import register_optimizer_step_post_hook

from guarded import Fit


def flip(tensor: torch.Tensor, place: int = 1) -> None:
    """A bit in the middle of one number."""
    tensor.detach().reshape(-1).view(torch.int32)[place] ^= 1 << 20


class Flipped(Fit):
    """After the optimizer's step `step`, `what` (weight or exp_avg) has another bit on `rank`; -1: on all.

    `killed`: where that has happened, the process dies in the next step but one."""

    def __init__(self, seen: str, what: str = "weight", rank: int = 1, step: int = 7, killed: bool = False):
        super().__init__()
        self.killed, self.mine = killed, False
        self.what, self.rank, self.step, self.seen = what, rank, step, Path(seen)
        register_optimizer_step_post_hook(self.after)

    def networks(self):
        return {"model": torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 1))}

    def update(self, step):
        self.index = step.index
        if self.mine and self.killed:
            time.sleep(0.1)  # so that the ledger has the step before
            if step.index == self.step + 2:
                os.kill(os.getpid(), signal.SIGKILL)
        step.minimize("model", self.loss)

    def after(self, optimizer, *_):
        rank = dist.get_rank() if dist.is_initialized() else 0
        mark = self.seen / f"flipped-{rank}"
        if self.index != self.step or self.rank not in (rank, -1) or mark.exists():
            return
        mark.touch()
        self.mine = True
        weight = next(p for group in optimizer.param_groups for p in group["params"] if p.ndim == 2)
        flip(weight if self.what == "weight" else optimizer.state[weight][self.what])


class Added(Fit):
    """In step `step` a gradient of `rank`, that of its own first micro-batch, has another bit before it is summed."""

    def __init__(self, seen: str, rank: int = 1, step: int = 7):
        super().__init__()
        self.rank, self.step, self.seen = rank, step, Path(seen)
        self.index, self.first, self.mine = 0, -1, False

    def networks(self):
        networks = super().networks()
        networks["model"][0].weight.register_post_accumulate_grad_hook(self.after)
        return networks

    def update(self, step):
        self.index, self.first = step.index, int(step._batch.micro_batches[0].ids[0])
        step.minimize("model", self.loss)

    def loss(self, nets, batch):
        self.mine = int(batch[0, 0]) == self.first
        return super().loss(nets, batch)

    def after(self, weight):
        rank = dist.get_rank() if dist.is_initialized() else 0
        mark = self.seen / f"flipped-{rank}"
        if (self.index, rank) == (self.step, self.rank) and self.mine and not mark.exists():
            mark.touch()
            flip(weight.grad)
