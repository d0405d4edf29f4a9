"""Small engines, and micro-batches for them."""

import numpy as np
import torch
from torch import nn

from drivetrain.data.batch_reader import MicroBatch
from drivetrain.engine.engine import Engine, MinimizeInputs
from drivetrain.engine.execution import Execution
from drivetrain.engine.placement import replicas
from drivetrain.engine.recipe import Scaling
from drivetrain.engine.scaler import Scaler
from drivetrain.optim.network_optimizer import build_network_optimizers
from drivetrain.optim.recipe import SGD, AdamW, Constant
from drivetrain.optim.schedules import Horizon
from drivetrain.runtime.group import Group
from drivetrain.spec.amount import Scale
from drivetrain.spec.batches import Batches

CPU = torch.device("cpu")


def alone(precision="fp32", **settings):
    """One process on the CPU."""
    return Execution(replicas(Group()), CPU, precision, 0, **settings)


def build(optimizer=None, names=("model",), **settings):
    torch.manual_seed(0)
    networks = {name: nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5), nn.Linear(4, 1)) for name in names}
    network_optimizers = build_network_optimizers(
        networks, optimizer or AdamW(lr=0.1), Constant(), Horizon(100, Scale(Batches(8)))
    )
    for network_optimizer in network_optimizers.values():
        network_optimizer.advance(8)
    return Engine(networks, network_optimizers, alone(settings.get("precision", "fp32")))


def micros(*sizes, start=0):
    batches = []
    for number, size in enumerate(sizes):
        batch = torch.arange(start, start + size * 3, dtype=torch.float32).reshape(size, 3) / 10
        batches.append(MicroBatch(batch, size, start, number, 0, np.arange(start, start + size)))
        start += size
    return batches


def mean_loss(nets, batch):
    return nets["model"](batch).square().mean()


def minimize(engine, loss, batches, names=("model",), counts=None, step=1):
    total = {"samples": sum(m.size for m in batches)}
    return engine.minimize(names, loss, MinimizeInputs(step, 0, batches, counts or total))


def weights(engine, name="model"):
    return torch.cat([p.detach().flatten().clone() for p in engine.networks[name].parameters()])


def scaled_engine(start=2.0**10, precision="fp32", window=2000, **settings):
    torch.manual_seed(0)
    networks = {"model": nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 1))}
    network_optimizers = build_network_optimizers(
        networks, SGD(lr=0.1, clip=0.5), Constant(), Horizon(100, Scale(Batches(8)))
    )
    network_optimizers["model"].advance(8)
    scaler = Scaler(Scaling(start=start, window=window), CPU) if start else None
    return Engine(networks, network_optimizers, alone(precision, **settings), scaler=scaler)
