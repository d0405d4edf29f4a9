"""One table whose rows belong to keys: what is known of them here, as commits have it.

It changes at the end of steps that move the table's rows, so after their vote: a step that is left out changes no key.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from drivetrain.engine.tables.keys import KEY, LAST, TAKEN, KeyLines, bucket_of, edges_of, empty_lines
from drivetrain.engine.tables.layout import Stretch
from drivetrain.engine.tables.module import Table, waiting_lines
from drivetrain.engine.tables.turnover import Changes, Rule, Seen, Turnover
from drivetrain.spec.amount import Scale
from drivetrain.spec.box import Box
from drivetrain.spec.exits import Exit, Failure


class KeyedTable:
    """The keys of a table's buckets that are here: those that have rows, and those that wait for one."""

    def __init__(self, table: Table, stretch: Stretch | None) -> None:
        """`stretch` are the rows here, if there are any."""
        assert table.keyed is not None
        self.table = table
        start, stop = (stretch.start, stretch.stop) if stretch else (0, 0)
        self.at = stretch.at if stretch else 0
        """The first of its rows among those of the matrix."""
        waiting = waiting_lines(table)
        edges = edges_of(table.rows)
        self.first = int(np.searchsorted(edges, start))
        """The first bucket here."""
        last = int(np.searchsorted(edges, stop))
        here, queue = edges[self.first : last + 1], edges_of(waiting)[self.first : last + 1]
        self.rows = KeyLines(empty_lines(stop - start), here - start)
        """A line for each row here. The first one of each bucket is that of keys that have none."""
        self.rows.array[self.rows.edges[:-1], KEY] = TAKEN
        self.waiting = KeyLines(empty_lines(int(queue[-1] - queue[0])), queue - queue[0])
        self.clock = torch.zeros((), dtype=torch.int64)
        """The position at the end of the last step that moved the table's rows."""
        self.boxes = {
            "keys": Box((table.rows, 3), (start, 0), (stop - start, 3)),
            "waiting": Box((waiting, 3), (int(queue[0]), 0), (len(self.waiting.lines), 3)),
        }
        self._turnover = Turnover(self.rows, self.waiting, Rule(table.keyed.admit.count), (table.name, self.first))

    @property
    def tensors(self) -> dict[str, Tensor]:
        """What a commit keeps of it, by kind."""
        return {"keys": self.rows.lines, "waiting": self.waiting.lines, "clock": self.clock}

    def lay_rule(self, scale: Scale) -> None:
        """Follow the table's settings along a run. Raises Failure(78) for amounts that mean nothing there."""
        assert self.table.keyed is not None
        try:
            self._turnover.rule = Rule.of(self.table.keyed, scale)
        except ValueError as error:
            cause = f"table {self.table.name!r}: keyed.evict: {error}"
            raise Failure(Exit.BAD_RECIPE, cause, "give steps or samples") from error

    def forget(self) -> None:
        """The state was written to by others."""
        self.rows.forget()
        self.waiting.forget()

    def begin(self) -> None:
        """A run begins at its position 0 with the keys of another one, which count on: they are as old as there."""
        for lines in (self.rows, self.waiting):
            lines.array[lines.array[:, KEY] >= 0, LAST] -= int(self.clock)
            lines.done()
            lines.forget()
        self.clock.zero_()

    def look_up(self, keys: np.ndarray, counts: np.ndarray) -> Seen:
        """Keys of buckets that are here, ascending, each once, with how often they occur."""
        buckets = bucket_of(torch.from_numpy(keys)).numpy() - self.first
        return Seen(keys, self.rows.find(keys), buckets, counts)

    def defaults(self, seen: Seen) -> np.ndarray:
        """Of keys without a row: the lines of the rows that they share with others."""
        return self.rows.edges[seen.buckets]

    def observe(self, seen: Seen, position: int) -> Changes:
        """Count what a step that ends at this position has seen, let keys in, and take rows away where it is time.

        Raises Failure(78) where a bucket is full, and nobody has to go.
        """
        changes = self._turnover.observe(seen, int(self.clock), position)
        self.clock.fill_(position)
        return changes
