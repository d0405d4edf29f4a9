"""Who gets a row of a keyed table, and who loses it, at the end of a step.

It is a function of the keys that all ranks have seen together, in ascending order, and of the state, bucket by bucket:
neither how many ranks there are, nor who asked first, nor the clock has a part in it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from drivetrain.engine.tables.keyed_recipe import Keyed
from drivetrain.engine.tables.keys import BUCKETS, COUNT, KEY, LAST, TAKEN, KeyLines, places_in
from drivetrain.spec.amount import Scale
from drivetrain.spec.exits import Exit, Failure


class Seen(NamedTuple):
    """Keys of one table that a step has asked for, ascending, each once: int64 [keys], and of each its line (FREE:
    none), its bucket among those here, and how often it occurs in the step's samples."""

    keys: np.ndarray
    lines: np.ndarray
    buckets: np.ndarray
    counts: np.ndarray

    def only(self, which: np.ndarray) -> Seen:
        """Some of them."""
        return Seen(*[column[which] for column in self])


class Changes(NamedTuple):
    """Lines that have become free, and lines that have a new key, with these keys; all int64."""

    freed: np.ndarray
    filled: np.ndarray
    keys: np.ndarray


@dataclass(frozen=True)
class Rule:
    """A table's settings, in samples; `every` None: nobody has to go."""

    count: int
    every: int | None = None
    age: int | None = None
    least: str | None = None

    @classmethod
    def of(cls, settings: Keyed, scale: Scale) -> Rule:
        """Amounts of steps are as long as they are at the run's start."""
        count, evict = settings.admit.count, settings.evict
        if evict is None:
            return cls(count)
        age = evict.age.samples_at(scale) if evict.age else None
        return cls(count, evict.every.samples_at(scale), age, evict.least)


