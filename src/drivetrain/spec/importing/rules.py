"""Rules of a table that says, key by key, what becomes of another system's settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from drivetrain.spec.importing.findings import Findings, Gap, Taken, Told
from drivetrain.spec.importing.json_text import line_of
from drivetrain.spec.registry import nearest
from drivetrain.spec.text import shortened
from drivetrain.spec.tree import Path_, TreeNode, dotted, to_data

AUTO = "auto"
"""The value of a key that somebody else fills in."""
# 0 is in it, too: Python's False is equal to it.
OFF = (False, None)
Key = tuple[str, ...]
"""A key with those of the objects that it is in."""


class _Absent:
    def __repr__(self) -> str:
        return "absent"


ABSENT = _Absent()
"""In place of the value of a key that the file does not have."""


class Keys:
    """The keys of one file, and what is found of each. `system` is whose keys they are, for messages."""

    def __init__(self, tree: TreeNode, findings: Findings, system: str) -> None:
        self.system = system
        self.findings = findings
        self._tree = tree
        self._data = to_data(tree)

    def value(self, key: Key) -> Any:
        """The plain data at a key, or ABSENT."""
        found = self._data
        for part in key:
            if not isinstance(found, dict) or part not in found:
                return ABSENT
            found = found[part]
        return found

    def given(self, key: Key) -> bool:
        """Whether the file itself says the value: it is there, and not left to somebody else."""
        value = self.value(key)
        return value is not ABSENT and value != AUTO

    def is_auto(self, key: Key) -> bool:
        """Whether somebody else fills it in."""
        return self.value(key) == AUTO

    def line(self, key: Key) -> int:
        """The line of a key, or of what it would be in."""
        return line_of(self._tree, key)

    def take(self, key: Key, to: str, value: Any, note: str = "") -> None:
        """The recipe has this value at the dotted path `to`, on account of this key."""
        # A default that is taken is told apart in the report: nobody has written it.
        given = self.value(key) is not ABSENT
        taken = Taken(path_of(to), value, dotted(key), self.line(key), note, given)
        self.findings.taken.append(taken)

    def lose(self, key: Key, why: str) -> None:
        """The key has no counterpart."""
        self.findings.lost.append(Told(dotted(key), self.line(key), why))

    def spare(self, key: Key, why: str) -> None:
        """The key needs no counterpart."""
        self.findings.spared.append(Told(dotted(key), self.line(key), why))

    def leave(self, key: Key, to: str, what: str, stand_in: Any) -> None:
        """The key leaves a place of the recipe to somebody else."""
        text = f'{dotted(key)}, line {self.line(key)}, is "{self.value(key)}": {what}'
        self.findings.gaps.append(Gap(path_of(to), text, stand_in, key=dotted(key)))

    def mistake(self, key: Key, message: str) -> None:
        """The key's value is wrong."""
        self.findings.mistake(dotted(key), self.line(key), message)

    def whole(self, key: Key, least: int = 1) -> int | None:
        """A whole number, 5e8 among them; None where the file does not say one, and a mistake where it is another."""
        if not self.given(key):
            return None
        try:
            return whole(self.value(key), least)
        except ValueError as error:
            self.mistake(key, str(error))
            return None

    def flag(self, key: Key, default: bool = False) -> bool:
        """True or false; a mistake where it is something else. What somebody else decides may be true."""
        value = self.value(key)
        if value is ABSENT or value is None:
            return default
        # A word that is no bool still counts as true below: then one mistake is told, and not all that would follow
        # from an object that seems off.
        if not isinstance(value, bool) and value != AUTO:
            self.mistake(key, f"is true or false, not {shown(value)}")
        return bool(value)


def path_of(to: str) -> Path_:
    """A dotted path of the recipe, where numbers are places in lists."""
    parts: list[str | int] = []
    for part in to.split("."):
        parts.append(int(part) if part.isdecimal() else part)
    return tuple(parts)


def whole(value: Any, least: int = 1) -> int:
    """A whole number of at least so much. Raises ValueError for all else."""
    number = value
    # JSON has numbers only, and large ones are written as 5e8.
    if isinstance(value, float) and value.is_integer():
        number = int(value)
    # Python's True is a whole number, 1.
    if not isinstance(number, int) or isinstance(number, bool) or number < least:
        raise ValueError(f"is a whole number of at least {least}, not {shown(value)}")
    return number


def shown(value: Any) -> str:
    """A value for messages."""
    return shortened(repr(value), 60)


