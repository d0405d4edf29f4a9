"""Layers of networks, by names that messages give them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from torch import nn


def named_layers(networks: Mapping[str, nn.Module]) -> Iterator[tuple[str, nn.Module]]:
    """Every module of every network, the networks themselves too, with its dotted name: NETWORK.PATH."""
    for network, whole in networks.items():
        yield from whole.named_modules(prefix=network)
