"""What test processes execute to see GaLore on sharded parameters beside whole ones."""

from __future__ import annotations

import json

from ranks import end, joined, leave


def sharded(job, place, descriptors):
    """Twenty steps with torch's `fully_shard` and without; by base and projection the weights' largest difference."""
    import torch
    from torch.distributed.device_mesh import init_device_mesh

    joined(place, descriptors)
    torch.set_num_threads(1)
    mesh = init_device_mesh("cpu", (int(place["world"]),))
    said = {}
    for base in ("adamw", "sgd"):
        for projection in ("std", "reverse_std", "full"):
            said[f"{base} {projection}"] = _difference(mesh, base, projection)
    return leave(job, place, end(0, json.dumps(said)))


def _difference(mesh, base, projection):
    import torch
    from torch.distributed.fsdp import fully_shard

    from drivetrain.optim.recipe import GaLore, ProjectedAdamW, ProjectedSGD

    bases = {"adamw": ProjectedAdamW(), "sgd": ProjectedSGD(momentum=0.9)}
    settings = GaLore(base=bases[base], projection=projection, rank=4, gap=9, weight_decay=0.1, refresh="subspace")
    whole, parts = _network(), _network()
    fully_shard(parts, mesh=mesh)
    optimizers = [_optimizer(network, settings) for network in (whole, parts)]
    for step in range(20):
        inputs = torch.randn(8, 15, generator=torch.Generator().manual_seed(step), dtype=torch.float64)
        for network, optimizer in zip((whole, parts), optimizers, strict=True):
            optimizer.zero_grad()
            (network(inputs) - inputs[:, :1]).square().mean().backward()
            optimizer.step()
    pairs = zip(whole.parameters(), parts.parameters(), strict=True)
    return max(float((a - b.full_tensor()).abs().max()) for a, b in pairs)


def _network():
    """Rows that two processes share evenly, and not; float64, so that only the order of sums differs."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(15, 24), nn.Tanh(), nn.Linear(24, 17), nn.Tanh(), nn.Linear(17, 3)).double()


def _optimizer(network, settings):
    from drivetrain.optim.recipe import Constant
    from drivetrain.optim.updater import build_updaters
    from drivetrain.spec.amount import Scale
    from drivetrain.spec.batches import Batches

    updater = build_updaters({"model": network}, settings, Constant(), 20, Scale(Batches(1)))["model"]
    updater.advance(1)
    return updater.optimizer
