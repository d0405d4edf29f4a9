"""Streams as sources: samples that come one after the other, numbered as they come, and found again on a resume."""

from __future__ import annotations

import copy
import hashlib
import inspect
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, NamedTuple

import numpy as np

from drivetrain.data.content import absorb, seed_sample
from drivetrain.data.deal import Deal, before_ends
from drivetrain.data.fingerprint import combined
from drivetrain.data.source import ENDLESS
from drivetrain.runtime.mistakes import is_out_of_memory, returned, with_place
from drivetrain.runtime.mix import mix
from drivetrain.spec.code.blame import own_place
from drivetrain.spec.custom import Custom, build_custom
from drivetrain.spec.exits import Exit, Failure
from drivetrain.spec.given import is_object
from drivetrain.spec.streams import GIVEN, LANE, LANES, START, How, ability, takes_lanes

_ITEM = 1 << 37  # a place in the seeds' path that nothing else has
_APART = 64  # items from one mark to the next: a resume reads so many again at most
_LOOKED_AT = 8  # items of a mark's digest
_END = object()


class Mark(NamedTuple):
    """A place in a stream to go on from: an item's number, a digest of it and the next ones, by which it is known
    again, and the stream's state before it."""

    at: int
    digest: str
    state: Any = None


class Opener:
    """How a stream is begun: at its first sample or, where it can, at another; whole, or a part of it."""

    def __init__(self, make: Callable[..., Any], takes: frozenset[str] = frozenset()) -> None:
        """`make` gives what is iterated over; it `takes` some of `GIVEN`."""
        self._make, self._takes = make, takes
        self._spare = [self._made(0, 0, 1)]  # to see what it can do; the first pass is over this one
        self.first = self._spare[0]
        self.how: How = "seek" if START in takes else ability(self.first)

    def parts(self, lanes: int) -> bool:
        """Whether it can be read in as many parts."""
        if {LANE, LANES} <= self._takes:
            return True
        # Hugging Face's have a number of shards, of which each part needs one.
        return takes_lanes(self.first) and getattr(self.first, "num_shards", lanes) >= lanes

    def begin(self, at: int, state: Any, lane: int, lanes: int) -> Any:
        """The stream from sample `at` on, or at the `state` that it told there; from the first one where it can do
        neither."""
        if self._spare and (lanes == 1 or LANE not in self._takes) and (at == 0 or START not in self._takes):
            stream = self._spare.pop()
        else:
            stream = self._made(at, lane, lanes)
        if lanes > 1 and LANE not in self._takes:
            stream = stream.shard(num_shards=lanes, index=lane)
        if at and START not in self._takes:
            if self.how == "seek":
                stream.seek(at)
            elif self.how == "state":
                stream.load_state_dict(state)
        return stream

    def _made(self, at: int, lane: int, lanes: int) -> Any:
        given = {START: at, LANE: lane, LANES: lanes}
        return self._make(**{name: given[name] for name in self._takes})


def own_opener(settings: Custom) -> Opener:
    """That of a user's own class or function. Raises Failure as `build_custom` does."""
    built = build_custom(settings)
    if is_object(settings.kind) and not isinstance(built, partial):
        return Opener(lambda: _copied(built, settings.kind))
    if not isinstance(built, partial):
        # A pass that begins anew begins with what the constructor makes: nothing of the one before is left in it.
        first = [built]
        return Opener(lambda: first.pop() if first else build_custom(settings))
    return Opener(built, frozenset(GIVEN) & inspect.signature(built).parameters.keys())


def _copied(given: Any, kind: str) -> Any:
    """An object as it was given: what a pass leaves in it, the next one would begin with. Raises Failure(78) where it
    cannot be copied."""
    try:
        return copy.deepcopy(given)
    except Exception as error:
        if is_out_of_memory(error):
            raise
        cause = f"{kind}: it is read from a copy, so that each pass begins anew, and cannot be copied: {error}"
        raise Failure(Exit.BAD_RECIPE, cause, "give its class with its arguments, or a generator function") from error


