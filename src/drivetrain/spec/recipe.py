"""The recipe's top level. The rooms' own settings are looked up lazily, so this file imports none of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from drivetrain.spec.amount import Amount
from drivetrain.spec.settings import Count, Settings, Whole, bits, cost, nothing

Recomputed = Literal["keep", "selective", "recompute"]
"""What becomes of a module's activations until its backward pass: they are kept; those that products and convolutions
make are kept, and the rest is computed again; all is computed again."""

Activations = Recomputed | Mapping[str, Recomputed]
"""One word for the repeated blocks of a network, or a word for each pattern of its modules' names."""


@dataclass(frozen=True, kw_only=True)
class Compile(Settings):
    """What torch.compile makes graphs of, and how."""

    scope: Annotated[
        Literal["block", "network"], bits("block: each repeated block of a network, equal ones by one graph")
    ] = "network"
    mode: Annotated[
        Literal["default", "reduce-overhead", "max-autotune"], bits("torch's own; this version runs default")
    ] = "default"
    dynamic: Annotated[bool, bits("one graph for batches of all sizes; else one for each size that comes")] = False
    recompiles: Annotated[Whole, nothing("of one function that are borne without a word")] = 8


@dataclass(frozen=True, kw_only=True)
class Recipe(Settings):
    """One training run, whole. `Any` marks a section that `spec.registry` resolves to a room's settings class."""

    version: Annotated[Literal[1], nothing("of the recipe's format")] = 1
    name: Annotated[str, nothing("of the run; part of its directory's name")]
    seed: Annotated[Whole, bits("every random number follows from it and a position")] = 0
    task: Annotated[Any, bits("what is trained: a kind, or package.module:Name")]
    data: Annotated[Any, bits("what it is trained on")]
    lanes: Annotated[Count | Literal["auto"], bits("logical workers; auto: chosen at the first start, then frozen")] = (
        "auto"
    )
    exact: Annotated[bool, bits("the same bits on 1, 2, 4 ... processes; a micro-batch never spans lanes")] = False
    device: Annotated[
        Literal["auto", "cpu", "cuda", "mps"], cost("where it runs; auto: an accelerator if there is one")
    ] = "auto"
    matmul: Annotated[Literal["highest", "high", "medium"], bits("precision of fp32 matrix products")] = "highest"
    batch: Annotated[Any, bits("the global batch and its micro-batches")]
    budget: Annotated[Amount, bits("how long it trains: exactly one of steps, samples, tokens, epochs")]
    optimizer: Annotated[Any, bits("one for all networks, or a mapping by network")]
    schedule: Annotated[Any, bits("one for all networks, or a mapping by network")]
    networks: Annotated[Any, bits("by network: when it moves, and what of the settings below is its own")]
    precision: Annotated[
        Literal["fp32", "bf16", "fp16"], bits("of forward and backward; what weights are kept as, `parameters` says")
    ] = "fp32"
    parameters: Annotated[Any, bits("what weights are kept as")]
    activations: Annotated[
        Activations, cost("which are kept for the backward pass: keep, selective or recompute, or by modules' names")
    ] = "keep"
    embeddings: Annotated[Any, bits("what moves the rows of embedding tables, and who holds them")]
    scaling: Annotated[Any, bits("the factor on the loss, with fp16")]
    average: Annotated[Any, bits("a moving average of the weights; null: none")] = None
    guard: Annotated[Any, bits("what becomes of steps that are not finite, or stand out")]
    parallel: Annotated[Any, cost("how the processes are laid out: who holds what, who reads what")]
    compile: Annotated[
        bool | Compile, bits("compile the networks (torch.compile); true: each as a whole, with the defaults below")
    ] = False
    kernels: Annotated[
        Any,
        bits("what computes modules in their classes' place, by patterns of their names; null: nothing", later=True),
    ] = None
    init: Annotated[Any, bits("initial weights from other runs or files; null: by the networks' own rule")] = None
    statistics: Annotated[Any, cost("what is measured of gradients and weights; null: nothing")] = None
    evaluate: Annotated[Any, cost("when the validation sets are scored")]
    checkpoint: Annotated[Any, cost("when state is committed")]
    stop: Annotated[Any, cost("what ends it before its budget")]
    telemetry: Annotated[Any, cost("what the ledger is told about the processes")]
    profile: Annotated[Any, cost("steps that torch's profiler watches; null: none")] = None
    watch: Annotated[Any, nothing("sinks")]
    callbacks: Annotated[Any, nothing("your own functions and classes that hear what the ledger is told")] = ()
    launch: Annotated[Any, cost("where it runs")]

    @property
    def compiled(self) -> Compile | None:
        """What `compile` asks for; None where nothing is compiled."""
        return Compile() if self.compile is True else self.compile or None
