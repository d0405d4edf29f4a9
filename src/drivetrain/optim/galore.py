"""GaLore: a base optimizer on gradients that are projected to low rank (Zhao et al. 2024, arXiv 2403.03507).

A weight W (m, n; more dimensions are unfolded to rows of the first) has a gradient G, and a basis for its left side
L (m, r), its right side R (n, r), or both. The base sees L' G, G R or L' G R and keeps its moments in that shape; its
update U goes back as scale * L U, scale * U R' or scale * L U R'. Every `gap` steps the basis is made anew of G's
leading singular vectors.

APOLLO (Zhu et al. 2024, arXiv 2412.05270) projects onto random numbers, and learns from it only by how much the base
changes the length of each column of L' G (each row of G R): G's own columns (rows) are scaled by that.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any, overload

import torch
import torch.distributed as dist
from torch import Tensor, nn

from drivetrain.optim.bases import Base, Shape
from drivetrain.optim.loading import load_typed
from drivetrain.optim.products import add_product, matmul
from drivetrain.optim.recipe import Projected
from drivetrain.optim.sharded import RowShard, local, rows_of, shared_like
from drivetrain.optim.subspace import OVERSAMPLING, exact, orthonormal, subspace
from drivetrain.runtime.seeds import mix
from drivetrain.spec.exits import Exit, Failure
from drivetrain.spec.registry import imported

SIDES = ("left", "right")
_NO_MOMENTS = {"step", "length", *SIDES}
_TINY = 1e-30


class GaLore(torch.optim.Optimizer):
    """Projects the groups with a true "matrix", which have a "rank", "gap" and "scale"; the base moves the others as
    they are.

    State is in the parameter's type, unless the base has another: "step" (0-d, on the CPU), the base's moments, "left"
    (m, r) and "right" (n, r) where there are such sides, and of scaled updates the last one's "length" (1,); r is the
    rank, but at most m and n. Of a sharded parameter the moments are DTensors as it is, or, where they are those of
    L' G, whole on every rank, as bases are.

    Factorisations and projections are computed in float32, or float64 for such weights. The next basis depends on the
    gradient, the last basis, the seed, the parameter's place and its step count only, so replicas with the same
    gradients have the same bases.
    """

    def __init__(
        self,
        groups: Sequence[dict[str, Any]],
        *,
        base: Projected,
        projection: str,
        refresh: str,
        iterations: int,
        update: str,
        growth: float,
        stagger: bool,
        moments: str,
        seed: int,
    ) -> None:
        """Raises Failure(78) for a sharded parameter that the base cannot move in parts."""
        super().__init__(groups, {})
        self._base: Base = imported(base.factory)(base)
        self._dtypes = {"length": torch.float32, **self._base.dtypes}
        self._projection = projection
        self._refresh = refresh
        self._iterations = iterations
        self._scaled = update == "scaled"
        self._growth = growth
        self._moments = moments
        self._seed = seed
        self._stagger = stagger
        self.given: dict[nn.Parameter, Tensor] = {}
        """Gradients that are projections already, for the next step, which takes them out."""
        self._index_matrices()
        self._rows = {parameter: rows_of(parameter) for parameter in self._groups}
        self._require_separable()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """As torch does, but what the base has in a type of its own keeps it: torch casts all to the parameters'."""
        super().load_state_dict(state_dict)
        self._index_matrices()
        load_typed(self, state_dict, self._dtypes.__contains__)

    def _index_matrices(self) -> None:
        """Look up each parameter's group, which loading replaces, and each matrix's place among all of them."""
        self._groups = {parameter: group for group in self.param_groups for parameter in group["params"]}
        matrices = [parameter for parameter, group in self._groups.items() if group["matrix"]]
        self._places = {parameter: place for place, parameter in enumerate(matrices)}

    @property
    def matrices(self) -> list[nn.Parameter]:
        """The parameters that are projected."""
        return list(self._places)

    def keeps_basis(self, parameter: nn.Parameter) -> bool:
        """Whether the next step moves a matrix in the basis that it has: then its gradient's `projection` will do."""
        state, gap = self.state[parameter], self._groups[parameter]["gap"]
        count = int(state["step"]) if state else 0
        return made_at(count, gap, self._offset(parameter, gap)) != count

    @torch.no_grad()
    def projection(self, parameter: nn.Parameter, gradient: Tensor) -> Tensor:
        """L' G, G R or L' G R, of the parameter's type, for the basis that it has."""
        return self._project(parameter, gradient, self._here(parameter))

    def _require_separable(self) -> None:
        for group in self.param_groups:
            for name, parameter in zip(group["names"], group["params"], strict=True):
                owners, shape = self._owners(parameter), self._moved(parameter)
                if owners and (why := self._base.inseparable(shape, owners.size())):
                    shared = f"{owners.size()} processes share the rows of {name}, moved as {shape}"
                    hint = "choose base adamw or sgd, or sizes and a rank that fit"
                    raise Failure(Exit.BAD_RECIPE, f"optimizer.base: {shared}; but {why}", hint)

    def state_shapes(self, parameter: nn.Parameter) -> dict[str, Shape]:
        """The shape of each slot of a parameter's state, on all ranks together."""
        slots = self._base.slots(self._moved(parameter))
        if not self._groups[parameter]["matrix"]:
            return {"step": (), **slots}
        sizes = self._sizes(parameter)
        sides = zip(SIDES, sizes, self._sides(*sizes), strict=True)
        bases = {side: (size, self._rank(parameter)) for side, size, has in sides if has}
        return {"step": (), **bases, **({"length": (1,)} if self._scaled else {}), **slots}

    def _moved(self, parameter: nn.Parameter) -> Shape:
        """The shape of what the base moves, on all ranks together: a parameter, or its projected gradient."""
        if not self._groups[parameter]["matrix"]:
            return tuple(parameter.shape)
        sizes = self._sizes(parameter)
        projected = zip(sizes, self._sides(*sizes), strict=True)
        return tuple(self._rank(parameter) if has else size for size, has in projected)

    def _owners(self, parameter: nn.Parameter) -> dist.ProcessGroup | None:
        """The ranks that have the rows of what the base moves; None where each has all of it, as with a left basis."""
        alike = self._groups[parameter]["matrix"] and self._sides(*self._sizes(parameter))[0]
        return None if alike else self._rows[parameter].group

    def _rank(self, parameter: nn.Parameter) -> int:
        return min(self._groups[parameter]["rank"], *self._sizes(parameter))

    @overload
    def step(self, closure: None = None) -> None: ...

    @overload
    def step(self, closure: Callable[[], float]) -> float: ...

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Move every parameter that has a gradient; the closure, which computes the loss, is called once, before.

        Raises Failure(82) where a basis is due and the gradient is not finite: it never reaches a factorisation.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            move = self._move_projected if group["matrix"] else self._move
            for age, parameters in self._by_age(group):
                move(parameters, age, group)
        return loss

    def _by_age(self, group: dict[str, Any]) -> Iterator[tuple[int, list[nn.Parameter]]]:
        """The parameters with a gradient, their bases refreshed where due, by how old their moments are."""
        ages: dict[int, list[nn.Parameter]] = defaultdict(list)
        for parameter in group["params"]:
            if parameter.grad is None and parameter not in self.given:
                continue
            state = self.state[parameter] or self._begin(parameter)
            count, made = int(state["step"]), 0
            if group["matrix"]:
                made = made_at(count, group["gap"], self._offset(parameter, group["gap"]))
                if made == count:
                    self._renew(parameter, count)
            state["step"] += 1
            ages[count + 1 - (made if self._moments == "reset" else 0)].append(parameter)
        yield from ages.items()

    def _begin(self, parameter: nn.Parameter) -> dict[str, Tensor]:
        weights, state, shared = local(parameter), self.state[parameter], self._owners(parameter) is not None
        for slot, shape in self.state_shapes(parameter).items():
            dtype = self._dtypes.get(slot, weights.dtype)
            if shared and slot not in _NO_MOMENTS:
                state[slot] = shared_like(parameter, shape, dtype)
            else:
                same = shape == tuple(weights.shape)  # then in the same layout, as fused kernels want it
                state[slot] = torch.zeros_like(weights, dtype=dtype) if same else weights.new_zeros(shape, dtype=dtype)
        state["step"] = torch.tensor(0.0)
        return state

    def _offset(self, parameter: nn.Parameter, gap: int) -> int:
        return self._places[parameter] * gap // len(self._places) if self._stagger else 0

    # Moving

    def _move(self, parameters: Sequence[nn.Parameter], age: int, group: dict[str, Any]) -> None:
        weights = [local(p) for p in parameters]
        keep = 1.0 - group["lr"] * group["weight_decay"]
        if keep != 1.0 and not self._base.decays_last:
            torch._foreach_mul_(weights, keep)
        self._base.move(weights, [_gradient(p) for p in parameters], self._states(parameters), age, group["lr"])
        if keep != 1.0 and self._base.decays_last:
            torch._foreach_mul_(weights, keep)

    def _move_projected(self, parameters: Sequence[nn.Parameter], age: int, group: dict[str, Any]) -> None:
        states = self._states(parameters)
        gradients = [self._projected(p, state) for p, state in zip(parameters, states, strict=True)]
        updates = [torch.zeros_like(gradient) for gradient in gradients]
        # The limit on growth is one of the update, not of the learning rate: a warm-up rises as fast as it is told to.
        now, later = (1.0, group["lr"]) if self._scaled else (group["lr"], 1.0)
        self._base.move(updates, gradients, states, age, now)
        keep = 1.0 - group["lr"] * group["weight_decay"]
        scale = later * group["scale"] * (keep if self._base.decays_last else 1.0)
        for parameter, state, gradient, update in zip(parameters, states, gradients, updates, strict=True):
            if self._scaled:
                moved = self._scale(parameter, state, gradient, update)
                local(parameter).mul_(keep).add_(moved.to(parameter.dtype), alpha=scale)
            else:
                left, right = _bases(state, self._rows[parameter])
                _add(local(parameter), *_factors(left, right, update), keep, scale)

    def _scale(self, parameter: nn.Parameter, state: dict[str, Tensor], projected: Tensor, update: Tensor) -> Tensor:
        """The descent along the gradient, each channel as long as the base made its projection; not longer than
        `growth` times the last one (Chen et al. 2024, arXiv 2410.01623, section 4.2)."""
        projected, update = _computed(projected), _computed(update)
        channels = [dim for dim, side in enumerate(SIDES) if side in state]
        lengths = torch.linalg.vector_norm(projected, dim=channels, keepdim=True)
        ratios = torch.linalg.vector_norm(update, dim=channels, keepdim=True) / lengths.clamp_min(_TINY)
        moved = _computed(_gradient(parameter).flatten(1)) * -ratios
        length = self._rows[parameter].sum(moved.square().sum()).sqrt()
        most = torch.where(state["length"] > 0, self._growth * state["length"], length)
        factor = (most / length.clamp_min(_TINY)).clamp(max=1.0)
        state["length"].copy_(length * factor)
        return (moved * factor).view(local(parameter).shape)

    def _states(self, parameters: Sequence[nn.Parameter]) -> list[dict[str, Tensor]]:
        return [self._here(parameter) for parameter in parameters]

    def _here(self, parameter: nn.Parameter) -> dict[str, Tensor]:
        """What this rank holds of a parameter's state."""
        return {slot: local(tensor) for slot, tensor in self.state[parameter].items()}

    def _projected(self, parameter: nn.Parameter, state: dict[str, Tensor]) -> Tensor:
        given = self.given.pop(parameter, None)
        return self._project(parameter, _gradient(parameter), state) if given is None else given

    def _project(self, parameter: nn.Parameter, gradient: Tensor, state: dict[str, Tensor]) -> Tensor:
        rows, gradient = self._rows[parameter], _computed(gradient.flatten(1))
        left, right = _bases(state, rows)
        if right is not None:
            gradient = matmul(gradient, right)
        if left is not None:
            gradient = rows.sum(matmul(left.mT, gradient))
        return gradient.to(parameter.dtype)

    # Bases

    def _sizes(self, parameter: nn.Parameter) -> tuple[int, int]:
        """Rows and columns of a weight, on all ranks together."""
        return parameter.shape[0], parameter.shape[1:].numel()

    def _sides(self, m: int, n: int) -> tuple[bool, bool]:
        """Whether there is a left basis, and whether there is a right one."""
        if self._projection == "full":
            return True, True
        left = {"left": True, "right": False, "std": m < n, "reverse_std": m >= n}[self._projection]
        return left, not left

    def _renew(self, parameter: nn.Parameter, count: int) -> None:
        """Make the bases of this gradient, and carry the moments over."""
        gradient = _computed(self._rows[parameter].whole(_gradient(parameter).flatten(1)))
        if not bool(gradient.isfinite().all()):
            raise Failure(
                Exit.DIVERGED,
                f"optimizer: a gradient of shape {tuple(parameter.shape)} is not finite where its basis is due",
                "leave out steps whose gradients are not finite, as the loop does",
            )
        state = self._here(parameter)
        fresh = self._vectors(parameter, gradient, count)
        if self._moments == "rotate" and count:
            self._rotate(state, {side: basis.mT @ _computed(state[side]) for side, basis in fresh.items()})
        if self._moments == "reset":
            for slot in state.keys() - _NO_MOMENTS:
                state[slot].zero_()
        for side, basis in fresh.items():
            state[side].copy_(basis)

    def _vectors(self, parameter: nn.Parameter, gradient: Tensor, count: int) -> dict[str, Tensor]:
        """The bases that the parameter has: that of the smaller side is found, the other one follows from it."""
        near, far = SIDES
        if gradient.shape[0] > gradient.shape[1]:
            gradient, near, far = gradient.mT, far, near
        state, rank = self.state[parameter], self._rank(parameter)
        if self._refresh == "random":
            return {s: self._drawn(parameter, state[s], count, number) for number, s in enumerate(SIDES) if s in state}
        if self._refresh == "exact" or rank + OVERSAMPLING >= gradient.shape[0]:
            found = exact(gradient, rank)
        else:
            start = self._noise(parameter, gradient, rank, count)
            if self._refresh == "subspace" and count:
                start[:, :rank] = (
                    matmul(gradient.mT, _computed(state[near])) if near in state else _computed(state[far])
                )
            found = subspace(gradient, rank, start, self._iterations)
        bases = {near: found}
        if far in state:
            bases[far] = orthonormal(matmul(gradient.mT, found))
        return {side: basis for side, basis in bases.items() if side in state}

    def _noise(self, parameter: nn.Parameter, gradient: Tensor, rank: int, count: int) -> Tensor:
        """What a sketch of a gradient starts with."""
        return self._normal((gradient.shape[1], rank + OVERSAMPLING), gradient, self._places[parameter], count)

    def _drawn(self, parameter: nn.Parameter, basis: Tensor, count: int, side: int) -> Tensor:
        """Random directions that keep lengths on average: numbers of variance 1 / rank."""
        size, rank = basis.shape
        return self._normal((size, rank), _computed(basis), self._places[parameter], count, side) / rank**0.5

    def _normal(self, size: tuple[int, int], like: Tensor, *path: int) -> Tensor:
        """Random numbers by seed and path."""
        generator = torch.Generator(like.device)
        generator.manual_seed(mix(self._seed, *path))
        return torch.randn(size, dtype=like.dtype, device=like.device, generator=generator)

    def _rotate(self, state: dict[str, Tensor], turns: dict[str, Tensor]) -> None:
        """Tell the moments in the new basis: C m for first ones; for second ones, as if directions were independent,
        C * C in place of C. C (r, r) is the new basis times the old one."""
        slots = {slot: tensor for slot, tensor in state.items() if slot not in _NO_MOMENTS}
        moments = self._base.moments(slots)
        for name, moment in moments.items():
            for side, turn in turns.items():
                if name == ("col" if side == "left" else "row"):
                    continue  # a mean over this side
                turn = turn.square() if name in self._base.squares else turn
                moment = turn @ _computed(moment) if side == "left" else _computed(moment) @ turn.mT
            moments[name] = moment
        self._base.remember(slots, moments)


