"""Gradients of lanes that are known beforehand, and what a tree of plain additions makes of them."""

import torch
from torch import nn

from drivetrain.engine.losses import Losses
from drivetrain.engine.step_result import Sums

CPU = torch.device("cpu")


def tree_sum(leaves):
    """Neighbours are added until one is left; there are a power of two."""
    while len(leaves) > 1:
        leaves = [left + right for left, right in zip(leaves[::2], leaves[1::2], strict=True)]
    return leaves[0]


class Lanes:
    """Some parameters, and `micros[lane]` micro-batches of each lane, whose gradients differ widely in size.

    No loss reaches the last parameter.
    """

    def __init__(self, lanes, micros):
        self.lanes = lanes
        self.micros = micros
        self.parameters = [nn.Parameter(torch.zeros(n)) for n in (700, 33, 1, 1500, 7)]

    def gradients(self, step, lane, part):
        """Of all parameters but the last, and a loss."""
        generator = torch.Generator().manual_seed(step * 10007 + lane * 101 + part)
        flat = [torch.randn(p.numel(), generator=generator) for p in self.parameters[:-1]]
        return [g * 10 ** (torch.rand(g.shape, generator=generator) * 8) for g in flat], float(flat[1][0])

    def expected(self, step):
        """Gradients and loss of a whole step, by plain additions."""
        leaves, losses = [], []
        for lane in range(self.lanes):
            leaf, loss = [torch.zeros(p.shape) for p in self.parameters], 0.0
            for part in range(self.micros[lane]):
                gradients, value = self.gradients(step, lane, part)
                leaf = [old + new for old, new in zip(leaf, [*gradients, torch.zeros(7)], strict=True)]
                loss += value
            leaves.append(leaf)
            losses.append(loss)
        return [tree_sum(list(branch)) for branch in zip(*leaves, strict=True)], tree_sum(losses)

    def step(self, reduction, lanes_here, step):
        """Make a step; whether its gradients and its loss are the expected ones, bit for bit."""
        sums, order = Sums(CPU), [(lane, part) for lane in lanes_here for part in range(self.micros[lane])]
        reduction.reset()
        for place, (lane, part) in enumerate(order):
            gradients, loss = self.gradients(step, lane, part)
            reduction.enter(lane, sums)
            sums.add(Losses(loss=(torch.tensor(loss, dtype=torch.float64),)))
            if place == len(order) - 1:
                reduction.arm(sums)
            sum((p * g).sum() for p, g in zip(self.parameters, gradients, strict=False)).backward()
        reduction.finish(sums)
        wanted, loss = self.expected(step)
        same = all(torch.equal(p.grad, want) for p, want in zip(self.parameters, wanted, strict=True))
        return same and sums.values[0] == loss
