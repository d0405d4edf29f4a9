"""Topics of Kafka as streams of rows, by confluent-kafka. What is read of a topic is fixed at the run's first start."""

from __future__ import annotations

import hashlib
import io
import json
import os
import tempfile
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from drivetrain.data.fingerprint import combined
from drivetrain.data.json_lines import json_object
from drivetrain.data.recipe import Kafka
from drivetrain.data.record_stream import Record, RecordStream
from drivetrain.data.stream import Opener
from drivetrain.spec.exits import Exit, Failure
from drivetrain.spec.files import write_json

_PATIENCE = 10.0  # seconds in which a broker answers
_POLL = 0.5  # seconds that are waited for messages at a time
_HELD = 4096
"""Messages of a partition that are held while another one is waited for; then it pauses."""
_AT_ONCE = 512


class Bounds(NamedTuple):
    """What is read of a partition: its offsets from the first on, up to the last; None: without an end."""

    first: int
    stop: int | None


def open_kafka(settings: Kafka, cache: Path, seed: int) -> RecordStream:
    """The rows of a topic's messages. At the first start it is written beside `cache` which offsets are read; of
    partitions that were added since there is a note.

    Raises Failure: 66 where the topic, the file of properties or confluent-kafka is missing, 69 where no broker
    answers, 65 for a message that is no row.
    """
    client = _Client(settings)
    bounds = _kept(client, settings, cache)
    place = f"kafka {settings.topic}"
    told = [settings.topic, settings.format, settings.start, settings.until, settings.columns, len(bounds)]
    fingerprint = combined(["kafka 1", json.dumps(told)])
    opener = Opener(lambda: Topic(client, bounds, _reader(settings), fingerprint))
    return RecordStream(opener, place, seed, _notes(client, settings, bounds))


