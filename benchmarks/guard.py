"""What the guard costs for each 100 MB of state, beside one plain copy of it: comparing replicas, keeping a state to go
back to, and going back.

`python benchmarks/guard.py [--megabytes 400] [--device cuda] [--threads 2]`. All ways run in each round, in turn
forwards and backwards, and are compared within it.
"""

import argparse
import statistics
import time

import torch
from torch import nn

from drivetrain.checkpoint.snapshot import checksums
from drivetrain.checkpoint.state import capture, put_back
from drivetrain.engine.engine import Engine
from drivetrain.engine.execution import Execution
from drivetrain.engine.placement import Replicated
from drivetrain.engine.recompute import fold
from drivetrain.loop.progress import Progress
from drivetrain.loop.recipe import Rollback
from drivetrain.loop.replicas import replicated
from drivetrain.loop.rollback_buffer import RollbackBuffer
from drivetrain.loop.state import StateValues
from drivetrain.optim.network_optimizer import build_network_optimizers
from drivetrain.optim.recipe import AdamW, Constant
from drivetrain.optim.schedules import Horizon
from drivetrain.runtime.group import Group
from drivetrain.spec.amount import Scale
from drivetrain.spec.batches import Batches

WIDTH = 1024


def engine_of(megabytes: int, device: torch.device) -> Engine:
    """Weights with the two moments of AdamW, after a first step."""
    layers = max(1, round(megabytes * 1e6 / (12 * WIDTH * WIDTH)))
    networks = {"model": nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(layers))).to(device)}
    network_optimizers = build_network_optimizers(networks, AdamW(lr=1e-3), Constant(), Horizon(100, Scale(Batches(1))))
    engine = Engine(networks, network_optimizers, Execution(Replicated(Group()), device, "fp32", 0))
    for parameter in networks["model"].parameters():
        parameter.grad = torch.ones_like(parameter)
    for network_optimizer in network_optimizers.values():
        network_optimizer.advance(1)
        network_optimizer.optimizer.step()
    return engine


class Ways:
    """Each does one thing with the whole state."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.ring = RollbackBuffer(Rollback(back=1, every=1))
        self.copies = {name: torch.empty_like(tensor, device="cpu") for name, tensor in self.state.items()}
        self.step = 0

    @property
    def state(self) -> dict[str, torch.Tensor]:
        return capture(self.engine.networks, self.engine.optimizers, self.engine.others)

    def copy(self) -> None:
        for name, tensor in self.state.items():
            self.copies[name].copy_(tensor)

    def compare(self) -> None:
        fold(checksums(replicated(self.engine, frozen=True)))

    def keep(self) -> None:
        self.step += 1
        self.ring.keep(StateValues(Progress(self.step)), self.state)

    def go_back(self) -> None:
        boundary = self.ring.before(self.step + 1)
        put_back(boundary.pieces, self.engine.networks, self.engine.optimizers)
        if self.engine.device.type != "cpu":
            torch.accelerator.synchronize()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=400)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    ways = Ways(engine_of(asked.megabytes, torch.device(asked.device)))
    size = sum(tensor.nbytes for tensor in ways.state.values()) / 1e8
    names = ["copy", "compare", "keep", "go_back"]
    for name in ["copy", "compare", "keep", "keep", "go_back"]:  # memory that is touched for the first time is slow
        getattr(ways, name)()
    taken: dict[str, list[float]] = {name: [] for name in names}
    for number in range(asked.rounds):
        for name in names if number % 2 else names[::-1]:
            started = time.perf_counter()
            getattr(ways, name)()
            taken[name].append((time.perf_counter() - started) / size)
    print(f"{size:.1f} x 100 MB of state on {asked.device}, {asked.threads} threads; medians of {asked.rounds} rounds")
    for name in names:
        ratios = sorted(mine / plain for mine, plain in zip(taken[name], taken["copy"], strict=True))
        spread = f"{ratios[0]:.2f} to {ratios[-1]:.2f}"
        told = f"{statistics.median(taken[name]) * 1e3:7.2f} ms for each 100 MB"
        print(f"{name:>8}: {told}, {statistics.median(ratios):.2f} of a plain copy ({spread})")


if __name__ == "__main__":
    main()
