"""Whether every rank holds the same state, bit for bit: one number of each rank is compared, tensors where it differs.

Ranks that hold the same state and move by the same gradients stay equal for ever. Where they do not, a bit has flipped.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import chain

from torch import Tensor

from drivetrain.checkpoint.snapshot import checksums
from drivetrain.checkpoint.state import NETWORKS, MutationTracker, capture
from drivetrain.engine.engine import Engine
from drivetrain.engine.recompute import fold
from drivetrain.runtime.group import Group
from drivetrain.spec.exits import Exit, Failure


class Replicas:
    """Compares the ranks' states at boundaries, and knows whether this rank's may stand for all."""

    def __init__(self, engine: Engine, group: Group, unlike: str = "") -> None:
        """`group` are the ranks that hold the same parts, `unlike` how their environments differ, if they do."""
        self._engine = engine
        self._group = group
        self._unlike = unlike
        self._tracker: MutationTracker | None = None  # alone there is nobody to compare with or to stand for
        if group.world > 1:
            self._tracker = MutationTracker(engine.networks, engine.others)
        self._compared = -1  # the step whose states were compared last

    def begin_step(self) -> None:
        """This is a boundary: what changes from here on belongs to the next step."""
        if self._tracker:
            self._tracker.stand()

    def compare(self, step: int) -> None:
        """See that all ranks hold the same state; Failure(83) where they do not. Every rank calls it."""
        # `_compared` is the same on every rank, so that all exchange checksums or none does.
        if self._tracker and self._compared != step:
            self._engine.heartbeat.enter("compare")
            require_equal(replicated(self._engine, frozen=not self._tracker.private), self._group, step, self._unlike)
            self._compared = step

    def forget(self) -> None:
        """The run has gone back: steps that were compared will be made again, to other states."""
        self._compared = -1

    def stands_for_all(self, *, within: bool) -> bool:
        """Whether this rank holds a boundary's state that another rank's commit would equal.

        `within` says that a step is under way. A step that has changed nothing yet does not matter. Buffers and frozen
        parameters that training changes are each rank's own: only rank 0's are committed.
        """
        tracker, rank, buffers = self._tracker, self._group.rank, self._engine.buffers
        if tracker is None or (within and tracker.moved) or (rank > 0 and tracker.private):
            return False
        return not (buffers.changed and (within or rank > 0))


def replicated(engine: Engine, *, frozen: bool) -> dict[str, Tensor]:
    """What all ranks have alike at a boundary, by the names that commits give: parameters, optimizer state, averages,
    the loss scale. Buffers are each rank's own until the next step begins.

    `frozen`: with the parameters that no optimizer moves. A task that changes them itself may do so on each rank.
    """
    parameters: set[str] = set()
    for network, module in engine.networks.items():
        # With all names of a parameter that modules share: the commit has one of them.
        for name, parameter in module.named_parameters(remove_duplicate=False):
            if frozen or parameter.requires_grad:
                parameters.add(f"{NETWORKS}/{network}/{name}")
    found: dict[str, Tensor] = {}
    for name, tensor in capture(engine.networks, engine.optimizers, engine.others).items():
        if name in parameters or not name.startswith(f"{NETWORKS}/"):
            found[name] = tensor
    return found


def require_equal(tensors: Mapping[str, Tensor], group: Group, step: int, unlike: str = "") -> None:
    """Raises Failure(83) on all ranks alike where the tensors differ between them: the first one that does, and who."""
    if group.world == 1:
        return
    own = checksums(tensors)
    # One number of each rank; the second exchange is made by all ranks too, since they have heard the same numbers.
    if len(set(group.gather_json(fold(own)))) > 1:
        raise unequal(group.gather_json(own), step, unlike)


def unequal(ranks: Sequence[Mapping[str, int]], step: int, unlike: str = "") -> Failure:
    """Failure(83) that names the first tensor of which the ranks have different checksums, and who is not with most.

    Recipe, code and data are the same on all ranks. The hardware is suspected where their environments are, too:
    `unlike` says how these differ.
    """
    wrong: dict[str, list[int]] = {}
    for name in dict.fromkeys(chain.from_iterable(ranks)):
        different = odd_ones([sums.get(name) for sums in ranks])
        if different:
            wrong[name] = different
    first, odd = next(iter(wrong.items()))
    who = f"ranks {', '.join(map(str, odd))} differ"
    if len(odd) == 1:
        who = f"rank {odd[0]} differs from the others"
    more = f"; and {len(wrong) - 1} more" if len(wrong) > 1 else ""
    hint = "a bit has flipped: suspect that machine's memory; nothing of it was committed, the commit before is whole"
    if unlike:
        hint = f"{unlike}: give all ranks the same; nothing of it was committed, the commit before is whole"
    return Failure(
        Exit.CORRUPTION_SUSPECTED,
        f"{first} is not the same on all ranks after step {step}: {who}{more}",
        hint,
        rank=odd[0] if len(odd) == 1 else odd,
        step=step,
        tensor=first,
    )


def odd_ones(values: Sequence[int | None]) -> list[int]:
    """The ranks whose value is not that of more than half of them; all, where none is."""
    value, count = Counter(values).most_common(1)[0]
    if 2 * count <= len(values):
        return list(range(len(values)))
    return [rank for rank, other in enumerate(values) if other != value]
