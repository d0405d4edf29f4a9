"""A mixture of experts in the place of an MLP: a router gives each token to some of many small ones (Shazeer et al.
2017, arXiv 1701.06538).

Tokens are read in the order of their experts, and their results read back: nothing is added up in an order that a run
does not repeat. What a sample comes to depends on no other sample, so micro-batches and processes are free.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from drivetrain.checkpoint.boxes import part_of
from drivetrain.engine.context import WHOLE
from drivetrain.engine.counted import Counted
from drivetrain.tasks.language_model import recipe
from drivetrain.tasks.language_model.grouped import grouped_product
from drivetrain.tasks.language_model.rows import rows_at


class Routed(NamedTuple):
    """Where tokens go: `experts` (int64) and their `weights`, [samples, positions, k] each, the best one first; and how
    uneven that is: `balance`, 0-d, a sum over samples of what is 1 where all experts have as much."""

    experts: Tensor
    weights: Tensor
    balance: Tensor


class Router(Counted):
    """Scores experts, and counts how many tokens each is given; the last count is of those that it had no room for.

    `bias` is added to scores where experts are chosen, and nowhere else; each step moves it towards those that had too
    little (DeepSeek-V3, arXiv 2412.19437, section 2.1.2).
    """

    positions = WHOLE

    def __init__(self, width: int, settings: recipe.Experts) -> None:
        super().__init__(settings.count + 1)
        self.settings = settings
        self.weight = nn.Parameter(torch.empty(settings.count, width))
        self.bias = nn.Buffer(torch.zeros(settings.count))

    def forward(self, x: Tensor) -> Routed:
        """`x` [samples, positions, width]. In float32, whatever autocast says: a rounded score is another choice."""
        wide, number = torch.promote_types(x.dtype, torch.float32), self.settings.count
        with torch.autocast(x.device.type, enabled=False):
            logits = F.linear(x.to(wide), part_of(self.weight).to(wide))
            scores = logits.softmax(dim=-1) if self.settings.scores == "softmax" else logits.sigmoid()
            # A stable sort and not topk: of equal scores the first expert wins, on every device.
            ranked = (scores.detach() + self.bias).sort(dim=-1, descending=True, stable=True).indices
            experts = ranked[..., : self.settings.top_k]
            weights = scores.gather(-1, experts)
            if self.settings.top_k > 1:  # of one alone nothing would be left to learn from
                weights = weights / weights.sum(dim=-1, keepdim=True)
            given = _per_sample(experts, number)
            self._count(given.sum(dim=0))
            # Of a sample of which others have positions, too, this is their part of the balance: it adds up.
            choices = self.positions.total(experts[0].numel())
            likely = (scores / scores.sum(dim=-1, keepdim=True)).sum(dim=1) / self.positions.total(x.shape[1])
            return Routed(experts, weights, (likely * self.positions.added(given) * (number / choices)).sum())

    def _count(self, given: Tensor) -> None:
        if self.training:
            self.counts[:-1].add_(given)

    def drop(self, number: Tensor) -> None:
        """So many choices found no room."""
        if self.training:
            self.counts[-1].add_(number)

    def settle(self, total: Tensor) -> None:
        """Move the bias by the tokens of the whole step."""
        given = total[:-1].to(self.bias.dtype)
        self.bias += self.settings.balance.rate * (given.mean() - given).sign()

    def told(self, total: Tensor) -> Mapping[str, Sequence[int]]:
        """`given`: tokens by expert, those without room too; `dropped`: how many had none."""
        *given, dropped = total.tolist()
        return {"given": given, "dropped": [dropped]}


class Experts(nn.Module):
    """SwiGLU experts, and beside them one for all tokens where the recipe shares some.

    Where layers are split, each process has some of the features inside of every expert. All route alike, and what
    comes out is a part of a sum over them.
    """

    split_along: ClassVar[Mapping[str, int | None]] = {"router.weight": None, "gate": 1, "up": 1, "down": 2}

    def __init__(self, width: int, hidden: int, settings: recipe.Experts, shared: nn.Module | None) -> None:
        super().__init__()
        self.settings = settings
        self.router = Router(width, settings)
        self.gate = nn.Parameter(torch.empty(settings.count, hidden, width))
        self.up = nn.Parameter(torch.empty(settings.count, hidden, width))
        self.down = nn.Parameter(torch.empty(settings.count, width, hidden))
        self.shared = shared

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """[samples, positions, width] to the same shape, and the router's `balance`."""
        given, x = x, part_of(x)
        routed = self.router(x)
        weights, count, room = routed.weights, self.settings.count, self.settings.capacity
        way = by_expert(routed.experts, count) if room is None else with_room(routed.experts, count, room)
        if way.absent is not None:
            self.router.drop(way.absent.sum())
            weights = weights.masked_fill(way.absent.view_as(weights), 0.0)
        dtype = x.dtype
        if torch.is_autocast_enabled(x.device.type):
            dtype = torch.get_autocast_dtype(x.device.type)
        rows = rows_at(x.to(dtype).flatten(0, 1), way.tokens, way.places, way.absent)
        made = rows_at(self._products(rows, way.ends), way.places.flatten(), way.choices, way.empty)
        made = made.view(*weights.shape, -1)
        mixed = torch.einsum("spkw,spk->spw", made, weights.to(dtype))
        if self.shared is not None:
            mixed = mixed + self.shared(given)
        return mixed, routed.balance

    def _products(self, rows: Tensor, ends: Tensor | None) -> Tensor:
        """Each expert's own: `rows` [places, width] lie expert by expert, up to `ends`, or as many for each."""
        gate, up, down = [part_of(weight).to(rows.dtype) for weight in (self.gate, self.up, self.down)]
        if ends is not None:
            inner = F.silu(grouped_product(rows, gate, ends)) * grouped_product(rows, up, ends)
            return grouped_product(inner, down, ends)
        rows = rows.unflatten(0, (self.settings.count, -1))
        return ((F.silu(rows @ gate.mT) * (rows @ up.mT)) @ down.mT).flatten(0, 1)


