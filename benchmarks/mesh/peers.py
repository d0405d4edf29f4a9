"""The same training under FSDP2, by hand and by Accelerate, and saves and loads by torch's distributed checkpoint."""

import os
import shutil
import time
from concurrent.futures import Future
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard

from drivetrain.tasks.language_model.llama import Llama
from drivetrain.tasks.language_model.recipe import Llama as Settings

LR, DECAY, CLIP = 1e-3, 0.1, 1.0


def mesh_of(device: torch.device) -> DeviceMesh:
    """All processes along one axis, by the collectives that this kind of device has: the default group's are gloo's."""
    backend = dist.get_default_backend_for_device(device)
    shape, names = (dist.get_world_size(),), ("shard",)
    return init_device_mesh(device.type, shape, mesh_dim_names=names, backend_override={"shard": backend})


def optimizer_for(model: nn.Module) -> torch.optim.Optimizer:
    """Fused AdamW, the same for all."""
    return torch.optim.AdamW(model.parameters(), lr=LR, weight_decay=DECAY, fused=True)


def loss_of(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    """Mean cross-entropy of the tokens here; all ranks have as many."""
    logits = model(batch["tokens"])
    return nn.functional.cross_entropy(logits.flatten(0, 1), batch["targets"].flatten())


class ByHand:
    """https://docs.pytorch.org/tutorials/intermediate/FSDP_tutorial.html: fully_shard for each block and the root, an
    optimizer on DTensors, torch's own clipping."""

    def __init__(self, settings: Settings, device: torch.device) -> None:
        torch.manual_seed(0)
        mesh = mesh_of(device)
        self.model = Llama(settings).to(device)
        for layer in self.model.layers:
            fully_shard(layer, mesh=mesh)
        fully_shard(self.model, mesh=mesh)
        self.optimizer = optimizer_for(self.model)

    def step(self, batch: dict[str, Tensor]) -> Tensor:
        loss = loss_of(self.model, batch)
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), CLIP)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.detach()


class Accelerated:
    """https://huggingface.co/docs/accelerate/usage_guides/fsdp, with fsdp_version 2 and blocks wrapped by class.

    Accelerate takes FSDP on devices only; its state is told here that this is FSDP, after which all runs its own code.
    So it is measured on the CPU alone: on a device it wants the default group to be the device's, which here is gloo.
    """

    def __init__(self, settings: Settings, device: torch.device) -> None:
        from accelerate import Accelerator, FullyShardedDataParallelPlugin
        from accelerate.utils import DistributedType

        assert device.type == "cpu", "`run.py` asks for it there alone"
        rank, world = str(dist.get_rank()), str(dist.get_world_size())
        os.environ.update(RANK=rank, LOCAL_RANK=rank, WORLD_SIZE=world, LOCAL_WORLD_SIZE=world)
        os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
        threads = torch.get_num_threads()
        self.framework = Accelerator(cpu=True)
        torch.set_num_threads(threads)
        plugin = FullyShardedDataParallelPlugin(
            fsdp_version=2, auto_wrap_policy="transformer_based_wrap", transformer_cls_names_to_wrap=["Layer"]
        )
        shared = self.framework.state._shared_state
        shared["distributed_type"], shared["fsdp_plugin"] = DistributedType.FSDP, plugin
        torch.manual_seed(0)
        model = Llama(settings)
        self.model, self.optimizer = self.framework.prepare(model, optimizer_for(model))
        blocks = [isinstance(layer, FSDPModule) for layer in self.model.layers]
        assert all(blocks), "Accelerate has not sharded the model block by block"

    def step(self, batch: dict[str, Tensor]) -> Tensor:
        loss = loss_of(self.model, batch)
        self.framework.backward(loss)
        self.framework.clip_grad_norm_(self.model.parameters(), CLIP)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.detach()


STEPS = {"by hand": ByHand, "accelerate": Accelerated}


class Saves:
    """torch.distributed.checkpoint for a model and its optimizer; each save makes the one before it needless."""

    def __init__(self, trained: ByHand, folder: Path) -> None:
        self.model, self.optimizer, self.folder = trained.model, trained.optimizer, folder
        self.group = dist.new_group(backend="gloo")  # what runs beside training must not take training's messages
        self.count = 0

    def state(self) -> dict[str, object]:
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer}

    def sync(self) -> None:
        dcp.save(self.state(), checkpoint_id=self._next(), process_group=self.group)

    def beside(self) -> "Future[float]":
        """When it is there, by the clock."""
        saving = dcp.async_save(self.state(), checkpoint_id=self._next(), process_group=self.group)
        done: Future[float] = Future()
        saving.add_done_callback(lambda _: done.set_result(time.perf_counter()))
        return done

    def load(self) -> None:
        state = self.state()
        dcp.load(state, checkpoint_id=self._path(self.count), process_group=self.group)
        set_state_dict(
            self.model,
            self.optimizer,
            model_state_dict=state["model"],
            optim_state_dict=state["optimizer"],
        )

    def _next(self) -> Path:
        if dist.get_rank() == 0:
            shutil.rmtree(self._path(self.count - 1), ignore_errors=True)
        self.count += 1
        return self._path(self.count)

    def _path(self, count: int) -> Path:
        return self.folder / f"dcp-{count}"
