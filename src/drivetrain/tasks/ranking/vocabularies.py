"""Vocabularies: the values that have rows of their own."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from drivetrain.spec.exits import Exit, Failure
from drivetrain.tasks.ranking.recipe import Feature


def vocabularies(features: Mapping[str, Feature]) -> dict[str, list[str]]:
    """The values of each feature that has a vocabulary, in order.

    Raises Failure: 66 where a file is missing, 65 where one cannot be read, has nothing or a value twice.
    """
    found = {}
    for name, feature in features.items():
        if isinstance(feature.vocab, str):
            found[name] = _vocabulary(Path(feature.vocab))
        elif feature.vocab is not None:
            found[name] = list(feature.vocab)
    return found


def _vocabulary(path: Path) -> list[str]:
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except OSError as error:
        cause = f"there is no vocabulary {path}: {error.strerror}"
        raise Failure(Exit.INPUT_MISSING, cause, "it is a file with a value in each line", file=str(path)) from error
    except UnicodeDecodeError as error:
        raise Failure(Exit.BAD_DATA, f"{path} is no UTF-8: {error}", "convert it", file=str(path)) from error
    if lines[-1] == "":
        lines.pop()
    if not lines:
        raise Failure(Exit.BAD_DATA, f"{path} has no line", "a vocabulary has a value in each line", file=str(path))
    values: dict[str, int] = {}
    for number, line in enumerate(lines, 1):
        value = line.removesuffix("\r")
        if value in values:
            place = f"{path}:{number}"
            cause = f"{place}: {value!r} is in line {values[value]} already"
            raise Failure(Exit.BAD_DATA, cause, "a vocabulary has each value once", file=place)
        values[value] = number
    return list(values)