@dataclass
class Stream:
    """How a stream is begun and read, for all its cursors. `kind` is for messages, `folder` where the user's code lies;
    `notes` are what is to be said about how it goes on."""

    opener: Opener
    kind: str
    seed: int
    folder: str | None = None
    accepts_change: bool = False
    notes: list[str] = field(default_factory=list)

    @cached_property
    def thread_safe(self) -> bool:
        """Whether it says that it draws nothing from the global generators."""
        return bool(getattr(self.opener.first, "thread_safe", False))

    def state_of(self, live: Any) -> Any:
        """What it tells of where it is, as JSON data; Failure(78) where it tells something else."""
        if self.opener.how != "state":
            return None
        try:
            return json.loads(json.dumps(live.state_dict()))
        except (TypeError, ValueError) as error:
            cause = f"{self.kind}: its state_dict is no JSON data, which is all that commits hold of it: {error}"
            raise Failure(Exit.BAD_RECIPE, cause, "give numbers, strings, lists and dicts of them") from error

    def iterator(self, live: Any) -> Iterator[Any]:
        """Over what was begun. Raises Failure(70) where its `__iter__` gives none."""
        try:
            return iter(live)
        except TypeError as error:
            if own_place(error, self.folder) is not None:
                raise
            method = getattr(live, "__iter__", live)
            raise returned(method, f"{self.kind}: {error}", "let it yield samples, or return an iterator") from error

    def seed_item(self, lane: int, number: int) -> None:
        """Seed what the next item draws."""
        if not self.thread_safe:
            seed_sample(mix(self.seed, _ITEM, lane, number))

    def differs(self, number: int, end: int | None) -> None:
        """Items are not what they were, or are gone, where `end` says how many there are.

        Raises Failure(76) where the stream is not merely counted, unless that is accepted.
        """
        told = f"sample {number}, or one after it, is not what it was"
        if end is not None:
            told = f"it has ended after {end} samples"
        if self.opener.how != "count" and not self.accepts_change:
            hint = "bring back what it reads, or accept the change: --override 'data.train.sources[PLACE]'"
            raise Failure(Exit.INCOMPATIBLE, f"{self.kind} does not repeat itself: {told}", hint)
        self.notes.append(f"{told}: it does not repeat itself, so samples may be missing or come twice")

    def unreadable(self, error: Exception, number: int) -> Exception:
        """What to raise where an item cannot be read."""
        if isinstance(error, Failure) or is_out_of_memory(error):
            return error
        cause = f"{self.kind}: sample {number} cannot be read: {type(error).__name__}: {error}"
        failure = Failure(Exit.BAD_DATA, cause, "mend the stream", sample_id=number)
        return with_place(failure, error, self.folder)


