"""Whose code an exception comes from, and how it is shown: the user's own frames whole, all others counted."""

from __future__ import annotations

import errno
import inspect
import linecache
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from pathlib import Path
from traceback import FrameSummary, StackSummary, TracebackException, walk_stack
from typing import Any

from drivetrain.spec.code.modules import INSTALLED, PACKAGE, Module, is_own
from drivetrain.spec.text import printable, shortened

_HERE = f"{Path(__file__).parents[2]}/"  # the folder of this package
_IN_MEMORY = ("<ipython-input", "<stdin>")  # how the names of code begin that a user has typed
HOST_MEMORY = "DefaultCPUAllocator"
"""What torch says where the host has too little memory."""
_SIGNS = (HOST_MEMORY, "out of memory", "OUT_OF_MEMORY", "STATUS_ALLOC_FAILED", "Cannot allocate memory")
"""What torch and the libraries below it say where an allocation fails: few of them have a class of error for it."""
_LONGEST = 400  # characters of an exception's words, in one line


@dataclass(frozen=True)
class OwnPlace:
    """A line of the user's own code."""

    file: str
    line: int
    text: str

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}"
        return printable(f"{place}: {shortened(self.text, _LONGEST)}" if self.text else place)


def own_place(error: BaseException, folder: str | None = None) -> OwnPlace | None:
    """Where the user's own code has gone wrong; None where the exception is not that code's: none of it was under way,
    or it had called this package, which then raised. `folder` is the recipe's.

    Of an exception that was raised from another one, that one is asked where the first says nothing.
    """
    told: BaseException | None = error
    seen: set[int] = set()
    while told is not None and id(told) not in seen:
        seen.add(id(told))
        if found := _place(TracebackException.from_exception(told), folder):
            return found
        told = told.__cause__
    return None


def own_caller(error: BaseException, folder: str | None = None) -> OwnPlace | None:
    """The innermost line of the user's own code that was under way, whoever has raised the exception."""
    for frame in reversed(TracebackException.from_exception(error).stack):
        if not _owner(frame.filename, folder):
            return _of_frame(frame)
    return None


def place_of(function: Any) -> OwnPlace | None:
    """Where the user has written a function or a method; None where it is not theirs, or nobody can tell."""
    while isinstance(function, partial):
        function = function.func
    code = getattr(inspect.unwrap(getattr(function, "__func__", function)), "__code__", None)
    if code is None:
        return None
    return _own_line(code.co_filename, code.co_firstlineno)


def calling_place() -> OwnPlace | None:
    """The innermost line of the user's own code that is under way; None where there is none."""
    for frame, line in walk_stack(None):
        if place := _own_line(frame.f_code.co_filename, line):
            return place
    return None


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an allocation has failed, on the host or on an accelerator."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    if isinstance(error, OSError):  # of a fork, or of a file that is mapped
        return error.errno == errno.ENOMEM
    return isinstance(error, RuntimeError) and any(sign in str(error) for sign in _SIGNS)


def words(error: BaseException) -> str:
    """An exception's kind and words in one line."""
    said = shortened(printable(" ".join(str(error).split())), _LONGEST)
    if isinstance(error, SyntaxError):  # whose words end with the place, which is told as such
        said = error.msg
    kind = type(error).__name__
    return f"{kind}: {said}" if said else kind


def folded(error: BaseException, folder: str | None = None) -> str:
    """The traceback with the user's own frames whole, and how many of whom there are between them."""
    told = TracebackException.from_exception(error)
    for part in _chain(told):
        part.stack = _Folded(part.stack, folder)
    return "".join(told.format()).rstrip("\n")


class _Folded(StackSummary):
    """Frames of which only the user's own are shown."""

    def __init__(self, frames: StackSummary, folder: str | None) -> None:
        super().__init__(frames)
        self._folder = folder

    def format(self, **options: Any) -> list[str]:
        """The lines of a traceback; `options` are of newer Pythons."""
        lines: list[str] = []
        for owner, frames in groupby(self, lambda frame: _owner(frame.filename, self._folder)):
            run = list(frames)
            if owner:
                word = "frame" if len(run) == 1 else "frames"
                lines.append(f"  ... {len(run)} {word} of {owner}\n")
            else:
                lines += StackSummary.from_list(run).format(**options)
        return lines


def _place(told: TracebackException, folder: str | None) -> OwnPlace | None:
    # A module that cannot be compiled has no frame: its error names the place.
    if isinstance(getattr(told, "lineno", None), (int, str)) and told.filename:
        if not _owner(told.filename, folder):
            return OwnPlace(told.filename, int(told.lineno or 0), (told.text or "").strip())
        return None
    for frame in reversed(told.stack):
        owner = _owner(frame.filename, folder)
        # A name that this package does not have is a mistake of whoever asks for it.
        if owner == PACKAGE and frame.name != "__getattr__":
            return None
        if not owner:
            return _of_frame(frame)
    return None


def _of_frame(frame: FrameSummary) -> OwnPlace:
    return OwnPlace(frame.filename, frame.lineno or 0, frame.line or "")


def _own_line(file: str, line: int) -> OwnPlace | None:
    """A line of a file; None where that is not the user's."""
    return None if _owner(file, None) else OwnPlace(file, line, linecache.getline(file, line).strip())


def _owner(file: str, folder: str | None) -> str:
    """Who has written a file: this package, Python, or the name of an installed package; empty for the user."""
    if file.startswith(_HERE):
        return PACKAGE
    if file.startswith("<"):
        return "" if file.startswith(_IN_MEMORY) else "Python"
    if is_own(Module("", file, None, None), folder):
        return ""
    for installed in INSTALLED:
        _, found, below = file.rpartition(installed)
        if found:
            return below.partition("/")[0].removesuffix(".py")
    return "Python"


def _chain(told: TracebackException | None) -> Iterator[TracebackException]:
    """An exception, and all that a traceback shows before it or within it."""
    if told is None:
        return
    yield told
    yield from _chain(told.__cause__)
    yield from _chain(told.__context__)
    for inner in getattr(told, "exceptions", None) or ():
        yield from _chain(inner)
