"""Two ranks that hold a half of each tensor and read the same samples, in the place of a mesh's."""

from __future__ import annotations

import json
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from drivetrain.data.batch_reader import BatchReader
from drivetrain.data.geometry import Geometry
from drivetrain.data.order import Order
from drivetrain.engine.engine import Engine, MinimizeInputs
from drivetrain.engine.execution import Execution
from drivetrain.loop.evaluation import Evaluator, ValidationSet
from drivetrain.loop.guard import Guard
from drivetrain.loop.progress import Progress
from drivetrain.loop.recipe import Guard as GuardSettings
from drivetrain.loop.replicas import Replicas
from drivetrain.loop.state import RunState
from drivetrain.loop.step_sync import WIDTH, StepSync
from drivetrain.loop.task import Task
from drivetrain.optim.network_optimizer import build_network_optimizers
from drivetrain.optim.recipe import AdamW, Constant
from drivetrain.optim.schedules import Horizon
from drivetrain.runtime.group import Group
from drivetrain.runtime.pulse import Pulse
from drivetrain.runtime.signals import StopRequests
from drivetrain.spec.amount import Scale
from drivetrain.spec.batches import Batches
from ranks import end, joined, leave

SAMPLES, STEPS = 24, 3


@dataclass(frozen=True)
class Halves:
    """Each of two ranks holds its half of the rows of every tensor; what has no rows, both hold and the first counts.

    Both stand at one place in the batch, and nobody holds what this rank does.
    """

    group: Group

    @property
    def data(self) -> Group:
        return Group()

    @property
    def replicas(self) -> Group:
        return Group()

    @property
    def speaks(self) -> bool:
        return self.group.rank == 0

    def norm(self, own: Tensor) -> Tensor:
        return torch.tensor(self.group.gather_json(float(own))).square().sum().sqrt()

    def counted(self, tensors):
        return {name: tensor for name, tensor in tensors.items() if tensor.ndim or self.speaks}

    def part(self, name: str, whole: Tensor) -> Tensor:
        return whole.chunk(2)[self.group.rank] if whole.ndim else whole


class Count:
    """How many samples were scored, over all lanes: a mean would not show that some were told twice."""

    def __init__(self):
        self.total = 0.0

    def state(self):
        return [self.total]

    def merge(self, state):
        self.total += state[0]

    def value(self):
        return self.total


class Scored(Task):
    """Counts the samples that it scores."""

    def metrics(self):
        return {"samples": Count()}

    def evaluate(self, networks, batch, metrics):
        metrics["samples"].total += len(batch)


class Numbers:
    """Samples of three numbers each."""

    def __len__(self):
        return SAMPLES

    def read(self, ids, positions):
        return [torch.tensor([1.0, i, i % 5]) / 10 for i in ids.tolist()]


def network(rows: int) -> nn.Module:
    """A layer whose rows add up independently of each other, with a buffer that commits keep."""
    layer = nn.Linear(3, rows)
    layer.register_buffer("seen", torch.zeros(rows))
    return layer


def engine_of(layer: nn.Module, placement) -> Engine:
    networks = {"model": layer}
    network_optimizers = build_network_optimizers(
        networks, AdamW(lr=0.1, clip=0.01), Constant(), Horizon(SAMPLES, Scale(Batches(8)))
    )
    return Engine(networks, network_optimizers, Execution(placement, torch.device("cpu"), "fp32", 0))


def squares(networks, batch):
    """Adds up over rows; what it does to the buffer differs by row."""
    layer = networks["model"]
    found = layer(batch)
    layer.seen.copy_(found.detach().sum(0))
    return found.square().sum(1).mean()


def reader_of(placement) -> BatchReader:
    geometry = Geometry(Batches(8), 2, placement.data.world, 4)
    order = Order(SAMPLES, 3, True)
    return BatchReader(Numbers(), order, geometry, placement.data.rank, SAMPLES, torch.stack, lambda batch: {})


def train(engine: Engine, reader: BatchReader, first: int = 1) -> list[float]:
    """Steps to the end of the data; their gradient norms."""
    norms = []
    for step in range(first, STEPS + 1):
        engine.network_optimizers["model"].advance(8 * step)
        engine.buffers.begin()
        work = MinimizeInputs(step, 0, reader.read(step).micro_batches, {"samples": 8})
        norms.append(engine.minimize(("model",), squares, work).read().norms["model"])
    return norms


def halves(job, place, descriptors):
    """Train with halves; then again from a commit of whole tensors, made after the first step. Say what came out."""
    group = joined(place, descriptors)
    torch.set_num_threads(1)
    placement = Halves(group)
    start = {name: torch.tensor(rows) for name, rows in job["overrides"][0].items()}
    commit = {name: torch.tensor(rows) for name, rows in job["overrides"][1].items()}
    layer = network(2)
    layer.load_state_dict({name: placement.part(name, whole) for name, whole in start.items()})
    engine, reader = engine_of(layer, placement), reader_of(placement)
    norms = train(engine, reader)
    state = RunState(engine, placement, Guard(GuardSettings()), Progress(STEPS, SAMPLES))
    Replicas(engine, placement.replicas).compare(STEPS)  # the other rank's state is another: nobody is compared with it
    sync = StepSync(Pulse(group, WIDTH), StopRequests(), alone=False, speaks=placement.speaks)
    batch = reader.read(2)
    sync.send(batch, batch)
    heard = sync.receive()
    scores = Evaluator(Scored(), engine, group, placement, sync).score([ValidationSet("all", Numbers(), 5)], STEPS)
    engine.buffers.share()
    said = {
        "norms": norms,
        "tensors": {name: tensor.tolist() for name, tensor in state.tree().tensors.items()},
        "parts": {name: list(placement.part(name, whole).shape) for name, whole in commit.items()},
        "ids": [i for micro in batch.micro_batches for i in np.asarray(micro.ids).tolist()],
        "digest": heard.digest == batch.digest,
        "counts": heard.counts,
        "scores": scores.metrics["all"],
    }
    told = group.gather_json(said)
    group.close()
    return leave(job, place, end(0, json.dumps(told)))
