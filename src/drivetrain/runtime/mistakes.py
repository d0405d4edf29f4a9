"""An exception told as what it is: too little memory, or an error in the user's own code."""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable
from typing import Any

from drivetrain.spec.code.blame import (
    HOST_MEMORY,
    OwnPlace,
    calling_place,
    folded,
    is_out_of_memory,
    own_place,
    place_of,
    words,
)
from drivetrain.spec.exits import Exit, Failure

_ASKED = re.compile(r"[Tt]ried to allocate ([0-9.]+ ?[A-Za-z]+)")
_UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB")
_LESS = (
    "lower batch.micro, or take a smaller model, or one that keeps fewer activations (shorter samples, checkpointing)"
)


def failure_of(error: BaseException, folder: str | None = None, **where: Any) -> Failure | None:
    """The failure that an exception stands for; None where it is neither too little memory nor the user's own.

    `folder` is the recipe's, `where` what is known of the place: rank, step, phase.
    """
    if is_out_of_memory(error):
        return _kept(_out_of_memory(error, where), error, folder)
    place = own_place(error, folder)
    if place is None:
        return None
    failure = Failure(
        Exit.INTERNAL,
        f"{words(error)}, at {place}",
        "mend it there",
        **where,
        **{"file": place.file, "line": place.line, "class": "own code"},
    )
    return _kept(failure, error, folder)


def with_place(failure: Failure, error: BaseException, folder: str | None = None) -> Failure:
    """A failure that the user's own code has caused by raising `error`, with the place where it did; as it is where
    that is not known."""
    place = own_place(error, folder)
    if place is None:
        return failure
    told = failure.outcome
    where = {"file": place.file, "line": place.line}
    found = Failure(told.code, f"{told.cause}, at {place}", told.hint, **told.where, **where)
    return _kept(found, error, folder)


def returned(function: Callable[..., Any], cause: str, hint: str) -> Failure:
    """The failure of a function of the user's own that has returned what nobody can use: it is the place."""
    return _own(cause, hint, place_of(function))


def misused(cause: str, hint: str) -> Failure:
    """The failure of the user's own code that has called ours with what it does not take: that line is the place."""
    return _own(cause, hint, calling_place())


def _own(cause: str, hint: str, place: OwnPlace | None) -> Failure:
    if place is None:
        return Failure(Exit.INTERNAL, cause, hint)
    where = {"file": place.file, "line": place.line, "class": "own code"}
    return Failure(Exit.INTERNAL, f"{cause}, at {place}", hint, **where)


def _out_of_memory(error: BaseException, where: dict[str, Any]) -> Failure:
    host = (
        isinstance(error, (MemoryError, OSError)) or HOST_MEMORY in str(error) or "Cannot allocate memory" in str(error)
    )
    there, less = "the accelerator has", _LESS
    if host:
        there, less = "this machine has", f"{_LESS}, or data.train.workers"
    cause = f"more memory was asked for than {there}"
    if asked := _ASKED.search(str(error)):
        cause = f"{_readable(asked.group(1))} more memory were asked for than {there}"
    return Failure(Exit.INTERNAL, cause, f"{less}: the same again would end the same", **where, **{"class": "oom"})


def _readable(amount: str) -> str:
    """An amount as torch tells it, in bytes where they are few."""
    number, _, unit = amount.partition(" ")
    if unit != "bytes":
        return amount
    size, place = float(number), 0
    while size >= 1024 and place < len(_UNITS) - 1:
        size, place = size / 1024, place + 1
    return f"{size:,.1f} {_UNITS[place]}"


def _kept(failure: Failure, error: BaseException, folder: str | None) -> Failure:
    failure.details = folded(error, folder)
    failure.trace = "".join(traceback.format_exception(error))
    return failure
