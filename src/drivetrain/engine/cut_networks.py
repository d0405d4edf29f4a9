"""What an engine does around its passes where networks are cut: everything that torch's engines want to be told."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import wraps
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from drivetrain.checkpoint.boxes import local_of
from drivetrain.engine.context import positions_of
from drivetrain.engine.losses import Losses, Term
from drivetrain.engine.placement import Placement
from drivetrain.runtime.mistakes import with_place
from drivetrain.spec.exits import Exit, Failure

if TYPE_CHECKING:
    from torch.distributed.fsdp import FSDPModule

_NOT_GATHERED = ("mixed torch.Tensor and DTensor", "out of bounds for storage of size 0")
"""What torch says where a pass meets a parameter that FSDP has not gathered."""


class CutNetworks:
    """All networks of a run, on a mesh that cuts some of them."""

    def __init__(self, networks: Mapping[str, nn.Module], placement: Placement) -> None:
        self._networks = networks
        self._placement = placement
        self._units: list[FSDPModule] = []
        self._looking = self._passed_back = False
        self._positions = positions_of(networks.values())
        # Split layers alone hold their parts all the time: only FSDP gathers, and has to be told when to give up again.
        if placement.mesh.sizes.summed > 1:
            from drivetrain.engine.layout import methods_of, shards_of

            self._units = [unit for network in networks.values() for unit in shards_of(network)]
            for network in networks.values():
                network.register_forward_hook(lambda _module, _given, result: self._watch(result))
                for name in methods_of(network):
                    setattr(network, name, self._watched(getattr(network, name)))

    @contextmanager
    def training(self, names: Sequence[str]) -> Iterator[None]:
        """While entered, backward passes make gradients of these networks only: FSDP cannot be told its inputs.
        Networks are given the positions here."""
        still: list[nn.Parameter] = []
        # Names are NETWORK/PARAMETER.
        for path, held in self._placement.held.items():
            if path.partition("/")[0] not in names and held.parameter.requires_grad:
                still.append(held.parameter)
        for parameter in still:
            parameter.requires_grad_(False)
        try:
            with self._split_losses(), self._positions.given():
                yield
        finally:
            # Only those that moved before: what a user has frozen stays so.
            for parameter in still:
                parameter.requires_grad_(True)

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """While entered, networks may be called; afterwards what was gathered for it is given up, since weights will
        change."""
        from drivetrain.engine.layout import reshard

        try:
            with self._split_losses(), _telling_parts():
                yield
        finally:
            reshard(self._networks.values())

    @contextmanager
    def looking(self, names: Sequence[str]) -> Iterator[None]:
        """While entered, backward passes sum nothing over ranks, and leave their gradients for `gradients`."""
        from drivetrain.engine.layout import reshard, roots_of

        # Neither sums over ranks nor ends FSDP's round: the pass that trains comes after this one, and is the last.
        for root in roots_of(self._networks.values()):
            root.set_requires_gradient_sync(False)
            root.set_is_last_backward(False)
        self._give_up(False)
        self._looking = True
        try:
            with self.training(names):
                yield
        finally:
            self._looking = False
            self._give_up(True)
            reshard(self._networks.values())

    @contextmanager
    def losing(self) -> Iterator[None]:
        """Around a loss, which may itself pass back, as a penalty on gradients does: then what was gathered for that
        stays until the step's end, since the pass that follows goes through it again."""
        self._passed_back = False
        self._give_up(False)
        try:
            with _telling_parts():
                yield
        finally:
            if not (self._passed_back or self._looking):
                self._give_up(True)

    def _give_up(self, after_backward: bool) -> None:
        for unit in self._units:
            unit.set_reshard_after_backward(after_backward, recurse=False)

    def _watched(self, method: Callable[..., Any]) -> Callable[..., Any]:
        """A method that gathers its network, as a forward pass does: no hook of modules hears of it."""

        @wraps(method)
        def watched(*args: Any, **kwargs: Any) -> Any:
            result = method(*args, **kwargs)
            self._watch(result)
            return result

        return watched

    def _watch(self, result: Any) -> None:
        """Hear of passes back through what a network has come to."""
        for leaf in tree_leaves(result):
            # Results without a gradient refuse hooks, and nothing passes back through them.
            if isinstance(leaf, Tensor) and leaf.requires_grad:
                leaf.register_hook(self._hear)

    def _hear(self, _gradient: Tensor) -> None:
        self._passed_back = True

    def gradients(self) -> list[Tensor]:
        """What a pass has left, of what this rank has computed; afterwards there is none."""
        found: list[Tensor] = []
        for network in self._networks.values():
            for parameter in network.parameters():
                if parameter.grad is not None:
                    found.append(local_of(parameter.grad))
                    # What is left here would be added to the step's own gradient.
                    parameter.grad = None
        return found

    def whole(self, losses: Mapping[str, Term]) -> Mapping[str, Term]:
        """Losses as plain numbers, the same on all ranks that have computed them together.

        Raises Failure(78) for a mean where each rank has some positions: nothing says of how many.
        """
        if self._positions.ranks > 1 and not isinstance(losses, Losses):
            cause = "parallel.context: the loss is a mean over samples, of which each process has some positions"
            raise Failure(Exit.BAD_RECIPE, cause, 'return sums over positions: Losses(loss=(sum, "tokens"))')
        if not self._splits:
            return losses
        from torch.distributed.tensor import DTensor

        found: dict[str, Term] = {}
        for name, term in losses.items():
            value = term.value
            if isinstance(value, DTensor):
                value = value.full_tensor()
            found[name] = term._replace(value=value)
        return found

    def batch(self, batch: Any) -> Any:
        """What this rank computes of a batch in training."""
        return self._positions.cut(batch)

    @property
    def _splits(self) -> bool:
        """Whether the logits of one sample lie on several ranks."""
        return self._placement.mesh.sizes.tensor > 1

    def _split_losses(self) -> AbstractContextManager:
        """While entered, torch's cross entropy takes logits that are split, and so does its backward pass."""
        if not self._splits:
            return nullcontext()
        from torch.distributed.tensor.parallel import loss_parallel

        return loss_parallel()


def given_up(error: RuntimeError) -> Exception:
    """Failure(78) of a backward pass that met a parameter which is not gathered; any other error as it is."""
    first = _not_gathered(error)
    if first is None:
        return error
    cause = f"parallel: the loss needs parameters after they were given up: {first}"
    hint = "a network that is sharded bears no penalty on its parameters(); use parallel.replicate alone"
    return Failure(Exit.BAD_RECIPE, cause, hint)


@contextmanager
def _telling_parts() -> Iterator[None]:
    """Raises Failure(78), with the user's line, where a task calls a part of a network in place of the network."""
    try:
        yield
    except RuntimeError as error:
        first = _not_gathered(error)
        if first is None:
            raise
        cause = f"parallel: parameters were used that no call of their network has gathered: {first}"
        hint = "call the network itself; a method of it that calls parts is named in ParallelPlan.methods"
        raise with_place(Failure(Exit.BAD_RECIPE, cause, hint), error) from error


def _not_gathered(error: RuntimeError) -> str | None:
    """What torch says, in one line, where a parameter was not gathered; None for any other error."""
    first = str(error).partition("\n")[0]
    for words in _NOT_GATHERED:
        if words in first:
            return first
    return None


def cut_networks(networks: Mapping[str, nn.Module], placement: Placement) -> CutNetworks | None:
    """None where every rank holds everything."""
    return None if placement.mesh.replicated else CutNetworks(networks, placement)