class Cursor:
    """One part of a stream, from item to item. To go back it begins again: at a mark, or at the first item."""

    def __init__(self, stream: Stream, lane: int, lanes: int) -> None:
        self._stream, self._lane, self._lanes = stream, lane, lanes
        self._live: Any = None  # what is iterated over in this pass
        self._iterator: Iterator[Any] | None = None
        self._next = 0
        self.end: int | None = None
        """How many items there are, once that is known."""
        self._begun: tuple[int, Any, Any] | None = None  # the mark under way: where, the state there, and the hash
        self.marks: dict[int, Mark] = {}
        """By number. A thread that reads ahead adds some while a commit looks and forgets: one operation each."""

    def fetch(self, first: int, count: int) -> list[Any]:
        """The items from this one on, fewer where the stream ends."""
        if not self.go_to(first):
            return []
        items: list[Any] = []
        while len(items) < count and (item := self._marked()) is not _END:
            items.append(item)
        return items

    def mark(self, index: int) -> Mark | None:
        """The newest mark from which an item can be reached; None: the first item."""
        before = [at for at in list(self.marks) if at + _LOOKED_AT <= index]
        return self.marks[max(before)] if before else None

    def forget_before(self, mark: Mark) -> None:
        """Nothing goes back further than to the newest commit."""
        for at in list(self.marks):
            if at < mark.at:
                del self.marks[at]

    def go_to(self, index: int) -> bool:
        """Stand before this item; whether it may be there. Raises Failure(76) where the stream is not what it was."""
        if self.end is not None and index >= self.end:
            return False
        if self._iterator is None or index < self._next:
            self._begin(index)
        while self._next < index:
            if self._marked() is _END:
                return False
        return True

    def _begin(self, index: int) -> None:
        """Begin again at or before this item, and see that the stream is what it was."""
        mark = self.mark(index)
        if mark is None:
            self._open(0, None)
            return
        if self._stream.opener.how != "count":
            self._open(mark.at, mark.state)
            if self._digest() == mark.digest:
                return
            self._stream.notes.append("it does not go on where it was: it is read from its first sample again")
        self._open(0, None)
        while self._next < mark.at and self._item() is not _END:
            pass
        state = self._stream.state_of(self._live)
        here = Mark(mark.at, self._digest(), state)
        if here.digest != mark.digest:
            self._stream.differs(mark.at, self.end)
        # What was accepted, or told, is so from now on: the next resume finds what this one did.
        self.marks[mark.at] = here

    def _digest(self) -> str:
        """That of the next items, of which a mark has one; empty where there are not as many."""
        content = hashlib.sha256()
        for _ in range(_LOOKED_AT):
            item = self._item()
            if item is _END:
                return ""
            absorb(content, item)
        return _shown(content)

    def _open(self, at: int, state: Any) -> None:
        self._live = self._stream.opener.begin(at, state, self._lane, self._lanes)
        self._iterator, self._next = self._stream.iterator(self._live), at
        self._begun = None

    def _marked(self) -> Any:
        """The next item, with a mark of every `_APART`-th: where these lie follows from the stream alone, so that
        commits of one step are equal however the run came there."""
        if self._next % _APART == 0:
            self._begun = self._next, self._stream.state_of(self._live), hashlib.sha256()
        item = self._item()
        if self._begun is not None and item is not _END:
            at, state, content = self._begun
            absorb(content, item)
            if self._next == at + _LOOKED_AT:
                self.marks[at] = Mark(at, _shown(content), state)
                self._begun = None
        return item

    def _item(self) -> Any:
        """The next item; `_END` where there is none any more."""
        assert self._iterator is not None
        self._stream.seed_item(self._lane, self._next)
        try:
            item = next(self._iterator)
        except StopIteration:
            self.end = self._next
            return _END
        except Exception as error:
            self._iterator = None  # a generator that has raised says from then on that it has ended
            raise self._stream.unreadable(error, self._next) from error
        self._next += 1
        return item