class Topic:
    """Some partitions of a topic, in one pass: a message of each in turn, until each has come to its end.

    Which message is next follows from the offsets alone, so it waits for a partition that has none yet.
    """

    thread_safe = True

    def __init__(
        self, client: _Client, bounds: Mapping[int, Bounds], read: Callable[[bytes], list[Any]], fingerprint: str
    ) -> None:
        """`read` gives the rows of a message, and raises ValueError for one that is none."""
        self.fingerprint, self.num_shards = fingerprint, len(bounds)
        self._client, self._bounds, self._read = client, dict(bounds), read
        self._next = {partition: each.first for partition, each in self._bounds.items()}
        self._turn = 0  # place of the partition, among all of them, whose message is next
        self._row = 0  # rows of that message that were given already

    def shard(self, num_shards: int, index: int) -> Topic:
        """The partitions of one lane of so many: every so many-th one."""
        mine = dict(list(self._bounds.items())[index::num_shards])
        return Topic(self._client, mine, self._read, self.fingerprint)

    def state_dict(self) -> dict[str, Any]:
        """Where it stands: by partition the next offset and that at which it ends, whose turn it is, and how many rows
        of that message were given."""
        partitions = []
        for partition, bounds in self._bounds.items():
            partitions.append([partition, self._next[partition], bounds.stop])
        return {"partitions": partitions, "turn": self._turn, "row": self._row}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on there, to the same ends."""
        self._bounds = {partition: Bounds(at, stop) for partition, at, stop in state["partitions"]}
        self._next = {partition: at for partition, at, _ in state["partitions"]}
        self._turn, self._row = state["turn"], state["row"]

    def __iter__(self) -> Iterator[Record]:
        """Its rows, in order.

        Raises Failure(65) that names the offset of a message that cannot be read, 66 for one that the topic no longer
        has, 69 where no broker answers.
        """
        going = {partition: at for partition, at in self._next.items() if not self._is_over(partition)}
        if not going:
            return
        feed = self._client.feed(going)
        try:
            yield from self._rows(feed)
        finally:
            feed.close()

    def _rows(self, feed: _Feed) -> Iterator[Record]:
        partitions = list(self._bounds)
        while not all(map(self._is_over, partitions)):
            partition = partitions[self._turn % len(partitions)]
            message = None
            if not self._is_over(partition):
                message = feed.next(partition, self._bounds[partition].stop)
            rows: list[Any] = []
            if message is None:  # what lies before its end was compacted away
                self._next[partition] = max(self._next[partition], self._bounds[partition].stop or 0)
            else:
                rows = self._rows_of(message, partition)
                self._next[partition] = message.offset()
            place = f"{self._client.name(partition)} offset {self._next[partition]}"
            left = rows[self._row :]
            for row in left:
                self._row += 1
                if self._row == len(rows):  # before it is given: who asks for the state then has read it
                    self._advance(partition, message)
                yield Record(row, place)
            if not left:
                self._advance(partition, message)

    def _advance(self, partition: int, message: Any) -> None:
        self._row, self._turn = 0, (self._turn + 1) % len(self._bounds)
        if message is not None:
            self._next[partition] = message.offset() + 1

    def _is_over(self, partition: int) -> bool:
        stop = self._bounds[partition].stop
        return stop is not None and self._next[partition] >= stop

    def _rows_of(self, message: Any, partition: int) -> list[Any]:
        value = message.value()
        if value is None:  # a tombstone, which says that a key is gone
            return []
        try:
            return self._read(value)
        except (ValueError, RecursionError) as error:
            cause = f"{self._client.name(partition)} offset {message.offset()}: {error}"
            raise Failure(
                Exit.BAD_DATA, cause, "look at `format` and `columns`, and at what writes the topic"
            ) from error


class _Client:
    """How brokers are reached, for one topic."""

    def __init__(self, settings: Kafka) -> None:
        self._topic, self._brokers = settings.topic, settings.brokers
        self._properties = _properties(settings.properties)

    def name(self, partition: int) -> str:
        """A partition, in words."""
        return f"kafka {self._topic} partition {partition}"

    def consumer(self) -> Any:
        """One that commits nothing and stands nowhere. Raises Failure(66) without confluent-kafka."""
        try:
            from confluent_kafka import Consumer, KafkaException
        except ImportError:
            hint = "pip install 'drivetrain[kafka]'"
            raise Failure(Exit.INPUT_MISSING, "a topic of Kafka needs confluent-kafka", hint) from None
        own = {
            "bootstrap.servers": self._brokers,
            "group.id": "drivetrain",  # which has no offsets and no members: partitions are assigned, not shared out
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
            "allow.auto.create.topics": False,
        }
        try:
            # librdkafka would write to stderr that it finds no broker, again and again.
            return Consumer({**self._properties, **own, "error_cb": lambda error: None, "log_level": 0})
        except KafkaException as error:
            hint = "mend the file that `properties` names"
            raise Failure(Exit.BAD_RECIPE, f"kafka: {error.args[0].str()}", hint) from None

    def partitions(self) -> list[int]:
        """Those that the topic has, ascending."""
        with self._asking() as consumer:
            return self._listed(consumer)

    def watermarks(self) -> dict[int, tuple[int, int]]:
        """By partition the first offset that there is, and the one that the next message gets."""
        from confluent_kafka import TopicPartition

        found = {}
        with self._asking() as consumer:
            for partition in self._listed(consumer):
                at = TopicPartition(self._topic, partition)
                found[partition] = consumer.get_watermark_offsets(at, timeout=_PATIENCE)
        return found

    @contextmanager
    def _asking(self) -> Iterator[Any]:
        """A consumer for some questions. Raises Failure(69) where no broker answers one."""
        from confluent_kafka import KafkaException

        consumer = self.consumer()
        try:
            yield consumer
        except KafkaException as error:
            raise self.unreachable(error.args[0].str()) from None
        finally:
            consumer.close()

    def _listed(self, consumer: Any) -> list[int]:
        """The topic's partitions. Raises Failure(66) where it is not there."""
        known = consumer.list_topics(self._topic, timeout=_PATIENCE).topics[self._topic]
        if known.error is not None or not known.partitions:
            cause = f"kafka: {self._brokers} has no topic {self._topic}"
            raise Failure(Exit.INPUT_MISSING, cause, "mend `topic`")
        return sorted(known.partitions)

    def feed(self, starts: Mapping[int, int]) -> _Feed:
        """The messages of partitions from these offsets on. Raises Failure(66) where one is gone."""
        marks = self.watermarks()
        for partition, at in starts.items():
            low, high = marks.get(partition, (0, 0))
            if not low <= at <= high:
                raise self.gone(partition, at, low, high)
        return _Feed(self, self._topic, starts)

    def gone(self, partition: int, at: int, low: int, high: int) -> Failure:
        """An offset is not there any more: 66."""
        cause = f"{self.name(partition)}: offset {at} is gone, it has {low} to {high - 1}"
        hint = "a longer retention would have kept it; start another run to train on what is there"
        return Failure(Exit.INPUT_MISSING, cause, hint)

    def unreachable(self, why: str) -> Failure:
        """No broker answers: 69."""
        hint = "look at `brokers` and the network; the same command goes on"
        return Failure(Exit.PEER_UNAVAILABLE, f"kafka: {self._brokers} does not answer: {why}", hint)


