"""What a task may ask of all processes at once. Nothing here says which process this is: what one does, all do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from drivetrain.runtime.group import Group
from drivetrain.runtime.mesh import Mesh
from drivetrain.spec.exits import Exit, Failure

_T = TypeVar("_T")


class _Place:
    """Where this process stands; alone, where no run is under way."""

    mesh: Mesh = Mesh(Group())
    first_here: bool = True


@contextmanager
def standing(mesh: Mesh, *, first_here: bool) -> Iterator[None]:
    """While entered, this process is one of a mesh; `first_here`: the first one of its machine."""
    before = _Place.mesh, _Place.first_here
    _Place.mesh, _Place.first_here = mesh, first_here
    try:
        yield
    finally:
        _Place.mesh, _Place.first_here = before


def once(make: Callable[[], _T]) -> _T:
    """Call `make` on one process of each machine first, and on the others when that has returned: a download, an
    archive to unpack, which they then find. Each process gets what its own call returns, and all of them call this.

    Raises what `make` raises; Failure(70) on the other processes where it has raised on the first ones.
    """
    place, result, wrong = _Place, None, ""
    if place.first_here:
        try:
            result = make()
        except BaseException as error:
            place.mesh.group.gather_json(f"{type(error).__name__}: {error}")
            raise
    for told in place.mesh.group.gather_json(wrong):
        if told:
            cause = f"another process could not make what all wait for: {told}"
            raise Failure(Exit.INTERNAL, cause, "see what that process says")
    if not place.first_here:
        result = make()
    return result  # type: ignore[return-value] - one of both calls has made it


def added(number: float) -> float:
    """The sum of a number over all shares of the batch: of processes that work on the same samples one counts. All of
    them call this, as often as each other."""
    return float(sum(_Place.mesh.data.gather_json(float(number))))
