"""What is said of each field of one configuration; what nobody speaks of is found at the end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from drivetrain.spec.importing.easyrec.tree import Node
from drivetrain.spec.importing.findings import Findings, Gap, Taken, Told
from drivetrain.spec.tree import Path_


@dataclass(frozen=True)
class Facts:
    """What decides how other fields are read.

    `fg_mode` says what columns hold, `accumulation` how many micro-batches a step has, `streamed` whether training data
    are a stream, which has no epochs.
    """

    fg_mode: str
    accumulation: int
    streamed: bool

    @property
    def encoded(self) -> bool:
        """Whether columns hold ids already, and are called like their features."""
        return self.fg_mode == "FG_NONE"

    @property
    def raw(self) -> bool:
        """Whether columns are those that expressions name."""
        return self.fg_mode in ("FG_NORMAL", "FG_DAG")

    def steps(self, count: int) -> int:
        """Steps of ours; there each micro-batch is one."""
        return -(-count // self.accumulation)


class Reader:
    """Notes findings by the field that they come from."""

    def __init__(self, findings: Findings, facts: Facts) -> None:
        self.findings = findings
        self.facts = facts
        self._said: set[tuple[int, str]] = set()
        self._whole: set[int] = set()

    def take(self, node: Node, name: str, path: Path_, value: Any, note: str = "") -> None:
        """The recipe has this value at `path`, on account of a field, whether that is given or not."""
        self._say(node, name)
        taken = Taken(path, value, node.key(name), node.line_of(name), note, node.has(name))
        self.findings.taken.append(taken)

    def lose(self, node: Node, name: str, why: str) -> None:
        """A field that is given has no counterpart."""
        self._tell(self.findings.lost, node, name, why)

    def spare(self, node: Node, name: str, why: str) -> None:
        """A field that is given needs no counterpart."""
        self._tell(self.findings.spared, node, name, why)

    def lose_whole(self, node: Node, why: str) -> None:
        """A message has no counterpart, with all that is in it."""
        self._whole.add(id(node))
        self.findings.lost.append(Told(node.path, node.line, why))

    def spare_whole(self, node: Node, why: str) -> None:
        """A message needs no counterpart, with all that is in it."""
        self._whole.add(id(node))
        self.findings.spared.append(Told(node.path, node.line, why))

    def used(self, node: Node, *names: str) -> None:
        """What these fields say is in what was said of others, with all that is in them."""
        for name in names:
            self._say(node, name)
            self._whole.update(id(inner) for inner in node.nodes(name))

    def gap(self, node: Node, name: str, path: Path_, what: str, stand_in: Any) -> None:
        """A place of the recipe that its user fills in, on account of a field."""
        self._say(node, name)
        text = f"{node.key(name)}, line {node.line_of(name)}: {what}"
        self.findings.gaps.append(Gap(path, text, stand_in, key=node.key(name)))

    def mistake(self, node: Node, name: str, message: str) -> None:
        """A field's value is wrong."""
        self._say(node, name)
        self.findings.mistake(node.key(name), node.line_of(name), message)

    def unsaid(self, node: Node, known: Callable[[str, str], bool]) -> Iterator[tuple[Node, str]]:
        """Fields of which nothing was said. Messages that are `known` (by message and field) as a whole are not looked
        into, unless something was said of what is in them."""
        for name, values in node.fields.items():
            inner = [each for each in values if isinstance(each, Node)]
            said = (id(node), name) in self._said or any(self._touched(each) for each in inner)
            if not said and (known(node.type, name) or not any(each.fields for each in inner)):
                yield node, name
                continue
            for each in inner:
                if id(each) not in self._whole:
                    yield from self.unsaid(each, known)

    def _touched(self, node: Node) -> bool:
        """Whether something was said of a message, or of what is in it."""
        if id(node) in self._whole or any((id(node), name) in self._said for name in node.fields):
            return True
        return any(self._touched(inner) for name in node.fields for inner in node.nodes(name))

    def _say(self, node: Node, name: str) -> None:
        self._said.add((id(node), name))

    def _tell(self, where: list[Told], node: Node, name: str, why: str) -> None:
        self._say(node, name)
        if node.has(name):
            where.append(Told(node.key(name), node.line_of(name), why))
