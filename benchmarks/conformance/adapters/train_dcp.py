"""Plain torch: DDP and distributed checkpoints.

Checkpoints: https://docs.pytorch.org/tutorials/recipes/distributed_checkpoint_recipe.html (the AppState of that page).
Samples: https://docs.pytorch.org/docs/stable/data.html (DistributedSampler with set_epoch; batches before are skipped).
A generator of its own for the loader: https://docs.pytorch.org/docs/stable/notes/randomness.html
Beyond those pages, as careful users do: the random state is saved by rank, and only directories with `.metadata`,
which DCP writes last, count as checkpoints.
"""

import os
from itertools import islice
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import work
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.stateful import Stateful
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler


class AppState(Stateful):
    """All that a checkpoint holds."""

    def __init__(self, model, optimizer, schedule, place: str) -> None:
        self.model, self.optimizer, self.schedule, self.step = model, optimizer, schedule, 0
        self.place = place
        self.random = True

    def state_dict(self):
        model, optimizer = get_state_dict(self.model, self.optimizer)
        random = {self.place: torch.get_rng_state()} if self.random else {}
        schedule = self.schedule.state_dict()
        return {"model": model, "optimizer": optimizer, "schedule": schedule, "step": self.step, "random": random}

    def load_state_dict(self, state):
        set_state_dict(self.model, self.optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
        self.schedule.load_state_dict(state["schedule"])
        self.step = state["step"]
        if self.random:
            torch.set_rng_state(state["random"][self.place])


def newest() -> Path | None:
    found = [path.parent for path in work.RUN.glob("step-*/.metadata")]
    return max(found, key=lambda path: int(path.name.removeprefix("step-")), default=None)


def resume(app: AppState, path: Path) -> None:
    saved = dcp.FileSystemReader(path).read_metadata().state_dict_metadata
    app.random = f"app.random.{app.place}" in saved  # another number of processes: other random states
    dcp.load({"app": app}, checkpoint_id=path)
    app.random = True


def main() -> None:
    rank, world = 0, 1
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
        rank, world = dist.get_rank(), dist.get_world_size()
    witness, samples = work.Witness(), work.Samples()
    torch.manual_seed(work.SEED)
    bare = work.Model(witness)
    torch.manual_seed(work.SEED + rank)
    model = DistributedDataParallel(bare) if world > 1 else bare
    optimizer = work.optimizer_for(model)
    app = AppState(model, optimizer, work.schedule_for(optimizer), f"{world}-{rank}")
    if path := newest():
        resume(app, path)
    sampler = DistributedSampler(samples, world, rank, seed=work.SEED)
    loader = DataLoader(samples, work.BATCH // world, sampler=sampler, generator=torch.Generator().manual_seed(0))
    while app.step < work.STEPS:
        epoch, done = divmod(app.step, work.STEPS_PER_EPOCH)
        sampler.set_epoch(epoch)
        for batch in islice(loader, done, None):
            optimizer.zero_grad()
            model(**batch)["loss"].backward()
            optimizer.step()
            app.schedule.step()
            app.step += 1
            witness.step(app.step)
            if app.step % work.EVERY == 0:
                dcp.save({"app": app}, checkpoint_id=work.RUN / f"step-{app.step}")
    witness.done(bare)
    if world > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
