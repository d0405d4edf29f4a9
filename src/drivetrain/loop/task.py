"""The task interface: what is trained. A task knows no device, no rank and no file."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from drivetrain.engine.losses import Losses, as_losses
from drivetrain.loop.metrics import Mean, Metric

if TYPE_CHECKING:
    from drivetrain.loop.gallery import Gallery
    from drivetrain.loop.step import Step

Batch = Any
"""Any nesting of dicts, lists and tuples of tensors, samples along the first dimension of each tensor."""


class Task:
    """Base of every task; `networks` and `loss` are all that must be written.

    A recipe names a task by `kind: package.module:Name`; the other keys of its `task:` are the constructor's arguments.
    """

    shown: int | None = None
    """How many of the first validation samples `show` gets; None: as many as are scored at a time."""

    def networks(self) -> dict[str, nn.Module]:
        """The networks by name, on the CPU, with initial weights drawn from torch's default generator."""
        raise NotImplementedError(f"{type(self).__name__}.networks")

    def collate(self, samples: Sequence[Any]) -> Batch:
        """A batch from samples. Token sources give an integer array [samples, context + 1], others a list."""
        return torch.utils.data.default_collate(list(samples))

    def counts(self, batch: Batch) -> dict[str, int]:
        """How many of each unit a loss is averaged over; "samples" is known without being given."""
        return {}

    def loss(self, nets: Mapping[str, nn.Module], batch: Batch) -> Tensor | Losses:
        """A 0-d tensor, the mean over the batch's samples; or `Losses`, named sums with their units."""
        raise NotImplementedError(f"{type(self).__name__}.loss")

    def update(self, step: Step) -> None:
        """Who moves in a step, in which order; by default every network, together, by `loss`."""
        step.minimize(step.networks, self.loss)

    def metrics(self) -> dict[str, Metric]:
        """Fresh metrics for one evaluation of one validation set."""
        return {"loss": Mean()}

    def evaluate(self, nets: Mapping[str, nn.Module], batch: Batch, metrics: Mapping[str, Any]) -> None:
        """Add one batch to the metrics; by default each loss to the metric of its name."""
        counts = {"samples": sample_count(batch)} | self.counts(batch)
        for name, term in as_losses(self.loss(nets, batch), counts["samples"]).items():
            if name in metrics:
                metrics[name].add(float(term.value) * term.times, counts[term.over])

    def show(self, nets: Mapping[str, nn.Module], batch: Batch, gallery: Gallery) -> None:
        """Put something worth looking at into the gallery; called on rank 0 after an evaluation, in evaluation mode."""

    def flops_per_sample(self) -> float | None:
        """Model FLOPs of one sample, forward and backward, without what is computed again; None where not known."""
        return None

    def layout(self, network: str) -> Callable[[Mapping[str, Tensor]], tuple[dict[str, Tensor], dict]] | None:
        """How a network is exported for others: a function from its tensors to renamed tensors and a `config.json`."""
        return None


def sample_count(batch: Batch) -> int:
    """How many samples a batch holds: the first dimension of its first tensor."""
    for leaf in tree_leaves(batch):
        if isinstance(leaf, Tensor) and leaf.ndim:
            return leaf.shape[0]
    raise TypeError(f"no tensor with a dimension in a batch of type {type(batch).__name__}")
