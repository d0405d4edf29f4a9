"""GaLore: a base optimizer on gradients that are projected to low rank (Zhao et al. 2024, arXiv 2403.03507).

A weight W (m, n; more dimensions are unfolded to rows of the first) has a gradient G, and a basis for its left side
L (m, r), its right side R (n, r), or both. The base sees L' G, G R or L' G R and keeps its moments in that shape; its
update U goes back as scale * L U, scale * U R' or scale * L U R' (`projections`). Every `gap` steps the basis is made
anew of G's leading singular vectors (`refresh`).

APOLLO (Zhu et al. 2024, arXiv 2412.05270) projects onto random numbers, and learns from it only by how much the base
changes the length of each column of L' G (each row of G R): G's own columns (rows) are scaled by that (`scaled`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, overload

import torch
from torch import Tensor, nn

from drivetrain.optim import recipe
from drivetrain.optim.bases import Base, Shape
from drivetrain.optim.closures import loss_of
from drivetrain.optim.loading import load_typed
from drivetrain.optim.parts import Part, Parts, require_rows
from drivetrain.optim.projections import Projection, Unprojected, projection_of
from drivetrain.optim.refresh import Refresh, Turn, made_at
from drivetrain.optim.scaled import scaled_descent
from drivetrain.spec.box import Box
from drivetrain.spec.exits import Exit, Failure
from drivetrain.spec.registry import imported


class GaLore(torch.optim.Optimizer):
    """Projects the groups with a true "matrix", which have a "rank", "gap" and "scale"; the base moves the others as
    they are.

    State is in the parameter's type, unless the base has another: "step" (0-d, on the CPU), the base's moments, "left"
    (m, r) and "right" (n, r) where there are such sides, and of scaled updates the last one's "length" (1,); r is the
    rank, but at most m and n. Where processes share the rows of a parameter, they share those of its moments, too; only
    bases and the moments of L' G are whole on each.

    Factorisations and projections are computed in float32, or float64 for such weights. It is `Projecting`.
    """

    def __init__(
        self, groups: Sequence[dict[str, Any]], settings: recipe.GaLore, parts: Parts = MappingProxyType({})
    ) -> None:
        """Raises Failure(78) for a part that is not some of the rows, or that the base cannot move by itself."""
        super().__init__(groups, {})
        self._settings = settings
        self._scaled = settings.update == "scaled"
        self._base: Base = imported(settings.base.factory)(settings.base)
        self._refresh = Refresh(settings, self._base)
        self._dtypes = {"length": torch.float32, **self._base.dtypes}
        self.given: dict[nn.Parameter, Tensor] = {}
        """Gradients that are projections already, for the next step, which takes them out."""
        self._held = parts
        self._index()
        for group in self.param_groups:
            for name, parameter in zip(group["names"], group["params"], strict=True):
                _require_separable(name, self._parts[parameter], self._base)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """As torch does, but what the base has in a type of its own keeps it: torch casts all to the parameters'."""
        super().load_state_dict(state_dict)
        self._index()
        load_typed(self, state_dict, self._dtypes.__contains__)

    def _index(self) -> None:
        """Look up each parameter's group, which loading replaces, what the base moves of it, and each matrix's place
        among all of them."""
        self._groups: dict[nn.Parameter, dict[str, Any]] = {}
        self._parts: dict[nn.Parameter, Unprojected] = {}
        self._projections: dict[nn.Parameter, Projection] = {}
        self._places: dict[nn.Parameter, int] = {}
        for group in self.param_groups:
            for parameter in group["params"]:
                self._groups[parameter] = group
                part = self._held.get(parameter) or Part.of_whole(parameter)
                if not group["matrix"]:
                    self._parts[parameter] = Unprojected(part)
                    continue
                projection = projection_of(part, self._settings.projection, group["rank"])
                self._parts[parameter] = self._projections[parameter] = projection
                self._places[parameter] = len(self._places)

    @property
    def matrices(self) -> list[nn.Parameter]:
        """The parameters that are projected."""
        return list(self._projections)

    def keeps_basis(self, parameter: nn.Parameter) -> bool:
        """Whether the next step moves a matrix in the basis that it has: then its gradient's `projection` will do."""
        state = self.state[parameter]
        count = int(state["step"]) if state else 0
        return self._made_at(parameter, count) != count

    @torch.no_grad()
    def projection(self, parameter: nn.Parameter, gradient: Tensor) -> Tensor:
        """L' G, G R or L' G R, of the parameter's type, for the basis that it has."""
        return self._projections[parameter].project(gradient, self.state[parameter]).to(parameter.dtype)

    def state_boxes(self, parameter: nn.Parameter) -> dict[str, Box]:
        """What is here of each slot of a parameter's state."""
        shapes: dict[str, Shape] = {"step": ()}
        if parameter in self._projections:
            shapes |= self._projections[parameter].bases
            if self._scaled:
                shapes["length"] = (1,)
        boxes = {slot: Box.of_whole(shape) for slot, shape in shapes.items()}
        moved = self._parts[parameter]
        for slot, shape in self._base.slots(moved.moved).items():
            boxes[slot] = moved.part.rows(shape) if moved.by_rows else Box.of_whole(shape)
        return boxes

    @overload
    def step(self, closure: None = None) -> None: ...

    @overload
    def step(self, closure: Callable[[], float]) -> float: ...

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Move every parameter that has a gradient; the closure, which computes the loss, is called once, before.

        Raises Failure(82) where a basis is due and the gradient is not finite: it never reaches a factorisation.
        """
        loss = loss_of(closure)
        for group in self.param_groups:
            move = self._move_projected if group["matrix"] else self._move
            for age, parameters in self._by_age(group).items():
                move(parameters, age, group)
        return loss

    def _by_age(self, group: Mapping[str, Any]) -> dict[int, list[nn.Parameter]]:
        """The parameters with a gradient, their bases refreshed where due, by how old their moments are with this step.

        The base corrects the moments' bias by their age, so one call of it moves those of one age only.
        """
        ages: dict[int, list[nn.Parameter]] = defaultdict(list)
        for parameter in group["params"]:
            if parameter.grad is None and parameter not in self.given:
                continue
            state = self.state[parameter] or self._begin(parameter)
            count, born = int(state["step"]), 0
            if group["matrix"]:
                made = self._made_at(parameter, count)
                if made == count:
                    turn = Turn(self._places[parameter], count)
                    self._refresh.renew(self._projections[parameter], _gradient(parameter), state, turn)
                if self._settings.moments == "reset":
                    born = made
            # After the refresh, which may fail: what is counted are steps that were made.
            state["step"] += 1
            ages[count + 1 - born].append(parameter)
        return ages

    def _made_at(self, parameter: nn.Parameter, count: int) -> int:
        """The step count at which the basis was, or is, made that a matrix has in the step after `count` others."""
        gap, offset = self._groups[parameter]["gap"], 0
        if self._settings.stagger:
            offset = self._places[parameter] * gap // len(self._places)
        return made_at(count, gap, offset)

    def _begin(self, parameter: nn.Parameter) -> dict[str, Tensor]:
        state = self.state[parameter]
        for slot, box in self.state_boxes(parameter).items():
            dtype = self._dtypes.get(slot, parameter.dtype)
            if box.shape == tuple(parameter.shape):
                # In the weights' own layout, as fused kernels want it.
                state[slot] = torch.zeros_like(parameter, dtype=dtype)
            else:
                state[slot] = parameter.new_zeros(box.shape, dtype=dtype)
        # On the CPU, whatever the device is: it is read in each step, and the device is not to be waited for.
        state["step"] = torch.tensor(0.0)
        return state

    def _move(self, parameters: Sequence[nn.Parameter], age: int, group: Mapping[str, Any]) -> None:
        weights: list[Tensor] = list(parameters)
        gradients = [_gradient(parameter) for parameter in parameters]
        states = [self.state[parameter] for parameter in parameters]
        keep = 1.0 - group["lr"] * group["weight_decay"]
        if keep != 1.0 and not self._base.decays_last:
            torch._foreach_mul_(weights, keep)
        self._base.move(weights, gradients, states, age, group["lr"])
        if keep != 1.0 and self._base.decays_last:
            torch._foreach_mul_(weights, keep)

    def _move_projected(self, parameters: Sequence[nn.Parameter], age: int, group: Mapping[str, Any]) -> None:
        states = [self.state[parameter] for parameter in parameters]
        gradients = []
        for parameter, state in zip(parameters, states, strict=True):
            # Taken out, so that the projection of one step is never moved by in another.
            given = self.given.pop(parameter, None)
            if given is None:
                given = self._projections[parameter].project(_gradient(parameter), state).to(parameter.dtype)
            gradients.append(given)
        updates = [torch.zeros_like(gradient) for gradient in gradients]
        # The limit on growth is one of the update, not of the learning rate: a warm-up rises as fast as it is told to.
        now, later = (1.0, group["lr"]) if self._scaled else (group["lr"], 1.0)
        self._base.move(updates, gradients, states, age, now)
        keep = 1.0 - group["lr"] * group["weight_decay"]
        scale = later * group["scale"]
        # Decay and update are one pass over the weights; a decay that comes last shrinks the update as well.
        if self._base.decays_last:
            scale *= keep
        for parameter, state, projected, update in zip(parameters, states, gradients, updates, strict=True):
            projection = self._projections[parameter]
            if self._scaled:
                gradient = _gradient(parameter).flatten(1)
                moved = scaled_descent(gradient, projected, update, state, projection.part, self._settings.growth)
                parameter.mul_(keep).add_(moved.view(parameter.shape).to(parameter.dtype), alpha=scale)
            else:
                projection.add_back(parameter, update, state, keep, scale)


def _require_separable(name: str, moved: Unprojected, base: Base) -> None:
    require_rows("galore", name, moved.part)
    why = base.inseparable(moved.moved, moved.part.ranks) if moved.by_rows else ""
    if why:
        shared = f"{moved.part.ranks} processes share the rows of {name}, moved as {moved.moved}"
        hint = "choose base adamw or sgd, or sizes and a rank that fit"
        raise Failure(Exit.BAD_RECIPE, f"optimizer.base: {shared}; but {why}", hint)


def _gradient(parameter: nn.Parameter) -> Tensor:
    assert parameter.grad is not None
    return parameter.grad