def made_at(count: int, gap: int, offset: int) -> int:
    """The step count at which the basis was made that is in use at `count`: 0, then offset, offset + gap, ..."""
    return offset + (count - offset) // gap * gap if count >= offset else 0


def _gradient(parameter: nn.Parameter) -> Tensor:
    assert parameter.grad is not None
    return local(parameter.grad)


def _computed(tensor: Tensor) -> Tensor:
    """In the type that products and factorisations are computed in: float32 at least."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def _bases(state: dict[str, Tensor], rows: RowShard) -> tuple[Tensor | None, Tensor | None]:
    """The bases, the left one of this rank's rows only."""
    left, right = state.get("left"), state.get("right")
    return None if left is None else _computed(left[rows.here]), None if right is None else _computed(right)


def _factors(left: Tensor | None, right: Tensor | None, update: Tensor) -> tuple[Tensor, Tensor]:
    """Two matrices whose product is the update, projected back."""
    update = _computed(update)
    if right is None:
        assert left is not None
        return left, update
    return update if left is None else matmul(left, update), right.mT


def _add(weights: Tensor, first: Tensor, second: Tensor, keep: float, scale: float) -> None:
    """weights = keep * weights + scale * first @ second: in place where the product can go there."""
    if weights.dtype == first.dtype and weights.ndim == 2:
        add_product(weights, first, second, keep, scale)
    else:
        flat = torch.addmm(_computed(weights.flatten(1)), first, second, beta=keep, alpha=scale)
        weights.copy_(flat.view(weights.shape))
