"""How much memory a mesh takes while networks are built, and while a commit is made beside training.

`python benchmarks/mesh_memory.py [--processes 4] [--width 1024] [--depth 12]`. The shipped decoder, sharded, in a
process for each rank. Told are the most bytes of tensors that live at a time while networks are built, the most
resident memory (VmHWM) while a commit is made, less what there was before, and what a rank holds of model and state.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
import weakref
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

MB = 1_000_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--depth", type=int, default=12)
    asked = parser.parse_args()
    if "MESH_MEMORY" in os.environ:
        print(json.dumps(measured(asked.width, asked.depth, Path(os.environ["MESH_MEMORY"]))))
        return
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    world = {"WORLD_SIZE": str(asked.processes), "LOCAL_WORLD_SIZE": str(asked.processes), "OMP_NUM_THREADS": "1"}
    world |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    with tempfile.TemporaryDirectory() as folder:
        line = [sys.executable, __file__, "--width", str(asked.width), "--depth", str(asked.depth)]
        ranks = []
        for rank in range(asked.processes):
            own = {"RANK": str(rank), "LOCAL_RANK": str(rank), "MESH_MEMORY": folder}
            ranks.append(subprocess.Popen(line, env=os.environ | world | own, stdout=subprocess.PIPE))
        told = [json.loads(rank.communicate()[0]) for rank in ranks]
    whole = told[0]["whole"]
    print(f"model {whole:.0f} MB, largest tensor {told[0]['largest']:.0f} MB, shard {asked.processes}")
    print(f"{'rank':<6}{'holds':>8}{'build':>16}{'snapshot':>10}{'commit':>16}   MB (of the whole model)")
    for rank, one in enumerate(told):
        shares = {name: f"{one[name]:.0f} ({one[name] / whole:.2f})" for name in ("build", "commit")}
        print(f"{rank:<6}{one['holds']:>8.0f}{shares['build']:>16}{one['state']:>10.0f}{shares['commit']:>16}")


def measured(width: int, depth: int, folder: Path) -> dict[str, float]:
    """One process of the mesh: it builds, makes optimizer state, and commits."""
    from drivetrain.optim.network_optimizer import build_network_optimizers
    from drivetrain.optim.schedules import Horizon
    from drivetrain.run.build import build_on_mesh
    from drivetrain.runtime.group import Group
    from drivetrain.runtime.mesh import Mesh
    from drivetrain.runtime.place import from_environment
    from drivetrain.spec.amount import Scale
    from drivetrain.spec.batches import Batches
    from drivetrain.spec.load import load
    from drivetrain.spec.mesh import MeshSizes
    from drivetrain.tasks.language_model.task import LanguageModelTask

    place = from_environment(os.environ)
    assert place is not None
    group = Group.join(place, torch.device("cpu"))
    model = f"task.model={{kind: llama, width: {width}, depth: {depth}, heads: 16, context: 64}}"
    recipe = load("quickstart", [model, f"launch.processes={place.world}", "parallel.shard=auto"]).recipe
    task, mesh = LanguageModelTask(recipe.task), Mesh(group, MeshSizes(shard=place.world))
    group.barrier()
    with LiveBytes() as build:
        networks, placement = build_on_mesh(task, recipe, mesh)
    horizon = Horizon(1000, Scale(Batches(8)))
    made = build_network_optimizers(networks, recipe.optimizer, recipe.schedule, horizon, parts=placement.parts)
    optimizers = {name: one.optimizer for name, one in made.items()}
    for held in placement.held.values():
        held.here.grad = torch.zeros_like(held.here)
    for optimizer in optimizers.values():
        optimizer.step()
        optimizer.zero_grad()
    group.barrier()
    with ResidentPeak() as commit:
        state = committed(folder, networks, optimizers, placement.knowing(optimizers))
    sizes = [4 * prod(held.box.whole) / MB for held in placement.held.values()]
    parts = sum(held.here.nbytes for held in placement.held.values()) / MB
    told = {"whole": sum(sizes), "largest": max(sizes), "holds": parts, "state": state}
    group.close()
    return told | {"build": build.megabytes, "commit": commit.megabytes}


def committed(folder: Path, networks: Any, optimizers: Any, placement: Any) -> float:
    """Commit in parts, beside training, as the loop does; MB of what this rank writes."""
    from drivetrain.checkpoint.commit import StateTree
    from drivetrain.checkpoint.commits import Committer
    from drivetrain.checkpoint.retention import Retention
    from drivetrain.checkpoint.state import capture

    group = placement.group
    counted = placement.counted(capture(networks, optimizers))
    writer = Committer(folder, None, Retention(1), rank=group.rank, in_parts=True)
    writer.prepare(counted)
    where = group.broadcast_json(writer.next_folder(1))
    writer.begin(1, StateTree(counted, {}, placement.boxes(counted)), {"position": 0}, where)
    while writer.busy(1.0):
        pass
    parts = group.gather_json(writer.part())
    if group.leader:
        writer.seal(parts)
        writer.wait()
    else:
        writer.drop()
    writer.close()
    group.barrier()
    return sum(tensor.nbytes for tensor in counted.values()) / MB


class LiveBytes(TorchDispatchMode):
    """The most bytes of tensors that were made while entered and live at a time, in MB. Not resident memory, of which
    the C library keeps what was freed."""

    def __init__(self) -> None:
        super().__init__()
        self.megabytes = 0.0
        self._seen: dict[int, weakref.ref] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(made):
            if isinstance(leaf, torch.Tensor) and leaf.device.type == "cpu":
                local = getattr(leaf, "_local_tensor", leaf)
                self._seen[local.untyped_storage()._cdata] = weakref.ref(local)
        there = [one for one in (seen() for seen in self._seen.values()) if one is not None]
        sizes = {one.untyped_storage()._cdata: one.untyped_storage().nbytes() for one in there}
        self.megabytes = max(self.megabytes, sum(sizes.values()) / MB)
        return made


class ResidentPeak:
    """The most resident memory while entered, beyond what there was before, in MB."""

    def __enter__(self) -> ResidentPeak:
        Path("/proc/self/clear_refs").write_text("5")
        self._before = _status("VmRSS")
        return self

    def __exit__(self, *_: object) -> None:
        self.megabytes = (_status("VmHWM") - self._before) / MB


def _status(name: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name):
            return int(line.split()[1]) * 1024
    raise ValueError(name)


if __name__ == "__main__":
    main()
