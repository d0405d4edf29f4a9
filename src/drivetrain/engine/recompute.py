"""A sampled check of gradients before they are summed: another rank computes those of one micro-batch again.

A bit that flips in one rank's gradient goes into the sum, and all ranks agree on the wrong sum: comparing their weights
finds nothing. Ranks hold the same weights, so what one computes from its samples and their seeds, any other can.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import SyncBatchNorm
from torch.utils._pytree import tree_leaves

from drivetrain.checkpoint.snapshot import checksums
from drivetrain.data.batch_reader import MicroBatch
from drivetrain.data.order import GOLDEN
from drivetrain.engine.exact import refusal
from drivetrain.engine.layers import named_layers
from drivetrain.engine.losses import Term
from drivetrain.optim.network_optimizer import NetworkOptimizer
from drivetrain.runtime.group import Group
from drivetrain.spec.exits import Exit, Failure

WHAT = "guard.recompute"
_WORDS = (1 << 64) - 1


class Recompute(NamedTuple):
    """What this rank computes again: `before`, the first micro-batch of the rank before it (of its own, where it is
    alone), read here. `own` is what the rank after it computes again: the first of its own.

    Each is one micro-batch, or its parts where a network takes fewer samples at a time; nothing where there is none.
    """

    before: Sequence[MicroBatch]
    own: Sequence[MicroBatch]


class GradientChecksums:
    """Checksums of what micro-batches came to, in the order in which a difference spreads: the batches' tensors and
    the losses, then the gradients (with the loss scale in them)."""

    def __init__(self, micros: Sequence[MicroBatch]) -> None:
        """`micros` are those to look at, the first ones of a step."""
        self.sums: dict[str, int] = {}
        self._wanted, self._seen = len(micros), 0

    def look(self, batch: Any, losses: Mapping[str, Term], network_optimizers: Sequence[NetworkOptimizer]) -> None:
        """After the backward pass of a micro-batch."""
        # Only the first ones are looked at: checksums of every micro-batch would cost a pass over memory each.
        if self._seen == self._wanted:
            return
        self._seen += 1
        tensors: dict[str, Tensor] = {}
        for number, leaf in enumerate(tree_leaves(batch)):
            if isinstance(leaf, Tensor):
                tensors[f"batch/{number}"] = leaf
        for name, term in losses.items():
            tensors[f"losses/{name}"] = term.value
        if self._seen == self._wanted:  # gradients of parts add up: they are compared once
            for name, parameter in _named(network_optimizers):
                if parameter.grad is not None:
                    tensors[f"gradients/{name}"] = parameter.grad
        found = checksums(tensors)
        part = f" of part {self._seen}" if self._wanted > 1 else ""
        self.sums |= {name + part: total for name, total in found.items()}


def fold(sums: Mapping[str, int]) -> int:
    """One number of 64 bits for all checksums in their order; a change of any one of them changes it."""
    total = 0
    for value in sums.values():
        total = (total * GOLDEN + value) & _WORDS  # GOLDEN is odd, so that nothing is lost
    return total


@contextmanager
def traceless(networks: Mapping[str, nn.Module]) -> Iterator[None]:
    """What is computed again must come to the same bits, and change nothing that stays.

    Raises Failure(78) for an operation without a deterministic kernel, and where a forward pass changes parameters.
    """
    versions: list[tuple[str, nn.Parameter, int]] = []  # torch counts each parameter's changes in place
    for network, module in networks.items():
        for path, parameter in module.named_parameters():
            versions.append((f"{network}.{path}", parameter, parameter._version))
    # Torch's own mode and its own restoring: a user may have set it, and it is one for the whole process.
    mode = torch.get_deterministic_debug_mode()
    torch.set_deterministic_debug_mode("error")
    try:
        yield
    except RuntimeError as error:
        raise refusal(error, WHAT) or error from error
    finally:
        torch.set_deterministic_debug_mode(mode)
    for name, parameter, version in versions:
        if parameter._version != version:
            hint = f"change it in the task's update, or leave {WHAT} out"
            raise Failure(Exit.BAD_RECIPE, f"{WHAT}: a forward pass changes the parameter {name}", hint)


def _named(network_optimizers: Sequence[NetworkOptimizer]) -> Iterator[tuple[str, nn.Parameter]]:
    """Parameters that move, with their names: NETWORK/NAME."""
    for network_optimizer in network_optimizers:
        names = [name for group in network_optimizer.optimizer.param_groups for name in group["names"]]
        for name, parameter in zip(names, network_optimizer.weights, strict=True):
            yield f"{network_optimizer.network}/{name}", parameter


def require_alone(networks: Mapping[str, nn.Module]) -> None:
    """Raises Failure(78) for layers that talk to other ranks in a forward pass: which ones, says the samples' place."""
    for name, layer in named_layers(networks):
        if isinstance(layer, SyncBatchNorm):
            cause = f"{WHAT}: {name} (SyncBatchNorm) sums over all ranks"
            raise Failure(Exit.BAD_RECIPE, cause, f"use another normalization, or leave {WHAT} out")


def require_same(
    own: Mapping[str, int], again: Mapping[str, int], group: Group, step: int, networks: Sequence[str]
) -> None:
    """`own` is what this rank has seen of its first micro-batch, `again` what it has computed of the rank before it.

    Raises Failure(83) on all ranks alike where two that computed the same differ: the first tensor that does, and who.
    """
    # A ring: what this rank has seen of its own is compared with what the next one computed of it.
    told = group.gather_json([fold(own), fold(again)])
    wrong: list[tuple[int, int]] = []
    for rank in range(group.world):
        after = (rank + 1) % group.world
        if told[rank][0] != told[after][1]:
            wrong.append((rank, after))
    if wrong:  # on every rank alike: only now do all checksums travel
        raise _differ(wrong, group.gather_json([own, again]), step, networks)


def _differ(
    wrong: Sequence[tuple[int, int]], told: Sequence[Sequence[Mapping[str, int]]], step: int, networks: Sequence[str]
) -> Failure:
    """The failure of ranks that differ, in pairs; a rank that is in all of them is the one to look at."""
    first, second = wrong[0]
    once, again = told[first][0], told[second][1]
    # In the order in which a difference spreads: the first one is nearest to its cause.
    names = [name for name in dict.fromkeys([*once, *again]) if once.get(name) != again.get(name)]
    in_all_pairs = set.intersection(*map(set, wrong))
    suspects = sorted(in_all_pairs or set(chain.from_iterable(wrong)))
    pair = f"rank {first} and rank {second}"
    if first == second:
        pair = "twice the same process"
    more = f"; and {len(names) - 1} more" if len(names) > 1 else ""
    cause = f"step {step}, {'+'.join(networks)}: {pair} came to other bits of {names[0]} from the same samples{more}"
    hint = "suspect the hardware, or code that is no function of weights, samples and seeds; nothing has moved"
    return Failure(
        Exit.CORRUPTION_SUSPECTED,
        cause,
        hint,
        rank=suspects[0] if len(suspects) == 1 else suspects,
        step=step,
        tensor=names[0],
    )
