"""Ranks on a mesh, around networks of odd shapes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from drivetrain.data.batch_reader import MicroBatch
from drivetrain.engine.dropout import Dropout
from drivetrain.engine.engine import Engine, MinimizeInputs
from drivetrain.engine.execution import Execution
from drivetrain.engine.layout import lay_out
from drivetrain.engine.parallel_plan import ParallelPlan, derived
from drivetrain.engine.placement import placed
from drivetrain.engine.recipe import Statistics
from drivetrain.engine.statistics import Probe
from drivetrain.optim.network_optimizer import build_network_optimizers
from drivetrain.optim.recipe import Constant
from drivetrain.optim.schedules import Horizon
from drivetrain.runtime.mesh import Mesh
from drivetrain.spec.amount import Amount, Scale
from drivetrain.spec.batches import Batches
from drivetrain.spec.exits import Failure
from drivetrain.spec.mesh import MeshSizes
from ranks import end, joined, leave
from ranks_mesh import LANES, Case, gradients_of, optimizer_of, said, whole


class Scaled(nn.Module):
    """Repeated blocks between a table of one row and a single number."""

    def __init__(self) -> None:
        super().__init__()
        self.row, self.scale = nn.Parameter(torch.randn(1, 8)), nn.Parameter(torch.tensor(1.5))
        self.blocks = nn.ModuleList([nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(2)])

    def forward(self, x: Tensor) -> Tensor:
        x = x * self.row
        for block in self.blocks:
            x = x + block(x)
        return x.mean(1) * self.scale


class Decayed(Scaled):
    """Its loss looks at all parameters."""


class Parted(Scaled):
    """Its loss calls one of its layers by itself."""


class Penalized(Scaled):
    """Its loss looks at the slope by what it is given."""


class Encoding(Scaled):
    """Its loss calls a method of it beside `forward`."""

    def encode(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = x + block(x)
        return x * self.row


class PenalizedEncoding(Encoding):
    """Its loss looks at the slope of what that method gives."""


class PartlySplit(nn.Module):
    """Two layers of four are split; nothing says what becomes of the others."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.up, self.down = nn.Linear(8, 8), nn.Linear(8, 16), nn.Linear(16, 8)
        self.last, self.scale = nn.Linear(8, 1), nn.Parameter(torch.tensor(1.5))

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.first(x))
        return self.last(self.down(torch.tanh(self.up(x)))).mean(1) * self.scale


class Classifying(nn.Module):
    """All of its layers are split, and work on some of the positions in between; it says of each sign what comes to
    it, and takes signs for tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.norm, self.dropout = nn.Embedding(2, 8), nn.LayerNorm(8), Dropout(0.2)
        self.mlp = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8))
        self.head = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed((x > 0).long())
        return self.head(x + self.dropout(self.mlp(self.norm(x))))


class Dropping(nn.Sequential):
    """All that trains is split; nothing says where it drops."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(8, 16), nn.Linear(16, 8), Dropout(0.1))


PLANS: dict[type[nn.Module], ParallelPlan] = {
    Encoding: ParallelPlan(units=("blocks.*",), methods=("encode",)),
    PenalizedEncoding: ParallelPlan(units=("blocks.*",), methods=("encode",)),
    PartlySplit: ParallelPlan(split={"up": "column", "down": "row"}),
    Classifying: ParallelPlan(
        split={
            "embed": "embedding",
            "norm": "sequence",
            "dropout": "sequence",
            "mlp": "gather",
            "mlp.0": "column",
            "mlp.2": "row",
            "head": "head",
        }
    ),
    Dropping: ParallelPlan(split={"0": "column", "1": "row"}),
}


def odd_engine(mesh: Mesh, kind: type[nn.Module], *, sequence: bool = False) -> Engine:
    torch.manual_seed(0)
    networks = {"model": kind()}
    plan = PLANS.get(kind) or derived(networks["model"])
    lay_out("model", networks["model"], plan, mesh, sequence=sequence)
    placement = placed(networks, mesh)
    settings, horizon = optimizer_of(Case()), Horizon(8000, Scale(Batches(8)))
    built = build_network_optimizers(networks, settings, Constant(), horizon, parts=placement.parts)
    placement = placement.knowing({name: each.optimizer for name, each in built.items()})
    return Engine(networks, built, Execution(placement, torch.device("cpu"), "fp32", 7))


def odd_steps(engine: Engine, steps: int = 3) -> dict[str, Any]:
    """Losses and norms of a few steps, all of them measured, and the last one's gradients."""
    settings = Statistics(every=Amount(steps=1), gradients=False)
    mesh, told = engine.placement.mesh, {"losses": [], "norms": []}
    own = LANES // mesh.data.world
    for step in range(1, steps + 1):
        micros = []
        for lane in range(mesh.data.rank * own, (mesh.data.rank + 1) * own):
            x = torch.randn(2, 8, generator=torch.Generator().manual_seed(100 * step + lane))
            micros.append(MicroBatch({"x": x}, 2, 2 * lane, lane, 0, np.arange(2) + 2 * lane))
        engine.network_optimizers["model"].advance(8 * step)
        probe = Probe(settings, engine.network_optimizers, engine.placement)
        work = MinimizeInputs(step, 0, micros, {"samples": 8}, probe=probe)
        scalars = engine.minimize(("model",), _loss, work).read()
        told["losses"].append(scalars.losses["loss"])
        told["norms"].append(scalars.norms["model"])
    gradients = {f"networks/model/{name}": gradient for name, gradient in gradients_of(engine).items()}
    return told | {"gradients": whole(engine, gradients)}


def _loss(nets: Mapping[str, nn.Module], batch: dict[str, Tensor]) -> Tensor:
    model, x = nets["model"], batch["x"]
    if isinstance(model, Classifying):
        return nn.functional.cross_entropy(model(x).flatten(0, 1), x.abs().mul(2).long().clamp(max=3).flatten())
    beside = torch.zeros(())
    # Before the rest of the loss: of what comes later, the backward pass gives parameters up first.
    if isinstance(model, Penalized):
        beside = _slope(model, x)
    elif isinstance(model, PenalizedEncoding):
        beside = _slope(model.encode, x)
    elif isinstance(model, Encoding):
        beside = model.encode(x).square().mean()
    loss = (model(x) - x.sum(1)).square().mean() + beside
    if isinstance(model, Parted):
        loss = loss + model.blocks[0][0](x).square().mean()
    if isinstance(model, Decayed):
        loss = loss + sum(parameter.square().sum() for parameter in model.parameters())
    return loss


def _slope(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """A penalty on how steep a function is."""
    x = x.clone().requires_grad_()
    (slope,) = torch.autograd.grad(function(x).sum(), x, create_graph=True)
    return (slope.norm(dim=1) - 1).square().mean()


def odd(job, place, descriptors):
    """Train one of the networks on the mesh, or say why that cannot be."""
    group = joined(place, descriptors)
    torch.set_num_threads(1)
    sizes, kind, sequence = job["overrides"]
    mesh = Mesh(group, MeshSizes(**sizes))
    try:
        said(job, group, odd_steps(odd_engine(mesh, globals()[kind], sequence=sequence)))
    except Failure as failure:
        said(job, group, failure.outcome.to_json())
    group.close()
    return leave(job, place, end(0))
