"""Exponential moving averages of weights: what is evaluated and exported in their place."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType

import torch
from torch import Tensor, nn

from drivetrain.engine.recipe import Average


class Averages:
    """An average of every trainable parameter, in the parameter's own type and place. The rest is the network's own."""

    def __init__(
        self,
        settings: Mapping[str, Average],
        networks: Mapping[str, nn.Module],
        here: Mapping[str, Mapping[str, nn.Parameter]] = MappingProxyType({}),
    ) -> None:
        """Those of the networks that have settings. They begin at the weights as they are. `here`: by network and name,
        the plain parameters on the memory of what this rank holds, where the networks' own are cut."""
        self._settings = settings
        self._cut = bool(here)
        self._weights: dict[str, dict[str, nn.Parameter]] = {name: {} for name in settings}
        seen: set[int] = set()  # networks may share parameters, which have one average
        for network, weights in self._weights.items():
            for name, parameter in networks[network].named_parameters():
                if parameter.requires_grad and id(parameter) not in seen:
                    weights[name] = here[network][name] if self._cut else parameter
                    seen.add(id(parameter))
        self._averages: dict[str, dict[str, Tensor]] = {}
        for network, weights in self._weights.items():
            self._averages[network] = {name: parameter.detach().clone() for name, parameter in weights.items()}

    @torch.no_grad()
    def restart(self) -> None:
        """Begin anew at the weights as they are now."""
        for network, averages in self._averages.items():
            for name, average in averages.items():
                average.copy_(self._weights[network][name])

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
                weights: list[Tensor] = list(self._weights[network].values())
                torch._foreach_lerp_(averages, weights, 1.0 - self.decay(network, step))

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
        for network, settings in self._settings.items():
            if not settings.evaluate:
                continue
            for name, weight in self._weights[network].items():
                average = self._averages[network][name]
                if self._cut:
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