class Turnover:
    """Lets keys in and takes rows away, of the buckets that are here."""

    def __init__(self, rows: KeyLines, waiting: KeyLines, rule: Rule, names: tuple[str, int]) -> None:
        """`rows` are lines of rows, `waiting` those of keys without one; `names` are the table's and that of the first
        bucket here."""
        self.rule = rule
        self._rows, self._waiting, self._names = rows, waiting, names

    def observe(self, seen: Seen, before: int, position: int) -> Changes:
        """Count what a step that ends at this position has seen, let keys in, and take rows away where it is time.

        Raises Failure(78) where a bucket is full, and nobody has to go.
        """
        known = seen.lines >= 0
        # Those that have rows first: a key that was seen in this very step is never the oldest.
        self._rows.see(seen.lines[known], seen.counts[known], position)
        filled, keys = self._let_in(seen.only(~known), position)
        freed = np.empty(0, np.int64)
        # By position and not by steps: runs that are stopped, or ramp their batches, evict at the same samples.
        due = self.rule.every is not None and position // self.rule.every > before // self.rule.every
        if due:
            freed = self._evict(position)
            more, their = self._let_in_waiting()
            # Who came in within this step may have had to go again.
            stayed = ~np.isin(filled, freed)
            filled, keys = np.concatenate([filled[stayed], more]), np.concatenate([keys[stayed], their])
        self._rows.done()
        self._waiting.done()
        return Changes(freed, filled, keys)

    def _let_in(self, new: Seen, position: int) -> tuple[np.ndarray, np.ndarray]:
        """Give rows to keys that were seen often enough, as far as there is room; the others wait. Their lines and
        keys."""
        # Stable, and keys ascend: within a bucket the smaller key gets the last free row, whoever asked for it.
        new = new.only(np.argsort(new.buckets, kind="stable"))
        places = self._waiting.find(new.keys)
        there = places >= 0
        counts = new.counts.copy()
        counts[there] += self._waiting.array[places[there], COUNT]
        ripe = np.flatnonzero(counts >= self.rule.count)
        of_bucket = new.buckets[ripe]
        fits = places_in(of_bucket) < self._rows.room()[of_bucket]
        if not fits.all() and self.rule.every is None:
            raise self._full(int(of_bucket[~fits][0]))
        chosen = ripe[fits]
        # A row begins with all sightings of its key: with one alone `least: count` would take it away again at once.
        lines = np.stack([new.keys, counts, np.full_like(counts, position)], 1)
        filled = self._rows.put(new.buckets[chosen], lines[chosen])
        stays = np.ones(len(new.keys), bool)
        stays[chosen] = False
        self._waiting.clear(places[there & ~stays], TAKEN)
        self._waiting.array[places[there & stays]] = lines[there & stays]
        self._wait(new.buckets[stays & ~there], lines[stays & ~there])
        return filled, new.keys[chosen]

    def _wait(self, buckets: np.ndarray, lines: np.ndarray) -> None:
        """Count keys on that have no row yet. Where a bucket has no room for more, those seen longest ago go."""
        wanted = np.bincount(buckets, minlength=len(self._waiting.edges) - 1)
        for bucket in np.flatnonzero(wanted > self._waiting.room()):
            self._make_room(int(bucket), int(wanted[bucket]))
        fits = places_in(buckets) < self._waiting.room()[buckets]
        self._waiting.put(buckets[fits], lines[fits])

    def _make_room(self, bucket: int, wanted: int) -> None:
        """Among a bucket's keys that wait: at least half of the lines become free, so that it is not done often."""
        start, stop = self._waiting.edges[bucket : bucket + 2]
        held = self._waiting.array[start:stop]
        there = np.flatnonzero(held[:, KEY] >= 0)
        # The last key that lexsort is given decides first: seen last, then the smaller key.
        order = there[np.lexsort((held[there, KEY], -held[there, LAST]))]
        kept = min((stop - start) // 2, max(0, stop - start - wanted))
        gone = np.flatnonzero(held[:, KEY] == TAKEN)
        self._waiting.clear(start + np.concatenate([order[kept:], gone]))

    def _evict(self, position: int) -> np.ndarray:
        """Take away the rows of keys that are too old, and of those that others have come before; their lines."""
        gone = np.empty(0, np.int64)
        if self.rule.age is not None:
            for lines in (self._waiting, self._rows):
                old = lines.array[:, LAST] < position - self.rule.age
                gone = np.flatnonzero(old & (lines.array[:, KEY] >= 0))
                lines.clear(gone)
        if self.rule.least is None:
            return gone
        beaten = self._beaten()
        self._rows.clear(beaten)
        return np.concatenate([gone, beaten])

    def _beaten(self) -> np.ndarray:
        """Lines of rows in buckets where more keys wait than there is room: of both together the first have rows."""
        ripe = self._ripe()
        buckets = self._buckets_of(ripe)
        lacking = np.bincount(buckets, minlength=len(self._rows.edges) - 1) > self._rows.room()
        found = [np.empty(0, np.int64)]
        for bucket in np.flatnonzero(lacking):
            start, stop = self._rows.edges[bucket : bucket + 2]
            owners = start + np.flatnonzero(self._rows.array[start:stop, KEY] >= 0)
            both = np.concatenate([self._rows.array[owners], self._waiting.array[ripe[buckets == bucket]]])
            behind = self._first_ones(both)[stop - start - 1 :]
            found.append(owners[behind[behind < len(owners)]])
        return np.concatenate(found)

    def _let_in_waiting(self) -> tuple[np.ndarray, np.ndarray]:
        """Give the rows that are free now to those that wait, the first ones first; their lines and keys."""
        ripe = self._ripe()
        ripe = ripe[self._first_ones(self._waiting.array[ripe])]
        ripe = ripe[np.argsort(self._buckets_of(ripe), kind="stable")]
        buckets = self._buckets_of(ripe)
        fits = places_in(buckets) < self._rows.room()[buckets]
        if not fits.all() and self.rule.least is None:
            raise self._full(int(buckets[~fits][0]))
        lines = self._waiting.array[ripe[fits]]
        filled = self._rows.put(buckets[fits], lines)
        self._waiting.clear(ripe[fits], TAKEN)
        return filled, lines[:, KEY]

    def _first_ones(self, lines: np.ndarray) -> np.ndarray:
        """The order in which keys come: of two that are equal before `evict.least` the smaller one is first."""
        key, count, last = lines[:, KEY], -lines[:, COUNT], -lines[:, LAST]
        if self.rule.least == "recent":
            return np.lexsort((key, count, last))
        return np.lexsort((key, last, count))

    def _ripe(self) -> np.ndarray:
        """Lines of keys that wait for room alone, ascending."""
        held = self._waiting.array
        return np.flatnonzero((held[:, KEY] >= 0) & (held[:, COUNT] >= self.rule.count))

    def _buckets_of(self, waiting: np.ndarray) -> np.ndarray:
        return np.searchsorted(self._waiting.edges, waiting, side="right") - 1

    def _full(self, bucket: int) -> Failure:
        """That a bucket has no room, and nobody has to go."""
        keys = int(np.diff(self._rows.edges)[bucket]) - 1
        table, first = self._names
        cause = f"table {table!r}: bucket {first + bucket} of {BUCKETS} is full, it has {keys} keys"
        hint = "give the table more rows, or evict: {least: count}, by which those seen least make room"
        if self.rule.age is not None:
            cause += f", each of which was seen within the last {self.rule.age} samples"
        return Failure(Exit.BAD_RECIPE, cause, hint)