class Rule(Protocol):
    """What becomes of one key."""

    def apply(self, keys: Keys, key: Key) -> None:
        """Say it of this key, whether the file has it or not."""
        ...


@dataclass(frozen=True)
class To:
    """The value belongs at a path of the recipe, once it is converted. `default` is what a key that is left out means.

    `auto` says where the value is that somebody else fills in. `convert` raises ValueError for a value that is wrong.
    """

    to: str
    default: Any = ABSENT
    convert: Callable[[Any], Any] = lambda value: value
    note: str = ""
    auto: str = "the trainer fills it in"

    def apply(self, keys: Keys, key: Key) -> None:
        """Take it."""
        value = self.default
        if keys.is_auto(key):
            if value is ABSENT:
                keys.spare(key, f'"{AUTO}" is its default')
            else:
                keys.leave(key, self.to, self.auto, self.convert(value))
            return
        if keys.given(key):
            value = keys.value(key)
        if value is ABSENT:
            return
        try:
            keys.take(key, self.to, self.convert(value), self.note)
        except ValueError as error:
            keys.mistake(key, str(error))


@dataclass(frozen=True)
class Lost:
    """There is no counterpart, but for the values in `off`, which ask for nothing.

    `default` is what a key that is left out means, where that has no counterpart either.
    """

    why: str
    off: tuple[Any, ...] = OFF
    default: Any = ABSENT

    def apply(self, keys: Keys, key: Key) -> None:
        """List it."""
        value = keys.value(key)
        if value is ABSENT:
            # What the other system does unasked is lost like what was asked for.
            if self.default is not ABSENT and self.default not in self.off:
                keys.lose(key, f"is left out, which means {shown(self.default)}: {self.why}")
        elif value in self.off:
            keys.spare(key, f"{shown(value)} is how it is here")
        else:
            keys.lose(key, self.why)


@dataclass(frozen=True)
class Spare:
    """Nothing is needed, whatever the value."""

    why: str

    def apply(self, keys: Keys, key: Key) -> None:
        """Say so where the file has it."""
        if keys.value(key) is not ABSENT:
            keys.spare(key, self.why)


@dataclass(frozen=True)
class Nested:
    """An object: a rule for each of its keys."""

    rules: Mapping[str, Rule]

    def apply(self, keys: Keys, key: Key) -> None:
        """Apply each; a key without one is listed."""
        value = keys.value(key)
        if value is ABSENT:
            return
        if not isinstance(value, dict):
            keys.mistake(key, f"is an object, not {shown(value)}")
            return
        for name, rule in self.rules.items():
            rule.apply(keys, (*key, name))
        # A key that nobody knows is listed and never dropped: it may be newer than this table.
        for name in value.keys() - self.rules.keys():
            near = nearest(name, list(self.rules))
            keys.lose((*key, name), f"{keys.system} has no such key here{near}")


@dataclass(frozen=True)
class Switched:
    """An object that counts where its `enabled` is true: a rule for each of its keys.

    `filled`: somebody else may fill that in.
    """

    rules: Mapping[str, Rule]
    filled: bool = False

    def apply(self, keys: Keys, key: Key) -> None:
        """Apply each, or say that it is off."""
        switch = (*key, "enabled")
        is_off = not keys.flag(switch) or (keys.is_auto(switch) and not self.filled)
        if isinstance(keys.value(key), dict) and is_off:
            keys.spare(key, "is off")
            return
        # `enabled` has been read above, and would be listed as unknown without a rule.
        Nested({"enabled": Spare("the keys beside it say the rest"), **self.rules}).apply(keys, key)


@dataclass(frozen=True)
class LostWhole:
    """An object without a counterpart, whatever is in it, but where its `switch` has one of the values in `off`."""

    why: str
    switch: str = "enabled"
    off: tuple[Any, ...] = (False, None, ABSENT)

    def apply(self, keys: Keys, key: Key) -> None:
        """List it, once for all that is in it."""
        value = keys.value(key)
        if value is ABSENT:
            return
        asked = keys.value((*key, self.switch)) not in self.off if isinstance(value, dict) else bool(value)
        if asked:
            keys.lose(key, self.why)
        else:
            keys.spare(key, "is off")


@dataclass(frozen=True)
class Elsewhere:
    """What becomes of the key is found together with other keys, by a function beside the table."""

    def apply(self, keys: Keys, key: Key) -> None:
        """Nothing is said twice."""