class StreamSource:
    """A stream as a source of `ENDLESS` samples, numbered as they come, or lane by lane where it is read in parts.

    What an item draws from `random`, `numpy.random` or `torch` follows from the run's seed and its number, unless the
    stream has an attribute `thread_safe`: then it is read beside training, and draws nothing from them.
    """

    def __init__(self, opener: Opener, kind: str, seed: int, settings: str, folder: str | None = None) -> None:
        """`settings` stand for the stream in its fingerprint, unless it has one of its own; `kind` is for messages, and
        `folder` where the user's code lies."""
        self.stream = Stream(opener, kind, seed, folder)
        self.thread_safe = self.stream.thread_safe
        own = getattr(opener.first, "fingerprint", None)
        self.fingerprint = own if isinstance(own, str) else combined(["stream", settings])
        self._deal: Deal | None = None
        self._cursors: dict[int, Cursor] = {}
        self._held: dict[int, Any] = {}
        self.ends: Mapping[int, int] = {}
        """How many items the lanes have that are known to have ended, on whatever rank."""

    def __len__(self) -> int:
        """`ENDLESS`."""
        return ENDLESS

    @property
    def how(self) -> How:
        """How it is brought to where it was."""
        return self.stream.opener.how

    @property
    def lanes(self) -> int:
        """In how many parts it is read."""
        return self._deal.lanes if self._deal else 1

    def deal(self, deal: Deal) -> None:
        """Read it in parts, one for each lane, if it can be."""
        if deal.lanes > 1 and self.stream.opener.parts(deal.lanes):
            self._deal = deal

    def resume(self, marks: Mapping[int, Mark], position: int, own: Sequence[int], *, accepts_change: bool) -> None:
        """Stand at a step's first position, with the marks of a commit by lane; `own` are the lanes that are read here,
        and those that have `ends` are not read any more.

        Raises Failure(76) where the stream is not what it was, unless that is accepted.
        """
        self.stream.accepts_change = accepts_change
        for lane in own if self._deal else (0,):
            cursor = self._cursors[lane] = Cursor(self.stream, lane, self.lanes)
            cursor.end = self.ends.get(lane)
            if position and lane in marks:
                cursor.marks[marks[lane].at] = marks[lane]
                cursor.go_to(position // self.lanes)

    def marks(self, position: int) -> dict[int, Mark]:
        """From where each lane that is read here can go on at a step's first position, for a commit of that moment."""
        found = {}
        for lane, cursor in self._cursors.items():
            if mark := cursor.mark(position // self.lanes):
                found[lane] = mark
                cursor.forget_before(mark)
        return found

    @property
    def found_ends(self) -> dict[int, int]:
        """How many items the lanes have that were read to their end here."""
        return {lane: cursor.end for lane, cursor in self._cursors.items() if cursor.end is not None}

    def there(self, ids: np.ndarray) -> np.ndarray:
        """Which of these samples (int64, ascending) there are; they are kept for `read`."""
        found = np.zeros(len(ids), bool)
        for place, lane, first in self._places(ids):
            numbers = ids[place]
            last = first + int(numbers[-1] - numbers[0])
            items = self._cursor(lane).fetch(first, last - first + 1)
            found[place] = numbers - numbers[0] < len(items)
            for number in numbers[found[place]].tolist():
                self._held[number] = items[number - int(numbers[0])]
        return found

    def left(self, ids: np.ndarray) -> np.ndarray:
        """Which of these samples (int64, ascending) no known end has cut off."""
        return before_ends(ids, self.ends, self._deal)

    def read(self, ids: np.ndarray, positions: np.ndarray) -> list[Any]:
        """The samples with these ids. Raises Failure(65) where one cannot be read, or is not there."""
        if not all(number in self._held for number in ids.tolist()):
            self._held.clear()
            there = self.there(ids)
            if not there.all():
                missing = int(ids[~there][0])
                hint = "it has fewer samples than the recipe asks for"
                raise Failure(Exit.BAD_DATA, f"{self.stream.kind} has no sample {missing}: it has ended", hint)
        return [self._held.pop(number) for number in ids.tolist()]

    def first_samples(self, count: int) -> HeldSource:
        """The first samples, at most so many, as a source that keeps them. They are read in a pass of their own."""
        cursor = Cursor(self.stream, 0, 1)
        return HeldSource(cursor.fetch(0, count))

    def _cursor(self, lane: int) -> Cursor:
        if lane not in self._cursors:
            self._cursors[lane] = Cursor(self.stream, lane, self.lanes)
        return self._cursors[lane]

    def _places(self, ids: np.ndarray) -> Iterator[tuple[slice, int, int]]:
        if not len(ids):
            return iter(())
        if self._deal is None:
            return iter([(slice(0, len(ids)), 0, int(ids[0]))])
        return self._deal.places(ids)


class HeldSource:
    """Samples in memory: the first ones of a stream."""

    thread_safe = True

    def __init__(self, samples: Sequence[Any]) -> None:
        content = hashlib.sha256()
        absorb(content, list(samples))
        self.fingerprint = content.hexdigest()
        self._samples = samples

    def __len__(self) -> int:
        """Number of samples."""
        return len(self._samples)

    def read(self, ids: np.ndarray, positions: np.ndarray) -> list[Any]:
        """The samples with these ids."""
        return [self._samples[number] for number in ids.tolist()]


def _shown(content: Any) -> str:
    return content.hexdigest()[:16]
