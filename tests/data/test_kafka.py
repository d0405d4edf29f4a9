"""Topics of Kafka, on librdkafka's own mock broker: no other one was tried."""

import io
import json
import re

import numpy as np
import pyarrow as pa
import pytest

import drivetrain
from brokers import PARTITIONS, Broker
from conftest import run_under_supervisor, trace
from drivetrain.data.deal import Deal
from drivetrain.data.opening import open_source
from drivetrain.data.recipe import Kafka
from drivetrain.ledger.derive import lineage, steps
from drivetrain.ledger.ledger import read as read_ledger
from drivetrain.ledger.records import StreamEndRecord
from drivetrain.run.proof import prove
from drivetrain.spec.batches import Batches
from drivetrain.spec.exits import Exit, Failure
from encoders import Small, plain

pytest.importorskip("confluent_kafka")


@pytest.fixture(scope="module")
def broker():
    return Broker()


COUNTS = (40, 7, 0, 23)


def row(partition, number):
    return {"n": number, "s": f"p{partition}", "more": None}


@pytest.fixture(scope="module")
def topic(broker):
    """Unequal partitions, one of which has nothing."""
    for partition, count in enumerate(COUNTS):
        broker.write("log", partition, [json.dumps(row(partition, n)).encode() for n in range(count)])
    return "log"


def opened(broker, topic, folder, **options):
    folder.mkdir(exist_ok=True)
    return open_source(Kafka(brokers=broker.address, topic=topic, **options), 0, folder / "sources.json")


def read(source, first, last):
    ids = np.arange(first, last)
    return source.read(ids, ids)


def refused(made):
    with pytest.raises(Failure) as found:
        made()
    return found.value.outcome


def in_turn(partitions):
    """The rows of partitions, one of each in turn."""
    left = {partition: COUNTS[partition] for partition in partitions}
    return [row(p, n) for n in range(max(COUNTS)) for p in partitions if n < left[p]]


def test_messages_come_in_turn_and_a_resume_reads_on_at_its_offsets(broker, topic, tmp_path):
    source, total = opened(broker, topic, tmp_path), sum(COUNTS)
    rows = read(source, 0, total)
    assert rows == in_turn(range(PARTITIONS))
    assert rows[1].place == "kafka log partition 1 offset 0"
    assert source.how == "state"
    for position in (5, 31, 64):
        begun = opened(broker, topic, tmp_path)
        read(begun, 0, position)
        marks = json.loads(json.dumps(begun.marks(position)))
        gone_on = opened(broker, topic, tmp_path)
        known = {int(lane): type(begun.marks(position)[int(lane)])(*mark) for lane, mark in marks.items()}
        gone_on.resume(known, position, [0], accepts_change=False)
        assert read(gone_on, position, total) == rows[position:]
        assert gone_on.stream.notes == []


def test_lanes_read_partitions_of_their_own_each_to_its_end(broker, topic, tmp_path):
    source, batches = opened(broker, topic, tmp_path), Batches(8)
    source.deal(Deal(batches, 2))
    found = {0: [], 1: []}
    for step in range(1, 12):
        for lane in (0, 1):
            start = batches.span(step)[0] + 4 * lane
            ids = np.arange(start, start + 4)
            ids = ids[source.there(ids)]
            found[lane] += source.read(ids, ids)
    assert found == {0: in_turn((0, 2)), 1: in_turn((1, 3))}
    assert source.found_ends == {0: 40, 1: 30}


def test_what_is_read_is_fixed_at_the_first_start(broker, tmp_path):
    for partition in range(PARTITIONS):
        broker.write("grows", partition, [b'{"n": 1}'])
    assert len(opened(broker, "grows", tmp_path / "run").first_samples(100)) == 4
    nothing = opened(broker, "grows", tmp_path / "later", start="latest")
    for partition in range(PARTITIONS):
        broker.write("grows", partition, [b'{"n": 2}'])
    assert len(opened(broker, "grows", tmp_path / "run").first_samples(100)) == 4
    assert len(opened(broker, "grows", tmp_path / "other").first_samples(100)) == 8
    assert len(nothing.first_samples(100)) == 0
    live = opened(broker, "grows", tmp_path / "later", start="latest", until="never")
    broker.write("grows", 0, [b'{"n": 3}'])
    assert [dict(one) for one in read(live, 0, 1)] == [{"n": 3}], "it waits for the others' next ones from here on"