class _Feed:
    """Messages of some partitions, asked for one by one."""

    def __init__(self, client: _Client, topic: str, starts: Mapping[int, int]) -> None:
        from confluent_kafka import TopicPartition

        self._client, self._topic = client, topic
        self._held: dict[int, deque[Any]] = {partition: deque() for partition in starts}
        self._reached = dict(starts)  # offsets before which all is held or given
        self._paused: set[int] = set()
        self._consumer = client.consumer()
        self._consumer.assign([TopicPartition(topic, partition, at) for partition, at in starts.items()])

    def close(self) -> None:
        """Leave the brokers."""
        self._consumer.close()

    def next(self, partition: int, stop: int | None) -> Any:
        """A partition's next message; None where there is none before `stop`. Without a stop it waits for one."""
        held = self._held[partition]
        if partition in self._paused and len(held) < _HELD // 2:
            self._paused.discard(partition)
            self._consumer.resume([self._at(partition)])
        while not held and (stop is None or self._reached[partition] < stop):
            first = self._consumer.poll(_POLL)  # which comes as soon as there is one; `consume` waits for all
            if first is not None:
                self._take([first, *self._consumer.consume(_AT_ONCE, 0)])
        if not held or (stop is not None and held[0].offset() >= stop):
            return None
        return held.popleft()

    def _take(self, messages: Sequence[Any]) -> None:
        from confluent_kafka import KafkaError

        for message in messages:
            error, partition = message.error(), message.partition()
            if error is None:
                self._held[partition].append(message)
                self._reached[partition] = message.offset() + 1
            elif error.code() == KafkaError._PARTITION_EOF:
                self._reached[partition] = max(self._reached[partition], message.offset())
            elif error.code() in (KafkaError.OFFSET_OUT_OF_RANGE, KafkaError._AUTO_OFFSET_RESET):
                low, high = self._consumer.get_watermark_offsets(self._at(partition), timeout=_PATIENCE)
                raise self._client.gone(partition, self._reached[partition], low, high)
            else:
                raise self._client.unreachable(error.str())
        for partition, held in self._held.items():
            if len(held) >= _HELD and partition not in self._paused:
                self._paused.add(partition)
                self._consumer.pause([self._at(partition)])

    def _at(self, partition: int) -> Any:
        from confluent_kafka import TopicPartition

        return TopicPartition(self._topic, partition)


def _kept(client: _Client, settings: Kafka, cache: Path) -> dict[int, Bounds]:
    """What is read of each partition, as the first start of the run has found it, on whichever process."""
    told = json.dumps([settings.topic, settings.start, settings.until])
    kept = cache.parent / f"kafka-{hashlib.sha256(told.encode()).hexdigest()[:12]}.json"
    if not kept.exists():
        found = {}
        for partition, (low, high) in client.watermarks().items():
            stop = high if settings.until == "latest" else None
            found[str(partition)] = Bounds(low if settings.start == "earliest" else high, stop)
        with tempfile.TemporaryDirectory(dir=cache.parent, prefix=".kafka-") as folder:
            write_json(Path(folder, "found"), found)
            with suppress(FileExistsError):  # another process was first, and has told all others
                os.link(Path(folder, "found"), kept)
    known = json.loads(kept.read_text())
    return {int(partition): Bounds(*bounds) for partition, bounds in known.items()}


def _notes(client: _Client, settings: Kafka, bounds: Mapping[int, Bounds]) -> tuple[str, ...]:
    """What is left out: partitions that were added since the first start. Were they read from some resume on, a message
    would have another place in the order with each resume, so samples would have no numbers."""
    if settings.until != "never":  # what came after the first start is not wanted
        return ()
    added = [partition for partition in client.partitions() if partition not in bounds]
    if not added:
        return ()
    told = f"kafka {settings.topic}: partitions added since the first start are not read: {', '.join(map(str, added))}"
    return (f"{told}; to read all of them, start another run (`init: {{from: RUN}}` gives it this one's weights)",)


def _reader(settings: Kafka) -> Callable[[bytes], list[Any]]:
    """What gives the rows of a message."""
    read = _json_rows if settings.format == "json" else _arrow_rows

    def rows(value: bytes) -> list[Any]:
        found = read(value)
        if settings.columns is None:
            return found
        return [_chosen(row, settings.columns) for row in found]

    return rows


def _chosen(row: Mapping[str, Any], columns: Sequence[str]) -> dict[str, Any]:
    """These columns of a row. Raises ValueError where it lacks one."""
    for name in columns:
        if name not in row:
            raise ValueError(f"it has no column {name!r}: there are {', '.join(row)}")
    return {name: row[name] for name in columns}


def _json_rows(value: bytes) -> list[Any]:
    return [json_object(value)]


def _arrow_rows(value: bytes) -> list[Any]:
    """The rows of a message in Arrow's format of streams: a schema and record batches."""
    import pyarrow as pa

    try:
        with pa.ipc.open_stream(io.BytesIO(value)) as stream:
            table = stream.read_all()
        table.validate(full=True)
    except pa.ArrowInvalid as error:
        raise ValueError(f"it is no stream of Arrow record batches: {error}") from error
    return table.to_pylist()


def _properties(path: str | None) -> dict[str, str]:
    """Settings of librdkafka in a file, `name=value` in each line. What is in it is kept nowhere.

    Raises Failure: 66 where it is not there, 65 for a line that is none, without its text.
    """
    if path is None:
        return {}
    try:
        lines = Path(path).read_text().splitlines()
    except OSError as error:
        raise Failure(Exit.INPUT_MISSING, f"{path}: {error.strerror}", "mend `properties`", file=path) from error
    found = {}
    for number, line in enumerate(map(str.strip, lines), 1):
        if not line or line.startswith("#"):
            continue
        name, sign, value = line.partition("=")
        if not sign:
            place = f"{path}:{number}"
            raise Failure(Exit.BAD_DATA, f"{place}: it has no `=`", "write name=value in each line", file=place)
        found[name.strip()] = value.strip()
    return found
