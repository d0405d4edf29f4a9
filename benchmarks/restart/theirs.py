"""The same training by plain torch under torchrun: DDP, torch.save by rank 0 every few steps, resumed from the file."""

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn


def main(folder: Path, seconds: float, every: int) -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.default_generator.manual_seed(0)
    model = nn.parallel.DistributedDataParallel(nn.Linear(64, 64))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    step, path = 0, folder / "checkpoint.pt"
    if path.exists():
        state = torch.load(path, weights_only=True)
        model.module.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        step = state["step"]
    with (folder / "steps").open("a", buffering=1) as log:
        while True:
            ids = [(step * 8 + rank * (8 // world) + n) % 10_000 for n in range(8 // world)]
            batch = torch.stack([torch.full((64,), i / 10_000) for i in ids])
            time.sleep(seconds)
            optimizer.zero_grad()
            model(batch).square().mean().backward()
            optimizer.step()
            step += 1
            if rank == 0:
                log.write(f"{time.time()} {step}\n")
                if step % every == 0:
                    state = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
                    torch.save(state, path.with_suffix(".tmp"))
                    os.replace(path.with_suffix(".tmp"), path)


if __name__ == "__main__":
    main(Path(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]))
