"""Two networks that train against each other, with dropout, and a task whose step changes what it should not."""

import torch
from torch import nn

from drivetrain import Losses, Mean, Task
from guarded import Rows

__all__ = ["Counting", "Duel", "Rows", "Unordered"]


class Duel(Task):
    """A discriminator over rows and fakes, a generator, and a common loss over a unit of its own."""

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


class Counting(Duel):
    """A forward pass that counts its calls in a buffer."""

    def networks(self):
        networks = super().networks()
        networks["judge"].register_buffer("calls", torch.zeros(()))
        return networks

    def loss(self, nets, batch):
        nets["judge"].calls += 1
        return super().loss(nets, batch)


class Unordered(Duel):
    """A forward pass by an operation that has no fixed order."""

    def loss(self, nets, batch):
        torch.zeros(3).put_(torch.tensor([0, 0]), torch.ones(2), accumulate=False)
        return super().loss(nets, batch)