class Way(NamedTuple):
    """How tokens lie expert by expert. Of each place the token (`tokens` [places]) and which of all choices it is
    (`choices` [places]); of each choice the place (`places` [tokens, k]).

    `absent` [tokens, k] are choices without a place, `empty` [places] places without a token; None where there are
    none. `ends` (int32) is where each expert's places end; None where all have as many.
    """

    tokens: Tensor
    choices: Tensor
    places: Tensor
    absent: Tensor | None
    empty: Tensor | None
    ends: Tensor | None


def by_expert(experts: Tensor, count: int) -> Way:
    """A place for every choice ([samples, positions, k]): those of an expert in the order of its tokens."""
    each = experts.shape[-1]
    ordered, choices = experts.flatten().sort(stable=True)
    places = torch.empty_like(choices)
    places[choices] = torch.arange(len(choices), device=choices.device)
    ends = torch.searchsorted(ordered, torch.arange(count, device=ordered.device), right=True, out_int32=True)
    return Way(choices // each, choices, places.view(-1, each), None, None, ends)


def with_room(experts: Tensor, count: int, capacity: float) -> Way:
    """As many places for every expert in each sample: `capacity` times what it had if all had the same, rounded up.

    First choices go before second ones, and earlier positions before later ones (GShard, arXiv 2006.16668, algorithm
    1, with a sample as the group); the others have no place.
    """
    samples, positions, each = experts.shape
    room = math.ceil(capacity * positions * each / count)
    ordered, order = experts.transpose(1, 2).flatten(1).sort(dim=1, stable=True)
    given = _per_sample(experts, count)
    before = (given.cumsum(dim=1) - given).gather(1, ordered)
    turn = torch.arange(ordered.shape[1], device=experts.device) - before
    sample = torch.arange(samples, device=experts.device).unsqueeze(1)
    total = count * samples * room
    place = ((ordered * samples + sample) * room + turn).where(turn < room, total)
    # From (rank, position) to (position, rank): as choices are numbered.
    rank, position = order // positions, order % positions
    number = (sample * positions + position) * each + rank
    places = torch.empty(number.numel(), dtype=torch.int64, device=experts.device)
    places[number.flatten()] = place.flatten()
    absent = (places == total).view(-1, each)
    # One place more than there are takes all that have none.
    choices = torch.full((total + 1,), -1, dtype=torch.int64, device=experts.device)
    choices[place.flatten()] = number.flatten()
    choices = choices[:total]
    empty = choices < 0
    choices = choices.clamp(min=0)
    places = places.clamp(max=total - 1).view(-1, each)
    return Way(choices // each, choices, places, absent, empty, None)


def _per_sample(experts: Tensor, count: int) -> Tensor:
    """How many of a sample's choices each expert has: int64 [samples, count]."""
    chosen = experts.flatten(1)
    found = torch.zeros(len(chosen), count, dtype=torch.int64, device=chosen.device)
    return found.scatter_add_(1, chosen, torch.ones_like(chosen))
