"""Exponential moving averages of weights: what is evaluated and exported in their place."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType

import torch
from torch import Tensor, nn

from drivetrain.engine.recipe import Average
from drivetrain.optim.masters import wide


class Averages:
    """An average of every trainable parameter, in the parameter's own place and type; fp32 for weights that are kept in
    bf16. The rest is the network's own."""

    def __init__(
        self,
        settings: Mapping[str, Average],
        networks: Mapping[str, nn.Module],
        here: Mapping[str, Mapping[str, nn.Parameter]] = MappingProxyType({}),
        masters: Mapping[str, nn.Parameter] = MappingProxyType({}),
    ) -> None:
        """Those of the networks that have settings. They begin at the weights as they are. `here`: by network and name,
        the plain parameters on the memory of what this rank holds, where the networks' own are cut. `masters`: by
        NETWORK/NAME, what weights are rounded from, and which is averaged in their place."""
        self._settings = settings
        self._cut = bool(here)
        self._weights: dict[str, dict[str, nn.Parameter]] = {name: {} for name in settings}
        self._sources: dict[str, dict[str, nn.Parameter]] = {name: {} for name in settings}
        self._aside: list[tuple[nn.Parameter, Tensor]] = []  # weights that averages have taken the place of
        seen: set[int] = set()  # networks may share parameters, which have one average
        for network, weights in self._weights.items():
            for name, parameter in networks[network].named_parameters():
                if parameter.requires_grad and id(parameter) not in seen:
                    weights[name] = here[network][name] if self._cut else parameter
                    self._sources[network][name] = masters.get(f"{network}/{name}", weights[name])
                    seen.add(id(parameter))
        self._averages: dict[str, dict[str, Tensor]] = {}
        for network, sources in self._sources.items():
            self._averages[network] = {name: _kept(source) for name, source in sources.items()}

    @torch.no_grad()
    def restart(self) -> None:
        """Begin anew at the weights as they are now."""
        for network, averages in self._averages.items():
            for name, average in averages.items():
                average.copy_(self._sources[network][name])

    def decay(self, network: str, step: int) -> float:
        """How much of a network's average stays in this step: less in the first ones where `warmup` is on."""
        settings = self._settings[network]
        if not settings.warmup:
            return settings.decay
        return min(settings.decay, (1 + step) / (10 + step))

    @torch.no_grad()
    def update(self, step: int, networks: Iterable[str]) -> None:
        """Move those of these networks towards the weights that this step has left:
        average += (1 - decay) * (weight - average)."""
        for network in networks:
            if averages := list(self._averages.get(network, {}).values()):
                sources: list[Tensor] = list(self._sources[network].values())
                keep = 1.0 - self.decay(network, step)
                if any(map(wide, sources)):
                    for average, source in zip(averages, sources, strict=True):  # one wide copy at a time
                        average.lerp_(source.float(), keep)
                else:
                    torch._foreach_lerp_(averages, sources, keep)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Those networks whose averages are to be evaluated hold them, as long as this lasts."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    def _swap(self) -> None:
        # Only storage changes hands: parameters stay the objects that networks and optimizers hold, nothing is copied.
        # A cut parameter has its memory from the one that it is a part of, which would not hear of it: numbers move.
        aside, self._aside = self._aside, []
        for weight, held in aside:
            weight.data.copy_(held)
        for network, settings in self._settings.items():
            if not settings.evaluate:
                continue
            for name, weight in self._weights[network].items():
                average = self._averages[network][name]
                if average.dtype != weight.dtype:  # it is rounded, and stays as it is
                    if not aside:
                        self._aside.append((weight, weight.detach().clone()))
                        weight.data.copy_(average)
                elif self._cut:
                    held = weight.detach().clone()
                    weight.data.copy_(average)
                    average.copy_(held)
                else:
                    weight.data, average.data = average.data, weight.data

    @property
    def tensors(self) -> dict[str, Tensor]:
        """What a commit keeps."""
        tensors = {}
        for network, averages in self._averages.items():
            for name, average in averages.items():
                tensors[f"averages/{network}/{name}"] = average
        return tensors


def _kept(source: nn.Parameter) -> Tensor:
    """What an average begins as: fp32 for weights that are kept in bf16, where small changes would be lost."""
    return source.detach().float() if wide(source) else source.detach().clone()
