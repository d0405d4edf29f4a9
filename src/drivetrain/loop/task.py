"""The task interface: what is trained. A task knows no device, no rank and no file."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from drivetrain.data.batch_reader import counted
from drivetrain.engine.losses import Losses, as_losses
from drivetrain.engine.parallel_plan import ParallelPlan
from drivetrain.engine.tables.module import Ids
from drivetrain.loop.metrics import LossMeans, Mean
from drivetrain.runtime.mistakes import returned
from drivetrain.spec.exits import Exit, Failure
from drivetrain.spec.given import Recorded

if TYPE_CHECKING:
    from drivetrain.checkpoint.export import Exported
    from drivetrain.data.source import Source
    from drivetrain.loop.gallery import Gallery
    from drivetrain.loop.sampling import Sampling
    from drivetrain.loop.step import Step

Batch = Any
"""Any nesting of dicts, lists and tuples of tensors, samples along the first dimension of each tensor."""
Part = Literal["train", "validation", "test", "predict"]
"""What a source is for; `predict`: a new file that `drivetrain predict` was given."""


class Task(Recorded):
    """Base of every task; `networks` and `loss` are all that must be written.

    A recipe names a task by `kind: package.module:Name`; the other keys of its `task:` are the constructor's arguments.
    """

    shown: int | None = None
    """How many of the first samples `show` gets; None: as many as are scored at a time."""

    scores_parts: bool = False
    """Whether what `evaluate` gives metrics adds up over parts of samples. Where processes share positions (key
    `parallel.context`) each then scores those that it has, as in training; else all score whole samples."""

    build_on_meta: bool = False
    """Whether `networks` is called with torch's meta device as the default, which gives tensors without memory. Each
    network then has `fill(name, tensor)`, which puts the initial numbers into one whole parameter or buffer, drawn from
    the default generator: it was seeded for that name. So no process ever holds all of a network that is sharded."""
    notes: Sequence[str] = ()
    """Lines on how the networks were made, for the ledger; read once `networks` was called."""
    code_files: Sequence[str] = ()
    """Files that count as code, such as a tokenizer or an architecture: a change of one makes another run. Literals:
    names beside the module; `"{argument}"` is the file that this argument of the recipe names. Folders count whole."""
    learned: Mapping[str, Any] = MappingProxyType({})
    """What was found in the data that the networks depend on, as JSON data: every commit keeps it."""

    def recall(self, learned: Mapping[str, Any]) -> None:
        """`learned` of the start that wrote a commit; called before anything else where that commit is used."""

    def prepare(self, source: Source, part: Part, *, by_length: bool = False) -> Source:
        """A source as `collate` wants it; by default as it is. Training sources come first, all before `networks`.

        `by_length`: its samples should be numbered by how long they are, and it have an attribute `by_length` of True.
        """
        return source

    def networks(self) -> Mapping[str, nn.Module]:
        """The networks by name, on the CPU, with initial weights drawn from torch's default generator; or without
        memory (`build_on_meta`)."""
        raise _unwritten(self, "networks")

    def collate(self, samples: Sequence[Any]) -> Batch:
        """A batch from samples. Token sources give an integer array [samples, context + 1], others a list."""
        return torch.utils.data.default_collate(list(samples))

    def counts(self, batch: Batch) -> dict[str, int]:
        """How many of each unit a loss is averaged over; "samples" is known without being given."""
        return {}

    def lookups(self, batch: Batch) -> Mapping[str, Ids]:
        """What each network with `Embeddings` looks up of a batch, by network; nobody else has to say it."""
        return {}

    def loss(self, nets: Mapping[str, nn.Module], batch: Batch) -> Tensor | Losses:
        """A 0-d tensor, the mean over the batch's samples; or `Losses`, named sums with their units. By default what
        `loss_from` makes of the one network's output."""
        if type(self).loss_from is Task.loss_from:
            raise _unwritten(self, "loss")
        (network,) = nets.values()
        return self.loss_from(network(*self.inputs(batch)), batch)

    def inputs(self, batch: Batch) -> tuple[Any, ...]:
        """What the one network is called with. Written in place of `loss`, with `loss_from`, where the network's layers
        are to lie on stages (key `parallel.pipeline`)."""
        raise _unwritten(self, "inputs")

    def loss_from(self, output: Any, batch: Batch) -> Tensor | Losses:
        """The loss of a batch, as `loss` gives it, of what the network has made of its `inputs`."""
        raise _unwritten(self, "loss_from")

    def update(self, step: Step) -> None:
        """Who moves in a step, in which order; by default every network, together, by `loss`."""
        step.minimize(step.networks, self.loss)

    def metrics(self) -> dict[str, Any]:
        """Fresh metrics for one evaluation of one validation set, each a `Metric` or one of torchmetrics'; by default
        one for each loss."""
        return LossMeans(loss=Mean())

    def evaluate(
        self, nets: Mapping[str, nn.Module], batch: Batch, metrics: Mapping[str, Any]
    ) -> tuple[Any, ...] | None:
        """Add one batch to the metrics; by default each loss to the metric of its name.

        What the recipe's own metrics (`evaluate.metrics`) are updated with is returned: the arguments of `update`, such
        as (predictions, labels); () where this batch has none. Nothing, as here: such metrics are refused.
        """
        counts = counted(sample_count(batch, self.collate), batch, self.counts)
        losses = as_losses(self.loss(nets, batch), counts["samples"], counts, self.loss)
        if isinstance(metrics, LossMeans):
            metrics.know(losses)
        for name, term in losses.items():
            if name in metrics:
                metrics[name].add(float(term.value) * term.times, counts[term.over])

    def show(self, nets: Mapping[str, nn.Module], batch: Batch, gallery: Gallery) -> None:
        """Put something worth looking at into the gallery; called on rank 0 after an evaluation or as `evaluate.show`
        says, in evaluation mode. The batch are validation samples or, without a validation set, training samples."""

    def predict(self, nets: Mapping[str, nn.Module], batch: Batch) -> list[dict[str, Any]]:
        """What is predicted of each sample, as JSON data, in evaluation mode."""
        raise NotImplementedError(f"{type(self).__name__}.predict")

    def generate(self, nets: Mapping[str, nn.Module], prompt: str, how: Sampling) -> dict[str, Any]:
        """How the networks go on from a prompt, as JSON data: `text`, without the prompt, and what else there is to
        say. In evaluation mode; torch's default generators are seeded for this prompt."""
        raise NotImplementedError(f"{type(self).__name__}.generate")

    def parallel_plan(self, name: str, network: nn.Module) -> ParallelPlan | None:
        """How a network is laid out over a mesh (key `parallel`); None: its repeated blocks are sharded one by one."""
        return None

    def flops_per_sample(self) -> float | None:
        """Model FLOPs of one sample, forward and backward, without what is computed again; None where not known."""
        return None

    def layout(
        self, network: str
    ) -> Callable[[Mapping[str, Tensor]], Exported | list[Exported] | tuple[dict[str, Tensor], dict]] | None:
        """How a network is exported for others: a function from its tensors to renamed tensors and a `config.json`, or
        to an `Exported`, which says more, or to a list of these."""
        return None

    def published_layout(self, network: str) -> Callable[[Mapping[str, Tensor]], dict[str, Tensor]] | None:
        """The way back, for `init`: a function from the tensors of an export, or of what others publish in that layout,
        to those of the network, by their names in it. None: they are called alike."""
        return None


def _unwritten(task: Task, method: str) -> Failure:
    return Failure(Exit.BAD_RECIPE, f"task: {type(task).__name__} has no method {method!r}", "write one")


def sample_count(batch: Batch, collate: Callable[..., Any]) -> int:
    """How many samples a batch holds: the first dimension of its first tensor. Raises Failure(70), which names
    `collate`, where it has none."""
    for leaf in tree_leaves(batch):
        if isinstance(leaf, Tensor) and leaf.ndim:
            return leaf.shape[0]
    cause = f"the task's collate gives a {type(batch).__name__} without a tensor [samples, ...]"
    raise returned(collate, cause, "return tensors with the samples along the first dimension, or write `evaluate`")
