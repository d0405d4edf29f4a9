"""What the routes share: the runs, what the user said of them, and who waits for news."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from starlette.requests import Request

from drivetrain.board.answers import Line
from drivetrain.board.children import Children
from drivetrain.board.notes import Notes
from drivetrain.board.row import row, state_of
from drivetrain.board.runs import Run, Runs
from drivetrain.board.verifying import Verifications
from drivetrain.spec.exits import Exit, Failure

_ALIVE = 15.0  # seconds after which a stream without news says that it is there


class News:
    """What changed, for streams that wait: by run its records, its steps, and what it is at. Only counts are told:
    pages ask for what they show, so that a stream that was cut off can neither lose nor double anything."""

    def __init__(self) -> None:
        self.now: dict[str, list[Any]] = {}
        self._closed = False
        self._changed = asyncio.Event()

    def tell(self, told: Mapping[str, list[Any] | None]) -> None:
        """These runs have changed; None for one that is gone. On the loop's own thread."""
        for id, counts in told.items():
            if counts is None:
                self.now.pop(id, None)
            else:
                self.now[id] = counts
        # Those who wait hold the event that is set; who comes next waits for the new one.
        self._changed.set()
        self._changed = asyncio.Event()

    def close(self) -> None:
        """No more will come: streams end."""
        self._closed = True
        self._changed.set()

    async def follow(self) -> AsyncIterator[dict[str, list[Any] | None] | None]:
        """The whole present state, then what changed; None where nothing did for some time."""
        sent: dict[str, list[Any]] = {}
        first = True
        while not self._closed:
            changed = self._changed
            new: dict[str, list[Any] | None] = {id: told for id, told in self.now.items() if sent.get(id) != told}
            new |= dict.fromkeys(sent.keys() - self.now.keys())
            if new or first:
                sent, first = dict(self.now), False
                yield new
            try:
                await asyncio.wait_for(changed.wait(), _ALIVE)
            except asyncio.TimeoutError:
                yield None


@dataclass
class Board:
    """One board. `read_only`: it steers nothing."""

    runs: Runs
    notes: Notes
    read_only: bool = False
    news: News = field(default_factory=News)
    children: Children = field(default_factory=Children)
    verifications: Verifications = field(init=False)

    def __post_init__(self) -> None:
        self.verifications = Verifications(self.children)

    def run(self, id: str) -> Run:
        """The run of this id, which is read first from now on. Raises Failure(66) where there is none."""
        run = self.runs.all.get(id)
        if run is None:
            raise Failure(Exit.INPUT_MISSING, "no such run", "its directory may have been removed")
        self.runs.wanted = id
        return run

    def row(self, run: Run) -> Line:
        """The line of a run, with what the user said of it."""
        return {**row(run), **self.notes.of(run.folder).told(), "read_only": self.read_only}

    def rows(self) -> list[tuple[Run, Line]]:
        """All runs with their lines, the newest first."""
        rows = [(run, self.row(run)) for run in self.runs.all.values()]
        return sorted(rows, key=lambda one: -(one[1]["started"] or float("inf")))

    def counts(self, ids: set[str]) -> dict[str, list[Any] | None]:
        """What streams are told of these runs."""
        told: dict[str, list[Any] | None] = {}
        for id in ids:
            run = self.runs.all.get(id)
            told[id] = None if run is None else [run.index.records, len(run.index.groups), state_of(run)[0]]
        return told


def board_of(request: Request) -> Board:
    """The board that a request is to."""
    return request.app.state.board


def run_of(request: Request) -> Run:
    """The run that a request names. Raises Failure(66)."""
    return board_of(request).run(request.path_params["id"])
