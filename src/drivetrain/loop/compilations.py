"""What the ledger is told of torch's compiler: each graph, and once, where one function takes many."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from torch import nn

from drivetrain.ledger.records import CompileRecord, NoteRecord
from drivetrain.runtime.compiling import Compilation


class Compilations:
    """Makes records of what was compiled, with the names of the modules whose forward pass it is."""

    def __init__(self, networks: Mapping[str, nn.Module], borne: int) -> None:
        """More than `borne` graphs in place of earlier ones of a function are told in a note."""
        self._networks = networks
        self._borne = borne
        self._made: Counter[tuple[str, str]] = Counter()
        self._modules: Mapping[str, str] = {}

    def records(self, found: Sequence[Compilation]) -> Iterator[CompileRecord | NoteRecord]:
        """What the ledger is told of these."""
        if found and not self._modules:
            self._modules = modules_by_code(self._networks)
        for made in found:
            place, _, called = made.function.rpartition(" ")
            modules = self._modules.get(place) or self._modules.get(called, "")
            yield CompileRecord(modules=modules, **made._asdict())
            if made.why == "first":
                continue
            # Forward and backward are told one by one, and one of them is enough to count.
            self._made[made.function, made.phase] += 1
            if self._made[made.function, made.phase] == self._borne + 1:
                yield NoteRecord(text=_often(made, modules, self._borne))


def _often(made: Compilation, modules: str, borne: int) -> str:
    name = f"{modules} ({made.function})" if modules else made.function
    return (
        f"compile: {name} was compiled again more than {borne} times in {made.phase} passes, the last time in step"
        f" {made.step} for: {made.why}; where sizes of batches differ, compile.dynamic makes one graph for all"
    )


def modules_by_code(networks: Mapping[str, nn.Module]) -> dict[str, str]:
    """By FILE:LINE of a forward pass, or by the class where that is torch's own, the modules that have it."""
    found: dict[str, list[str]] = {}
    for network, root in networks.items():
        for name, module in root.named_modules():
            path = f"{network}.{name}".rstrip(".")
            found.setdefault(type(module).__name__, []).append(path)
            if code := getattr(type(module).forward, "__code__", None):
                found.setdefault(f"{code.co_filename}:{code.co_firstlineno}", []).append(path)
    return {key: _together(paths) for key, paths in found.items()}


def _together(paths: Sequence[str]) -> str:
    """One name for several: `model.layers.*`; the first and how many more where they have nothing in common."""
    if len(paths) == 1:
        return paths[0]
    patterns = list(dict.fromkeys(re.sub(r"\b\d+\b", "*", path) for path in paths))
    more = f" and {len(patterns) - 1} more" if len(patterns) > 1 else ""
    return patterns[0] + more
