"""What a job asks of the place where it runs, in the same words for every target; each adds its own, in its file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

from pydantic import StringConstraints

from drivetrain.spec.settings import Component, Count, Duration, Settings, Whole, nothing

Word = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.:@/+-]*$", max_length=200)]
"""A name as engines have them: no space, no quote, nothing that a shell or a manifest could read otherwise."""
Variable = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", max_length=200)]
"""The name of an environment variable."""
Text = Annotated[str, StringConstraints(pattern=r"^[^\x00]*$")]
"""Any text that a process can be given."""
Option = Annotated[str, StringConstraints(pattern=r"^[A-Za-z][A-Za-z0-9_.-]*$", max_length=100)]
"""The name of something that is passed through."""
Memory = Annotated[str, StringConstraints(pattern=r"^[1-9]\d*(M|G|T)$")]
"""An amount of memory in units of 1024: 500M, 16G, 1T."""


def mebibytes(memory: str) -> int:
    """`Memory` in units of 2^20 bytes."""
    return int(memory[:-1]) * {"M": 1, "G": 1 << 10, "T": 1 << 20}[memory[-1]]


@dataclass(frozen=True, kw_only=True)
class Code(Settings):
    """Which code the job runs, beside the installed package."""

    kind: Annotated[
        Literal["as_it_stands", "commit", "archive"],
        nothing("the folder where it is submitted; one commit of its repository; its working tree, packed up"),
    ] = "as_it_stands"
    commit: Annotated[Word, nothing("which commit")] = "HEAD"


@dataclass(frozen=True, kw_only=True)
class Mount(Settings):
    """Data that the job sees at a path."""

    source: Annotated[Text, nothing("what the target mounts: a path, a volume's name, a URL")]
    path: Annotated[Text, nothing("where the job sees it")]
    read_only: Annotated[bool, nothing("whether the job may not write there")] = True


@dataclass(frozen=True, kw_only=True)
class ResourceSpec(Component):
    """What one job asks for, in the same words for every target. What a target has no use for, it refuses."""

    unused: ClassVar[tuple[str, ...]] = ()
    """Fields that mean nothing to this kind of target."""

    nodes: Annotated[Count, nothing("machines")] = 1
    processes: Annotated[Count, nothing("training processes on each machine")] = 1
    accelerators: Annotated[Whole, nothing("of each machine")] = 0
    accelerator: Annotated[Word | None, nothing("its name there; null: the target's usual one")] = None
    cpus: Annotated[Count | None, nothing("of each machine; null: what the target gives")] = None
    memory: Annotated[Memory | None, nothing("of each machine, such as 16G; null: what the target gives")] = None
    walltime: Annotated[Duration | None, nothing("of one attempt, such as 12h; null: what the target gives")] = None
    retries: Annotated[Whole, nothing("attempts after the first one, in all")] = 20
    fruitless: Annotated[Count, nothing("attempts in a row without a new commit after which it has failed")] = 3
    environment: Annotated[Mapping[Variable, Text], nothing("variables of the processes")] = field(default_factory=dict)
    secrets: Annotated[
        Mapping[Variable, Text], nothing("variables whose values the target looks up: where, never what")
    ] = field(default_factory=dict)
    image: Annotated[Text | None, nothing("container image")] = None
    python: Annotated[Text | None, nothing("the interpreter there; null: this one, or the image's `python`")] = None
    code: Annotated[Code, nothing("which code the job runs")] = Code()
    mounts: Annotated[tuple[Mount, ...], nothing("data")] = ()
    runs: Annotated[Text, nothing("where run directories are made: a path that all machines see, or a URL")] = "runs"
    queue: Annotated[Word | None, nothing("queue or partition")] = None
    namespace: Annotated[Word | None, nothing("of a cluster that has them")] = None
    role: Annotated[Word | None, nothing("account or role that the job runs as")] = None
    extras: Annotated[
        Mapping[Option, Text | int | float | bool], nothing("the target's own options, passed through by name")
    ] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Container(ResourceSpec):
    """Jobs in containers, whose image has drivetrain and what the recipe needs."""

    folder: Annotated[
        Text, nothing("where the folder that you submit from lies in the image: relative paths begin there")
    ] = "/"
    timeout: Annotated[Count, nothing("seconds that one call may take")] = 30
