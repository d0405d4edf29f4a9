"""What becomes of the keys of another system's file: each is taken, or needs nothing here, or has no counterpart."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any, Protocol

from drivetrain.spec.tree import Mistake, Origin, Path_

FILL_IN = "FILL_IN"
"""What stands in a written recipe where its user has to say more. It is the name of nothing, so a check finds each."""


@dataclass(frozen=True)
class Source:
    """A file to import: its name for messages, its text, how many processes the run is for, where that is known, and
    the text of edits to it in the other system's own language."""

    name: str
    text: str
    processes: int | None = None
    edits: str = ""


@dataclass(frozen=True)
class Taken:
    """A value of the recipe, and the key of the file that it comes from.

    `given` is false where the file leaves the key out, and the value is what the other system does then; `line` is
    that of what the key would be in. It is 0 where the value comes from the command line.
    """

    path: Path_
    value: Any
    key: str
    line: int
    note: str = ""
    given: bool = True

    @property
    def comment(self) -> str:
        """Where the value comes from, as the written recipe says it."""
        text = f"{self.key}, line {self.line}" if self.line else self.key
        if not self.given:
            text = f"{self.key} where it is left out"
        return f"{text}: {self.note}" if self.note else text


@dataclass(frozen=True)
class Told:
    """A key of the file with a sentence on it."""

    key: str
    line: int
    why: str


@dataclass(frozen=True)
class Gap:
    """A place of the recipe that the file does not fill, and what belongs there.

    `stand_in` is a value with which all else can be checked. `by` is the path at which a recipe below this one fills
    it; None: at the same, (): none does. `key` is the key of the file that leaves it open, where one does.
    """

    path: Path_
    what: str
    stand_in: Any
    by: Path_ | None = None
    key: str = ""

    @property
    def settled_at(self) -> Path_:
        """Where a recipe below this one fills it; () where none does."""
        return self.path if self.by is None else self.by


@dataclass
class Findings:
    """All that an importer has found. `lost` have no counterpart, `spared` need none."""

    source: Source
    taken: list[Taken] = field(default_factory=list)
    lost: list[Told] = field(default_factory=list)
    spared: list[Told] = field(default_factory=list)
    gaps: list[Gap] = field(default_factory=list)
    mistakes: list[Mistake] = field(default_factory=list)

    def mistake(self, key: str, line: int, message: str) -> None:
        """A key's value is wrong, whatever the recipe makes of it; line 0: that of the command line."""
        origin = Origin("file", self.source.name, line) if line else Origin("command line", text="--edits")
        self.mistakes.append(Mistake((key,) if key else (), message, origin))

    @property
    def keys(self) -> Collection[str]:
        """Every key of which something was said."""
        said: list[Taken | Told | Gap] = [*self.taken, *self.lost, *self.spared, *self.gaps]
        return {each.key for each in said}


class Importer(Protocol):
    """Reads one kind of file. It runs nothing of it, and opens no other."""

    def marks(self, text: str) -> list[str]:
        """The words of a text that show it to be of this kind; none where it is not. The text may be damaged."""
        ...

    def read(self, source: Source) -> Findings:
        """What becomes of each of its keys. Mistakes in the file are among the findings."""
        ...
