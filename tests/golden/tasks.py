"""What golden runs train. It is part of what is recorded: a run that needs something else gets a class of its own."""

import os
import signal
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from drivetrain import Losses, Mean, Task


class Rows:
    """240 vectors, each with the number of its sample in front. Their bits are the same on every machine."""

    def __init__(self, first: int = 0):
        self.first = first

    def __len__(self):
        return 240

    def __getitem__(self, index):
        number = self.first + index
        return torch.tensor([number, *(((number * 37 + place * 29) ** 2 % 97) / 48 - 1 for place in range(4))])


class Fit(Task):
    """Regression with dropout. The loss of samples in `nan` is no number."""

    def __init__(self, nan: list = ()):
        self.nan = nan

    def networks(self):
        return {"model": nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.2), nn.Linear(8, 1))}

    def loss(self, nets, batch):
        rows = batch[:, 1:]
        if nets["model"].training and torch.isin(batch[:, 0], torch.tensor(self.nan, dtype=batch.dtype)).any():
            rows = rows * float("nan")
        return (nets["model"](rows).squeeze(1) - rows.sum(1)).square().mean()

    def metrics(self):
        return {"loss": Mean()}


class Dying(Fit):
    """The last rank is ended by SIGKILL at the beginning of step `at`, where there is no file `died` yet."""

    def __init__(self, at: int, died: str):
        super().__init__()
        self.at, self.died = at, Path(died)

    def update(self, step):
        last = dist.get_rank() == dist.get_world_size() - 1
        if step.index == self.at and last and not self.died.exists():
            self.died.touch()
            time.sleep(0.5)  # what the others wait for of the step before has left this process by then
            os.kill(os.getpid(), signal.SIGKILL)
        super().update(step)


class Waiting(Fit):
    """In each step of `steps` the first rank waits for the file FOLDER/STEP-go, and says so by FOLDER/STEP-here."""

    def __init__(self, steps: list, folder: str):
        super().__init__()
        self.steps, self.folder = steps, Path(folder)

    def update(self, step):
        if step.index in self.steps and (not dist.is_initialized() or dist.get_rank() == 0):
            (self.folder / f"{step.index}-here").touch()
            while not (self.folder / f"{step.index}-go").exists():
                time.sleep(0.02)
        super().update(step)


class Duel(Task):
    """Two networks against each other, with dropout, a common loss in every third step, and a unit of their own."""

    def networks(self):
        generator = nn.Sequential(nn.Linear(4, 16), nn.GELU(), nn.Dropout(0.3), nn.Linear(16, 4))
        judge = nn.Sequential(nn.Linear(4, 16), nn.GELU(), nn.Dropout(0.3), nn.Linear(16, 1))
        return {"generator": generator, "judge": judge}

    def counts(self, batch):
        return {"odd": int((batch[:, 0] % 2).sum())}

    def update(self, step):
        def judged(nets, batch):
            fakes = nets["generator"](torch.randn(len(batch), 4))
            step.cache["fakes"] = fakes
            gap = nets["judge"](fakes.detach()) - nets["judge"](batch[:, 1:])
            odd = (nets["judge"](batch[:, 1:]).squeeze(1) * (batch[:, 0] % 2)).square().sum()
            return Losses(gap=(gap.sigmoid().sum(),), odd=(odd, "odd", 0.1))

        def made(nets, batch):
            fakes = nets["generator"](batch[:, 1:]) + step.cache["fakes"]
            return -nets["judge"](fakes).sigmoid().mean()

        step.minimize("judge", judged)
        step.minimize("generator", made)
        if step.index % 3 == 0:
            step.minimize(("generator", "judge"), self.loss)

    def loss(self, nets, batch):
        return (nets["judge"](nets["generator"](batch[:, 1:])) - 1).square().mean()

    def metrics(self):
        return {"loss": Mean()}
