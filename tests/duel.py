"""Two networks that train against each other, with dropout, and tasks whose step does what exact mode refuses."""

import torch

from golden.tasks import Duel
from guarded import Rows

__all__ = ["Counting", "Duel", "Rows", "Unordered"]


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
