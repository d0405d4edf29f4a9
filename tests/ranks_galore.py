"""What test processes execute to see GaLore on sharded parameters beside whole ones."""

from __future__ import annotations

import json
from pathlib import Path

from ranks import end, joined, leave

STEPS = 21
CASES = [
    *(("adamw", projection) for projection in ("std", "reverse_std", "full")),
    *(("adamw8bit", projection) for projection in ("std", "left")),
    ("sgd", "full"),
]


def sharded(job, place, descriptors):
    """Training with torch's `fully_shard`, and from shards to whole parameters and back, beside training without; by
    base and projection the weights' largest differences at the end. And what is said where shards cannot be."""
    import torch

    mesh = _mesh(place, descriptors)
    file = Path(job["folder"]) / "state.pt"
    differences = {}
    for base, projection in CASES:
        settings = _settings(base, projection)
        whole = _begun(settings)
        _train(*whole, 0, STEPS)
        parts = _begun(settings, mesh)
        _train(*parts, 0, STEPS // 3)
        _save(*parts, file)
        _train(*parts, STEPS // 3, STEPS)
        if place["rank"] == 0:
            alone = _loaded(settings, file)
            _train(*alone, STEPS // 3, 2 * STEPS // 3)
            _save(*alone, file)
        torch.distributed.barrier()
        back = _loaded(settings, file, mesh)
        _train(*back, 2 * STEPS // 3, STEPS)
        differences[f"{base} {projection}"] = [_difference(whole[0], network) for network in (parts[0], back[0])]
    return leave(job, place, end(0, json.dumps([differences, _refused(mesh)])))


def _refused(mesh):
    """What optimizers say to shards that they cannot move apart."""
    from drivetrain.optim.lowbit import LowBit
    from drivetrain.optim.recipe import AdamW
    from drivetrain.spec.exits import Failure

    said = []
    for settings in (_settings("adafactor", "std"), _settings("adamw8bit", "std", rank=12)):
        try:
            _begun(settings, mesh)
        except Failure as failure:
            said.append(failure.outcome.to_json())
    try:
        LowBit(_begun(AdamW(), mesh)[1].param_groups, make=lambda groups: None)
    except Failure as failure:
        said.append(failure.outcome.to_json())
    return said


def _mesh(place, descriptors):
    import torch
    from torch.distributed.device_mesh import init_device_mesh

    from drivetrain.optim.bases import AdamW8bit

    joined(place, descriptors)
    torch.set_num_threads(1)
    AdamW8bit.LEAST = 512  # so that matrices as small as these are quantized
    return init_device_mesh("cpu", (int(place["world"]),))


def _settings(base, projection, rank=8):
    from drivetrain.optim.recipe import (
        GaLore,
        ProjectedAdafactor,
        ProjectedAdamW,
        ProjectedAdamW8bit,
        ProjectedSGD,
    )

    bases = {
        "adamw": ProjectedAdamW(),
        "adamw8bit": ProjectedAdamW8bit(),
        "adafactor": ProjectedAdafactor(),
        "sgd": ProjectedSGD(momentum=0.9),
    }
    return GaLore(base=bases[base], projection=projection, rank=rank, gap=9, weight_decay=0.1)


def _begun(settings, mesh=None):
    """A network and its optimizer. Rows that two processes share evenly, and, where no base minds, not; float64, so
    that only the order of sums differs."""
    import torch
    from torch import nn
    from torch.distributed.fsdp import fully_shard

    from drivetrain.optim.network_optimizer import build_network_optimizers
    from drivetrain.optim.recipe import Constant
    from drivetrain.optim.schedules import Horizon
    from drivetrain.spec.amount import Scale
    from drivetrain.spec.batches import Batches

    torch.manual_seed(0)
    middle = 17 if getattr(settings, "base", None) is None or "8" not in settings.base.kind else 64
    layers = nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, middle), nn.Tanh(), nn.Linear(middle, 3)
    network = nn.Sequential(*layers).double()
    if mesh is not None:
        fully_shard(network, mesh=mesh)
    network_optimizer = build_network_optimizers(
        {"model": network}, settings, Constant(), Horizon(STEPS, Scale(Batches(1)))
    )["model"]
    network_optimizer.advance(1)
    return network, network_optimizer.optimizer


def _train(network, optimizer, first, last):
    import torch

    for step in range(first, last):
        inputs = torch.randn(32, 16, generator=torch.Generator().manual_seed(step), dtype=torch.float64)
        optimizer.zero_grad()
        (network(inputs) - inputs[:, :1]).square().mean().backward()
        optimizer.step()


def _save(network, optimizer, file):
    """The whole state, by torch's own means."""
    import torch
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict

    state = get_state_dict(network, optimizer, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    if state[0]:  # on rank 0 only
        torch.save(state, file)


def _loaded(settings, file, mesh=None):
    """The state in a file in a new network and its optimizer."""
    import torch
    from torch.distributed.checkpoint.state_dict import StateDictOptions, set_state_dict

    network, optimizer = _begun(settings, mesh)
    model, state = torch.load(file, weights_only=True)
    options = StateDictOptions(full_state_dict=True)
    set_state_dict(network, optimizer, model_state_dict=model, optim_state_dict=state, options=options)
    return network, optimizer


def _difference(whole, parts):
    pairs = zip(whole.parameters(), parts.parameters(), strict=True)
    return max(float((a - b.full_tensor()).detach().abs().max()) for a, b in pairs)