def test_partitions_that_are_added_later_are_named_at_the_next_start(broker, topic, tmp_path):
    assert opened(broker, topic, tmp_path, until="never").notes == ()
    (kept,) = tmp_path.glob("kafka-*.json")
    before = json.loads(kept.read_text())
    kept.write_text(json.dumps({"0": before["0"], "2": before["2"]}))  # as if there had been no others
    source = opened(broker, topic, tmp_path, until="never").encoded(Small())
    (note,) = source.notes
    assert note.startswith("kafka log: partitions added since the first start are not read: 1, 3; ")
    fixed = opened(broker, topic, tmp_path / "fixed")
    assert fixed.notes == (), "with an end nothing is missed"


def batches_of(rows):
    """A message in Arrow's format of streams."""
    table, out = pa.Table.from_pylist(rows), io.BytesIO()
    with pa.ipc.new_stream(out, table.schema) as stream:
        stream.write_table(table)
    return out.getvalue()


def test_messages_of_arrow_have_any_number_of_rows_and_marks_lie_within_them(broker, tmp_path):
    sizes = [3, 0, 70, 5]
    for partition, size in enumerate(sizes):
        rows = [{"n": float(n), "s": f"{partition}", "x": 0} for n in range(size)]
        broker.write("arrow", partition, [batches_of(rows)] if size else [])
    source = opened(broker, "arrow", tmp_path, format="arrow", columns=("s", "n"))
    rows = read(source, 0, sum(sizes))
    assert [list(one) for one in rows[:2]] == [["s", "n"]] * 2
    assert [one["s"] for one in rows] == [f"{p}" for p, size in enumerate(sizes) for _ in range(size)]
    begun = opened(broker, "arrow", tmp_path, format="arrow", columns=("s", "n"))
    read(begun, 0, 76)
    gone_on = opened(broker, "arrow", tmp_path, format="arrow", columns=("s", "n"))
    gone_on.resume(begun.marks(76), 76, [0], accepts_change=False)
    assert begun.marks(76)[0].at == 64
    assert read(gone_on, 76, 78) == rows[76:78]
    encoded = opened(broker, "arrow", tmp_path, format="arrow").encoded(Small())
    assert plain(read(encoded, 0, 78)) == [(one["n"], one["s"]) for one in rows]


@pytest.mark.parametrize(
    ("name", "value", "options", "why"),
    [
        ("no-json", b"{oops", {}, "Expecting property name"),
        ("a-list", b"[1]", {}, "is no JSON object"),
        ("no-column", b'{"n": 1}', {"columns": ("n", "s")}, "it has no column 's': there are n"),
        ("no-arrow", b"junk", {"format": "arrow"}, "no stream of Arrow record batches"),
    ],
)
def test_a_message_that_is_no_row_is_named_with_topic_partition_and_offset(broker, tmp_path, name, value, options, why):
    good = batches_of([{"n": 1}]) if options.get("format") else b'{"n": 1, "s": "x"}'
    broker.write(name, 2, [good, good, value, good])
    outcome = refused(lambda: read(opened(broker, name, tmp_path, **options), 0, 4))
    assert outcome.code is Exit.BAD_DATA
    assert f"kafka {name} partition 2 offset 2: " in outcome.cause
    assert why in outcome.cause


