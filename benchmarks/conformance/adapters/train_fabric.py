"""Lightning Fabric.

Checkpoints: https://lightning.ai/docs/fabric/stable/guide/checkpoint/checkpoint.html (a dictionary of state,
fabric.save, fabric.load). Samples: https://lightning.ai/docs/fabric/stable/api/fabric_methods.html (setup_dataloaders;
Fabric calls set_epoch itself). The sampler is a DistributedSampler on one process too, so that the order is seeded;
batches before are skipped.
Beyond those pages, as careful users do: the random states of all ranks are saved, and the loader has a generator.
"""

from itertools import islice
from pathlib import Path

import torch
import work
from lightning.fabric import Fabric
from torch.utils.data import DataLoader, DistributedSampler


def newest() -> Path | None:
    found = work.RUN.glob("step-*.ckpt")
    return max(found, key=lambda path: int(path.stem.removeprefix("step-")), default=None)


def main() -> None:
    fabric = Fabric()  # accelerator, strategy and devices come from `fabric run`
    rank, world = fabric.global_rank, fabric.world_size
    witness, samples = work.Witness(), work.Samples()
    fabric.seed_everything(work.SEED, verbose=False)
    bare = work.Model(witness)
    torch.manual_seed(work.SEED + rank)
    model, optimizer = fabric.setup(bare, work.optimizer_for(bare))
    schedule = work.schedule_for(optimizer)
    sampler = DistributedSampler(samples, world, rank, seed=work.SEED)
    plain = DataLoader(samples, work.BATCH // world, sampler=sampler, generator=torch.Generator().manual_seed(0))
    loader = fabric.setup_dataloaders(plain, use_distributed_sampler=False)
    state = {"model": model, "optimizer": optimizer, "schedule": schedule, "step": 0, "random": None}
    if path := newest():
        fabric.load(path, state)
        if len(state["random"]) == world:
            torch.set_rng_state(state["random"][rank].clone())  # torch 2.13 crashes on a view
    while state["step"] < work.STEPS:
        done = state["step"] % work.STEPS_PER_EPOCH
        for batch in islice(loader, done, None):
            optimizer.zero_grad()
            fabric.backward(model(**batch)["loss"])
            optimizer.step()
            schedule.step()
            state["step"] += 1
            witness.step(state["step"])
            if state["step"] % work.EVERY == 0:
                random = fabric.all_gather(torch.get_rng_state())
                state["random"] = random.reshape(world, -1)
                fabric.save(work.RUN / f"step-{state['step']}.ckpt", state)
    witness.done(bare)


if __name__ == "__main__":
    main()
