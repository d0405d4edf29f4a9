"""Whether every rank holds the same state, bit for bit: one number of each rank is compared, tensors where it differs.

Ranks that hold the same state and move by the same gradients stay equal for ever. Where they do not, a bit has flipped.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache
from hashlib import sha256
from itertools import chain

from torch import Tensor

from drivetrain.checkpoint.snapshot import checksums
from drivetrain.checkpoint.state import NETWORKS, MutationTracker, capture
from drivetrain.engine.engine import Engine
from drivetrain.engine.placement import Placement
from drivetrain.engine.recompute import fold
from drivetrain.spec.exits import Exit, Failure


class Replicas:
    """Compares what several ranks hold at boundaries, and knows whether this rank's state may stand for all."""

    def __init__(self, engine: Engine, unlike: str = "") -> None:
        """`unlike` is how the ranks' environments differ, if they do."""
        self._engine = engine
        self._group = engine.placement.group
        self._unlike = unlike
        self._tracker: MutationTracker | None = None  # alone there is nobody to compare with or to stand for
        if self._group.world > 1:
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
            tensors = replicated(self._engine, frozen=not self._tracker.private)
            require_equal(tensors, self._engine.placement, step, self._unlike)
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
        if tracker is None or not self._engine.placement.replicated:
            return False
        if (within and tracker.moved) or (rank > 0 and tracker.private):
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


def require_equal(tensors: Mapping[str, Tensor], placement: Placement, step: int, unlike: str = "") -> None:
    """Raises Failure(83) on all ranks alike where what several of them hold differs: the first tensor, and who."""
    if placement.group.world > 1 and (told := _different(tensors, placement)):
        raise unequal(told, step, unlike)


def require_same_start(engine: Engine) -> None:
    """Raises Failure(78) on all ranks alike where the weights that several of them hold differ: they would never become
    equal."""
    placement = engine.placement
    if placement.group.world == 1:
        return
    if told := _different(capture(engine.networks, {}), placement):
        name, odd = _odd_tensors(told)[0]
        cause = f"the weights differ between ranks: {name}: {_who(odd)}"
        raise Failure(Exit.BAD_RECIPE, cause, "start every rank with the same weights", rank=odd)


def _different(tensors: Mapping[str, Tensor], placement: Placement) -> dict[int, dict[str, int]]:
    """The checksums, by rank and name, of what some ranks should hold alike and do not; empty where all is as it should
    be. Every rank calls it, and finds the same."""
    held: dict[str, dict[str, int]] = {}
    for name, total in checksums(tensors).items():
        holders = placement.holders(name, tensors[name])
        if len(holders) > 1:
            held.setdefault(_name_of(holders), {})[name] = total
    # One number for all that the same ranks hold. The second exchange is made by all ranks or by none, since they have
    # heard the same numbers.
    told = placement.group.gather_json({holders: fold(sums) for holders, sums in held.items()})
    for holders in dict.fromkeys(chain.from_iterable(told)):
        if len({folds[holders] for folds in told if holders in folds}) > 1:
            ranks = placement.group.gather_json(held.get(holders))
            return {rank: sums for rank, sums in enumerate(ranks) if sums is not None}
    return {}


@cache
def _name_of(holders: tuple[int, ...]) -> str:
    """Short, since every rank tells it to all: the holders may be all of them."""
    return sha256(repr(holders).encode()).hexdigest()[:16]


def unequal(ranks: Mapping[int, Mapping[str, int]], step: int, unlike: str = "") -> Failure:
    """Failure(83) that names the first tensor of which ranks have different checksums, and who is not with most.

    Recipe, code and data are the same on all ranks. The hardware is suspected where their environments are, too:
    `unlike` says how these differ.
    """
    wrong = _odd_tensors(ranks)
    first, odd = wrong[0]
    more = f"; and {len(wrong) - 1} more" if len(wrong) > 1 else ""
    hint = "a bit has flipped: suspect that machine's memory; nothing of it was committed, the commit before is whole"
    if unlike:
        hint = f"{unlike}: give all ranks the same; nothing of it was committed, the commit before is whole"
    return Failure(
        Exit.CORRUPTION_SUSPECTED,
        f"{first} is not the same on all ranks after step {step}: {_who(odd)}{more}",
        hint,
        rank=odd[0] if len(odd) == 1 else odd,
        step=step,
        tensor=first,
    )


def _odd_tensors(ranks: Mapping[int, Mapping[str, int]]) -> list[tuple[str, list[int]]]:
    """The tensors of which ranks have different checksums, in their order, and which ranks are not with most."""
    wrong: list[tuple[str, list[int]]] = []
    for name in dict.fromkeys(chain.from_iterable(ranks.values())):
        places = odd_ones([sums.get(name) for sums in ranks.values()])
        if places:
            wrong.append((name, [list(ranks)[place] for place in places]))
    return wrong


def _who(odd: Sequence[int]) -> str:
    if len(odd) == 1:
        return f"rank {odd[0]} differs from the others"
    return f"ranks {', '.join(map(str, odd))} differ"


def odd_ones(values: Sequence[int | None]) -> list[int]:
    """The places of values that are not that of more than half of them; all, where none is."""
    value, count = Counter(values).most_common(1)[0]
    if 2 * count <= len(values):
        return list(range(len(values)))
    return [place for place, other in enumerate(values) if other != value]