def test_a_value_that_the_task_cannot_take_is_named_with_its_offset(broker, tmp_path):
    broker.write("values", 1, [b'{"n": 1, "s": "x"}', b'{"n": "2", "s": 3}', b'{"n": [], "s": "y"}', b'{"n": 4}'])
    source = opened(broker, "values", tmp_path).encoded(Small())
    assert plain(read(source, 0, 2)) == [(1, "x"), (2, "3")]
    outcome = refused(lambda: read(source, 0, 3))
    assert (outcome.code, "kafka values partition 1 offset 2: column 'n'" in outcome.cause) == (Exit.BAD_DATA, True)
    outcome = refused(lambda: read(source, 3, 4))
    assert "offset 3: column 's': there is none; there are n" in outcome.cause


def test_offsets_that_are_gone_and_what_is_not_there_are_named(broker, topic, tmp_path):
    large = [json.dumps({"n": n, "s": "x" * 250_000}).encode() for n in range(40)]
    broker.write("short", 1, large[:16])
    source = opened(broker, "short", tmp_path)
    read(source, 0, 12)
    broker.write("short", 1, large[16:])  # the mock broker keeps five megabytes
    gone_on = opened(broker, "short", tmp_path)
    outcome = refused(lambda: gone_on.resume(source.marks(12), 12, [0], accepts_change=False))
    assert outcome.code is Exit.INPUT_MISSING
    assert re.fullmatch(r"kafka short partition 1: offset 0 is gone, it has \d\d to 39", outcome.cause)
    outcome = refused(lambda: opened(Nowhere, topic, tmp_path / "new"))
    assert (outcome.code, "127.0.0.1:9 does not answer" in outcome.cause) == (Exit.PEER_UNAVAILABLE, True)
    (tmp_path / "client.properties").write_text("# mine\nsasl.password hunter2\n")
    outcome = refused(lambda: opened(broker, topic, tmp_path, properties=str(tmp_path / "client.properties")))
    assert (outcome.code, outcome.cause) == (Exit.BAD_DATA, f"{tmp_path}/client.properties:2: it has no `=`")
    (tmp_path / "client.properties").write_text("no.such.setting=hunter2\n")
    outcome = refused(lambda: opened(broker, topic, tmp_path / "n", properties=str(tmp_path / "client.properties")))
    assert outcome.code is Exit.BAD_RECIPE
    assert "hunter2" not in outcome.cause


class Nowhere:
    address = "127.0.0.1:9"


@pytest.fixture(autouse=True)
def short_patience(monkeypatch):
    monkeypatch.setattr("drivetrain.data.kafka._PATIENCE", 2.0)


def test_ranking_trains_on_a_topic_and_goes_on_exactly_on_other_processes(broker, topic, tmp_path):
    given = {
        "name": "topic",
        "task": {
            "kind": "ranking",
            "dim": 4,
            "features": {"s": {"hash": 16}, "n": {"normalize": "log1p"}},
            "labels": {"click": {"column": "n", "at_least": 10}},
            "model": {"kind": "deepfm", "hidden": [4]},
        },
        "data": {"train": {"sources": [{"kind": "kafka", "brokers": broker.address, "topic": topic}]}},
        "lanes": 2,
        "exact": True,
        "batch": {"size": 8},
        "budget": {"steps": 100},
        "optimizer": {"kind": "adamw", "lr": 0.01},
        "launch": {"threads": 1},
    }
    drivetrain.train(given, run=tmp_path / "straight", progress=False)
    outcome = run_under_supervisor(given, tmp_path / "changing", "launch.processes=2", "stop.at=[6]")
    assert outcome.code == Exit.STOPPED, outcome
    drivetrain.train(given, run=tmp_path / "changing", progress=False)
    assert trace(tmp_path / "changing") == trace(tmp_path / "straight")
    records = list(read_ledger(tmp_path / "straight" / "ledger.jsonl"))
    assert sum(record["counts"]["samples"] for record in steps(lineage(records))) == sum(COUNTS)
    ends = [record for record in records if isinstance(record, StreamEndRecord)]
    assert ends[-1].samples == (40, 30)
    assert prove(tmp_path / "changing").samples
