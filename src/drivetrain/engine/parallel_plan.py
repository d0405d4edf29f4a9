"""How a network is laid out over a mesh: strings only, stated once beside the model, or derived."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Literal

from torch import nn

from drivetrain.spec.exits import Exit, Failure

Split = Literal["column", "row", "embedding", "head", "sequence", "gather", "experts", "summand"]
"""What a module is along `tensor` (Shoeybi et al. 2019, arXiv 1909.08053; Korthikanti et al. 2022, arXiv 2205.05198):

column: a linear layer that makes some of the features, from all of its input
row: a linear layer that takes some of the features, and whose sums are shared out by positions
embedding: a table with some of the rows
head: a linear layer that makes some of the logits, which stay apart: the loss is computed of the parts
sequence: works on some of the positions, such as a norm or a dropout
gather: wants all positions of its first argument, which come from what works on some of them
experts: a gather whose parameters are split as its class says in `split_along`, by name the dimension or None where all
    have it whole. It gives a part of a sum, and beside it a number that all come to alike
summand: a row within experts, whose sums are left to them
"""


@dataclass(frozen=True)
class ParallelPlan:
    """Modules by name, as `nn.Module.named_modules` has them; `*` stands for one part of a name.

    `units` are gathered whole, one after the other, where a network is sharded: its repeated blocks. `split` says what
    becomes of modules along `tensor`. `methods` of the network are called by the task beside `forward`. `stages` are
    the modules along `pipeline`, in the order in which a pass goes through them, each given what the one before it has
    made: of these each stage has some, with as many units as the others.

    `context` are the modules in which positions of a sample meet, such as attention, and `sliced` what of a batch is
    cut by positions along `context`: its keys, each with the dimension that positions are. The network and these
    modules have an attribute `positions` then (`Positions`), that says which are here and brings the others.
    """

    units: tuple[str, ...] = ()
    split: Mapping[str, Split] = field(default_factory=dict)
    methods: tuple[str, ...] = ()
    stages: tuple[str, ...] = ()
    context: tuple[str, ...] = ()
    sliced: Mapping[str, int] = field(default_factory=dict)


def derived(network: nn.Module) -> ParallelPlan:
    """The plan of a network that states none: its repeated blocks are units, nothing is split. Models of `transformers`
    say by their classes which modules belong together (`_no_split_modules`), such as layers and embeddings."""
    together = getattr(network, "_no_split_modules", None) or ()
    stated = [name for name, module in network.named_modules() if type(module).__name__ in together]
    units = tuple(stated or _blocks(network, ""))
    return ParallelPlan(units=units, stages=_around(network, units))


def _around(network: nn.Module, units: tuple[str, ...]) -> tuple[str, ...]:
    """The units with the network's other modules before and behind them, where they are one child's, or children."""
    if len({unit.rpartition(".")[0] for unit in units}) != 1 or units[0].count(".") > 1:
        return ()
    found: list[str] = []
    for name, child in network.named_children():
        inner = [unit for unit in units if unit == name or unit.startswith(f"{name}.")]
        if inner or any(True for _ in child.parameters()):
            found += inner or [name]
    return tuple(found)


def _blocks(module: nn.Module, prefix: str) -> Iterator[str]:
    """The outermost modules that have siblings of their class, in a list or a sequence, and parts of their own."""
    repeated = Counter(type(child) for child in module.children())
    listed = isinstance(module, (nn.ModuleList, nn.Sequential))
    for name, child in module.named_children():
        # A layer without parts may be a mere holder of weights, whose forward nobody calls.
        block = listed and repeated[type(child)] > 1 and any(True for _ in child.children())
        if block and any(True for _ in child.parameters()):
            yield prefix + name
        else:
            yield from _blocks(child, f"{prefix}{name}.")


def matching(network: nn.Module, patterns: Iterable[str], asked: str) -> dict[str, str]:
    """The modules that patterns name, each with the first pattern that does, in the order of the network.

    Raises Failure(78) for a pattern that names none; `asked` says whose it is.
    """
    patterns = list(patterns)
    for pattern in patterns:
        if not named_by(network, [pattern]):
            cause = f"{asked}: no module is called {pattern!r}"
            raise Failure(Exit.BAD_RECIPE, cause, f"there are {_some_modules(network)}")
    return named_by(network, patterns)


def named_by(network: nn.Module, patterns: Iterable[str]) -> dict[str, str]:
    """The same, where patterns may name nothing."""
    patterns, found = list(patterns), {}
    for name, _ in network.named_modules():
        hits = [pattern for pattern in patterns if _fits(name, pattern)]
        if hits:
            found[name] = hits[0]
    return found


def _fits(name: str, pattern: str) -> bool:
    """Part by part: a `*` does not reach across a dot."""
    parts, wanted = name.split("."), pattern.split(".")
    return len(parts) == len(wanted) and all(map(fnmatchcase, parts, wanted))


def _some_modules(network: nn.Module) -> str:
    """The names of the first modules, for a message."""
    names = [name for name, _ in network.named_modules() if name]
    return ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")
