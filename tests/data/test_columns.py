import csv
import os
import pickle
import re
from itertools import chain
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from drivetrain.data import columns_csv, columns_parquet, csv_records
from drivetrain.data.batch_reader import BatchReader
from drivetrain.data.blend import BlendSource, training_order
from drivetrain.data.columns import Columns, ColumnSource, Ragged, _bytes_of
from drivetrain.data.geometry import Geometry
from drivetrain.data.opening import open_source
from drivetrain.data.prefetch import prefetch
from drivetrain.data.recipe import ColumnFiles, Table, Train
from drivetrain.spec.amount import Scale
from drivetrain.spec.batches import Batches, Change
from drivetrain.spec.exits import Exit, Failure
from encoders import Small, plain
from laws import examples

WORDS = ["x", "y", "x\ny", 'say "so"', "", "späte", None]


def opened(path, **options):
    return open_source(ColumnFiles(path=str(path), **options), 0, path.parent / "digests.json")


def whole(source):
    ids = np.arange(len(source))
    return source.read(ids, ids)


def rows(count, first=0):
    return [(float(n % 7), WORDS[n % len(WORDS)]) for n in range(first, first + count)]


def read_as_written(values):
    """What `Small` makes of rows: of a string that is not there, an empty one."""
    return [(n, word or "") for n, word in values]


def write_csv(path, values):
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerows([("n", "s"), *((n, word or "") for n, word in values)])


def write_parquet(path, values, group=10):
    table = pa.table({"n": [n for n, _ in values], "s": [word for _, word in values]}, WRITTEN)
    parquet.write_table(table, path, row_group_size=group)


WRITTEN = pa.schema([("n", pa.float64()), ("s", pa.string())])
WRITE = {"csv": write_csv, "parquet": write_parquet}


@pytest.fixture(autouse=True)
def small_blocks():
    """Blocks of ten rows."""
    with patch.object(columns_csv, "ROWS", 10):
        yield


@pytest.fixture(params=["csv", "parquet"])
def log(request, tmp_path):
    """Three files of unequal length, one of them empty, and their rows in order."""
    values = rows(95)
    cuts = [(0, 3), (3, 3), (3, 95)]
    for number, (start, stop) in enumerate(cuts):
        WRITE[request.param](tmp_path / f"{number}.{request.param}", values[start:stop])
    return tmp_path, values


def test_rows_of_files_are_read_in_any_order_with_an_encoder_and_without(log):
    folder, values = log
    source = opened(folder)
    ids = np.random.default_rng(0).permutation(95)
    assert [(row["n"], row["s"] or "") for row in source.read(ids, ids)] == read_as_written([values[i] for i in ids])
    encoded = pickle.loads(pickle.dumps(source.encoded(Small())))
    found = encoded.read(ids, ids)
    assert isinstance(found, Columns)
    assert plain(found) == read_as_written([values[i] for i in ids])
    assert found.arrays["row"].tolist() == ids.tolist()
    assert found.arrays["s"].dtype == found.arrays["length"].dtype == np.int64
    assert plain(found[5:9]) == plain(found)[5:9]
    assert found[-1]["length"] == len(values[ids[-1]][1] or "")
    assert len(list(found)) == 95
    assert encoded.fingerprint != source.fingerprint == opened(folder).fingerprint
    assert source.blocks.sizes.sum() == 95
    assert max(source.blocks.sizes) == 10


@settings(max_examples=60)
@given(
    st.lists(st.tuples(st.integers(-9, 9), st.text(st.sampled_from(list('ab,"\né')), max_size=5)), min_size=1),
    st.integers(1, 40),
)
def test_what_the_csv_module_writes_is_read_whatever_chunks_and_blocks_are(tmp_path_factory, values, chunk):
    path = tmp_path_factory.mktemp("csv") / "rows.csv"
    write_csv(path, values)
    with patch.object(csv_records, "_CHUNK", chunk), patch.object(columns_csv, "ROWS", 3):
        source = opened(path).encoded(Small())
    assert plain(whole(source)) == values
    lines = path.read_text().split("\n")
    for number in range(len(source)):
        file, _, line = source.place(number).rpartition(":")
        assert file == str(path)
        assert lines[int(line) - 1].startswith(f"{values[number][0]},")


@settings(max_examples=examples(8, 25))
@given(st.integers(1, 60), st.sampled_from([1, 2, 4]), st.integers(0, 9), st.booleans(), st.integers(1, 30), st.data())
def test_w5_w7_rows_come_once_on_any_ranks_and_a_resume_goes_on_exactly(
    tmp_path_factory, count, lanes, seed, ramped, window, data
):
    folder = tmp_path_factory.mktemp("log")
    values = rows(count + lanes)
    cut = data.draw(st.integers(0, len(values)))
    write_csv(folder / "a.csv", values[:cut])
    write_parquet(folder / "b.parquet", values[cut:], group=7)
    batches = Batches(2 * lanes, (Change(2, 4 * lanes),) if ramped else ())

    def read(processes, first=1):
        """Rows by step and rank, from a step on, as an attempt of its own reads them."""
        source = opened(folder, window=window).encoded(Small())
        given = {"log": source}
        source, order = training_order(Train(sources=({},)), given, seed, Scale(batches), lanes)
        geometry, total, found = Geometry(batches, lanes, processes, 3), 2 * order.size, {}
        for rank in range(processes):
            reader = BatchReader(source, order, geometry, rank, total, plain_with_rows, lambda batch: {})
            for step in range(first, batches.steps(total) + 1):
                micros = reader.read(step).micro_batches
                found.setdefault(step, []).extend(row for micro in micros for row in micro.batch)
        return found

    with patch.object(columns_csv, "ROWS", 4):
        alone = read(1)
        assert sorted(row for step in alone.values() for row in step) == sorted(
            (number, *value) for number, value in list(enumerate(read_as_written(values))) * 2
        )
        for processes in (each for each in (2, 4) if lanes % each == 0):
            assert read(processes) == alone
        first = data.draw(st.integers(1, len(alone)))
        assert read(lanes, first) == {step: found for step, found in alone.items() if step >= first}


def plain_with_rows(samples):
    return [(number, *value) for number, value in zip(samples.arrays["row"].tolist(), plain(samples), strict=True)]


@pytest.mark.parametrize("workers", [0, 1])
def test_workers_read_what_the_process_itself_reads(log, workers):
    folder, values = log
    source, batches = opened(folder, window=20).encoded(Small()), Batches(8)
    source, order = training_order(Train(sources=({},)), {"log": source}, 5, Scale(batches), 4)
    reader = BatchReader(source, order, Geometry(batches, 4, 2, None), 1, 95, plain_with_rows, lambda batch: {})
    iterator = prefetch(reader, 1, 12, 3, workers)
    found = [row for batch in iterator for micro in batch.micro_batches for row in micro.batch]
    iterator.close()
    ids = np.concatenate([order.ids(8 * step + 4, 8 * step + 8) for step in range(11)] + [order.ids(92, 95)])
    assert found == [(number, *read_as_written(values)[number]) for number in ids.tolist()]


def test_without_shuffling_rows_come_in_the_files_order(log):
    folder, values = log
    source = opened(folder).encoded(Small())
    source, order = training_order(Train(sources=({},), shuffle=False), {"log": source}, 0, Scale(Batches(8)), 4)
    found = []
    for at in range(0, 95, 5):
        found += plain(source.read(order.ids(at, at + 5), np.arange(at, at + 5)))
    assert found == read_as_written(values)


def test_a_hole_in_a_batch_and_ids_of_another_order_are_read_all_the_same(log):
    folder, values = log
    source, order = training_order(
        Train(sources=({},)), {"log": opened(folder).encoded(Small())}, 0, Scale(Batches(8)), 4
    )
    positions = np.delete(np.arange(24), [3, 9])
    ids = order.ids(0, 24)[positions]
    assert plain(source.read(ids, positions)) == read_as_written([values[i] for i in ids])
    assert plain(source.read(ids[::-1], positions)) == read_as_written([values[i] for i in ids[::-1]])


def test_several_sources_give_columns_too(tmp_path):
    write_csv(tmp_path / "a.csv", rows(30))
    write_parquet(tmp_path / "b.parquet", rows(20, 30))
    sources = {name: opened(tmp_path / name).encoded(Small()) for name in ("a.csv", "b.parquet")}
    train = Train(sources=(ColumnFiles(path="a", weight=2), ColumnFiles(path="b")))
    source, order = training_order(train, sources, 0, Scale(Batches(6)), 2)
    assert isinstance(source, BlendSource)
    found = [row for at in range(0, 30, 6) for row in plain_with_rows(source.read(order.ids(at, at + 6), np.arange(6)))]
    values = read_as_written(rows(50))
    assert found == [(number, *values[number]) for number in order.ids(0, 30).tolist()]
    assert order.metadata["blocks"] == [[[[10, 3]], 65536], [[[10, 2]], 65536]]


@pytest.mark.parametrize("options", [{"by": "hash"}, {"by": "range"}, {"by": "hash", "key": "s"}])
@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_parts_share_no_row_and_together_are_all(tmp_path, options, suffix):
    values = [(float(n), f"user {n % 23}") for n in range(200)]
    WRITE[suffix](tmp_path / f"a.{suffix}", values[:63])
    WRITE[suffix](tmp_path / f"b.{suffix}", values[63:])
    found = {}
    for part in ("train", "validation", "test"):
        for _ in range(2):  # the second time from what is remembered
            source = opened(tmp_path, part=part, split=(0.5, 0.3, 0.2), **options)
        found[part] = plain(whole(source.encoded(Small())))
        assert [(row["n"], row["s"]) for row in whole(source)] == found[part]
        for number in range(len(source)):
            assert place_says(source.place(number), found[part][number], values)
    assert sorted(chain.from_iterable(found.values())) == sorted(values)
    if "key" in options:
        users = [{word for _, word in part} for part in found.values()]
        assert sum(map(len, users)) == 23


def place_says(place, value, values):
    """Whether a place in words is that of a row."""
    number = values.index(value)
    name, own = ("a", number) if number < 63 else ("b", number - 63)
    if ".csv" in place:
        return place.endswith(f"{name}.csv:{own + 2}")
    return place.endswith(f"{name}.parquet: row group {own // 10}, row {own % 10} of it, counted from 0")


def test_paths_are_files_patterns_folders_or_several_with_commas(tmp_path):
    folder = tmp_path / "days"
    folder.mkdir()
    for day in (2, 1, 3):
        write_csv(folder / f"{day}.csv", rows(day, 10 * day))
    inside = f"{tmp_path}/days"
    means = {inside: [1, 2, 3], f"{inside}/[12].csv": [1, 2], f"{inside}/3.csv, {inside}/1.csv": [3, 1]}
    for path, days in means.items():
        source = open_source(ColumnFiles(path=path), 0, tmp_path / "c.json").encoded(Small())
        assert plain(whole(source)) == read_as_written([row for day in days for row in rows(day, 10 * day)])
    with pytest.raises(Failure, match="twice"):
        open_source(ColumnFiles(path=f"{inside}/3.csv,{inside}"), 0, tmp_path / "c.json")


def test_columns_of_csv_files_are_numbers_where_all_files_values_are(tmp_path):
    (tmp_path / "a.csv").write_text("i,f,m,e\n1,1,1,\n,2,2,\n")
    (tmp_path / "b.csv").write_text("m,e,f,i\nx,,0.5,7\n")
    source = opened(tmp_path)
    assert source.schema == {"i": "int64", "f": "double", "m": "string", "e": "null"}
    assert whole(source) == [
        {"i": 1, "f": 1.0, "m": "1", "e": None},
        {"i": None, "f": 2.0, "m": "2", "e": None},
        {"i": 7, "f": 0.5, "m": "x", "e": None},
    ]


def test_whole_numbers_beyond_64_bits_are_texts_in_csv_files(tmp_path):
    large = [str(2**64 + n) for n in range(3)]
    (tmp_path / "a.csv").write_text("id,amount\n" + "".join(f"{value},{value}\n" for value in large) + "1,0.5\n")
    source = opened(tmp_path / "a.csv")
    assert source.schema == {"id": "string", "amount": "double"}
    assert [row["id"] for row in whole(source)] == [*large, "1"]


def test_a_file_of_another_layout_is_read_as_the_recipe_says(tmp_path):
    (tmp_path / "log.txt").write_bytes('\ufeff1\t"a\tNULL\n\n2\tb\t7\r\n'.encode())
    source = opened(tmp_path / "log.txt", header=("n", "s", "t"), quotes=False, nulls=("NULL",))
    assert whole(source) == [{"n": 1, "s": '"a', "t": None}, {"n": 2, "s": "b", "t": 7}]
    (tmp_path / "semi").write_text("n;s\n1;x\n")
    assert whole(opened(tmp_path / "semi", format="csv", delimiter=";")) == [{"n": 1, "s": "x"}]


class Reads(Small):
    def __init__(self, **columns):
        self.columns = columns

    def encode(self, table):
        return {"values": np.array([repr(value) for value in table.column(0).to_pylist()])}


@pytest.mark.parametrize(
    ("values", "kind", "found"),
    [
        (pa.array([1, None, 3], pa.int32()), "string", ["1", None, "3"]),
        (pa.array([1, None, 3], pa.int32()), "number", [1.0, None, 3.0]),
        (pa.array([1.0, 2.0, None]), "integer", [1, 2, None]),
        (pa.array([0.5, 2.0], pa.float32()), "number", [0.5, 2.0]),
        (pa.array(["1", "2"]), "integer", [1, 2]),
        (pa.array(["1", "2"], pa.large_string()), "string", ["1", "2"]),
        (pa.array(["a", "b", "a"]).dictionary_encode(), "string", ["a", "b", "a"]),
        (pa.array([True, False]), "integer", [1, 0]),
        (pa.array([None, None], pa.null()), "number", [None, None]),
        (pa.array([[1, 2], []], pa.list_(pa.int64())), "list", [[1, 2], []]),
        (pa.array([None, None], pa.null()), "list", [None, None]),
        (pa.array(["a|b", "c", None]).dictionary_encode(), "list", ["a|b", "c", None]),
    ],
)
def test_parquet_columns_are_read_as_they_are_to_be(tmp_path, values, kind, found):
    parquet.write_table(pa.table({"a": values}), tmp_path / "a.parquet")
    read = whole(opened(tmp_path / "a.parquet").encoded(Reads(a=kind)))
    assert read.arrays["values"].tolist() == [repr(value) for value in found]


def failing(made):
    with pytest.raises(Failure) as refused:
        made()
    return refused.value.outcome


@pytest.mark.parametrize(
    ("content", "place", "why"),
    [
        (b"n,s\n1,x\n2\n3,y\n", ":3", "1 fields"),
        (b"n,s\n1,x\n2,y,z\n", ":3", "3 fields"),
        (b"n,s\n1,x\n2,\xff\n", ":3", "no UTF-8"),
        (b'n,s\n1,"x\n\ny"\n2,"y"z\n', ":5", "text follows"),
        (b'n,s\n1,x\n2,"y\n3,z\n', ":3", "no end"),
        (b"n,n\n1,x\n", "", "two columns 'n'"),
        (b"n,s\n1,x\n2,y\r3,z\n", ":3", "carriage return stands alone"),
        (b"n,s\r1,x\r2,y\r", ":1", "carriage return stands alone"),
        ("n,s\n1,x\n".encode("utf-16"), ":1", "no UTF-8"),
        (b"n;s\n1;x\n", "", "its first line is one column"),
        (b"", "", "has no row"),
        (b"n,s\n", "", "has no row"),
    ],
)
def test_a_csv_file_that_cannot_be_read_is_named_with_its_line(tmp_path, content, place, why):
    path = tmp_path / "a.csv"
    path.write_bytes(content)
    outcome = failing(lambda: opened(path).encoded(Small()))
    assert outcome.code is Exit.BAD_DATA
    assert f"{path}{place}" in outcome.cause
    assert why in outcome.cause


def test_malformed_rows_are_left_out_counted_and_told(tmp_path):
    path = tmp_path / "a.csv"
    good = [f'{n},"w\n{n}"\n'.encode() for n in range(30)]
    bad = [b"7\n", b"1,2,3\n", b"9,\xff\xfe\n"]
    path.write_bytes(b"n,s\n" + good[0] + bad[0] + b"".join(good[1:20]) + bad[1] + bad[2] + b"".join(good[20:]))
    source = opened(path, malformed="skip")
    assert source.notes == (f"3 malformed rows of {path} are left out, at line 4, 43, 44",)
    assert plain(whole(source.encoded(Small()))) == [(float(n), f"w\n{n}") for n in range(30)]
    assert source.place(1) == f"{path}:5"
    assert source.place(20) == f"{path}:45"
    assert opened(path, malformed="skip").notes == source.notes


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_a_value_that_does_not_fit_is_named_by_its_place(tmp_path, suffix):
    values = [(float(n), f"w{n}") for n in range(25)]
    values[17] = (17.0, "bad")
    WRITE[suffix](tmp_path / f"a.{suffix}", values)
    place = {"csv": "a.csv:19", "parquet": "a.parquet: row group 1, row 7 of it"}[suffix]
    source = opened(tmp_path / f"a.{suffix}")
    outcome = failing(lambda: whole(source.encoded(Small())))
    assert (outcome.code, place in outcome.cause, "'s': it is bad" in outcome.cause) == (Exit.BAD_DATA, True, True)
    source = source.encoded(Reads(s="integer"))
    outcome = failing(lambda: source.read(np.arange(12, 14), np.arange(2)))
    assert outcome.code is Exit.BAD_DATA
    assert {"csv": "a.csv:12", "parquet": "row group 1, row 0 of it"}[suffix] in outcome.cause


def test_a_column_of_a_type_that_cannot_be_read_so_is_named(tmp_path):
    write_parquet(tmp_path / "a.parquet", rows(3))
    source = opened(tmp_path / "a.parquet").encoded(Reads(n="string"))
    assert "column 'n' is double, which cannot be read as string" in failing(lambda: whole(source)).cause


@pytest.mark.parametrize(
    "values",
    [
        pa.array([["a"], ["b", "c"]]),
        pa.array([{"a": "x"}, {"a": "y"}]),
        pa.array([[("a", 1)], []], pa.map_(pa.string(), pa.int64())),
    ],
)
def test_a_nested_column_that_is_to_be_one_text_is_named(tmp_path, values):
    parquet.write_table(pa.table({"a": values}), tmp_path / "a.parquet")
    outcome = failing(lambda: whole(opened(tmp_path / "a.parquet").encoded(Reads(a="string"))))
    assert outcome.code is Exit.BAD_DATA
    assert re.search(r"column 'a' is (list|struct|map)<.*>, which cannot be read as string", outcome.cause)


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_a_missing_column_is_named_with_the_nearest_and_its_file(tmp_path, suffix):
    WRITE[suffix](tmp_path / f"a.{suffix}", rows(3))
    outcome = failing(lambda: opened(tmp_path).encoded(Reads(nn="number", s="string")))
    assert outcome.code is Exit.BAD_DATA
    assert f"a.{suffix} has no column 'nn'" in outcome.cause
    assert "has no column 'k'" in failing(lambda: opened(tmp_path, key="k", part="train")).cause
    other = tmp_path / "other"
    other.mkdir()
    (other / "b.csv").write_text("n,t\n1,2\n")
    both = ColumnFiles(path=f"{tmp_path}/a.{suffix},{other}/b.csv")
    outcome = failing(lambda: open_source(both, 0, tmp_path / "digests.json").encoded(Small()))
    assert "b.csv has no column 's'" in outcome.cause


def test_a_field_of_ten_megabytes_is_read(tmp_path):
    long = "x" * 10_000_000
    write_csv(tmp_path / "a.csv", [(1, "a"), (2, long), (3, "b")])
    source = opened(tmp_path / "a.csv")
    assert [len(row["s"]) for row in whole(source)] == [1, 10_000_000, 1]


def test_files_of_other_types_are_read_as_the_task_wants_or_named(tmp_path):
    write_parquet(tmp_path / "a.parquet", rows(3))
    table = pa.table({"s": ["x", "y"], "more": [1, 2], "n": ["7", "8"]})
    parquet.write_table(table, tmp_path / "b.parquet")
    source = opened(tmp_path)
    assert source.schema["n"] == "string"
    assert [n for n, _ in plain(whole(source.encoded(Small())))] == [0, 1, 2, 7, 8]
    parquet.write_table(table.set_column(2, "n", pa.array(["7", "eight"])), tmp_path / "b.parquet")
    outcome = failing(lambda: whole(opened(tmp_path).encoded(Small())))
    assert outcome.code is Exit.BAD_DATA
    assert "b.parquet: row group 0, row 1 of it, counted from 0: column 'n'" in outcome.cause
    (tmp_path / "b.parquet").write_bytes(b"")
    outcome = failing(lambda: opened(tmp_path))
    assert (outcome.code, "b.parquet" in outcome.cause) == (Exit.BAD_DATA, True)


def test_a_rank_may_have_no_row_and_lanes_need_one_each(tmp_path):
    write_csv(tmp_path / "a.csv", rows(5))
    found = []
    for rank in range(4):
        source, order = training_order(
            Train(sources=({},)), {"log": opened(tmp_path / "a.csv").encoded(Small())}, 0, Scale(Batches(8)), 4
        )
        reader = BatchReader(source, order, Geometry(Batches(8), 4, 4, None), rank, 5, plain, lambda batch: {})
        batch = reader.read(1)
        assert batch.gaps
        found.append([row for micro in batch.micro_batches for row in micro.batch])
    assert list(map(len, found)) == [2, 2, 1, 0]
    assert sorted(chain.from_iterable(found)) == sorted(read_as_written(rows(5)))
    outcome = failing(lambda: BatchReader(source, order, Geometry(Batches(8), 8, 1, None), 0, 5, plain, dict))
    assert (outcome.code, "5 samples, fewer than 8 lanes" in outcome.cause) == (Exit.BAD_RECIPE, True)


@pytest.mark.parametrize("damage", ["cut off", "flipped", "no Parquet"])
def test_damaged_parquet_is_found_at_the_first_start(tmp_path, damage):
    path = tmp_path / "a.parquet"
    write_parquet(path, [(float(n), f"word {n}") for n in range(40)])
    content = bytearray(path.read_bytes())
    if damage == "cut off":
        content = content[: len(content) // 2]
    elif damage == "no Parquet":
        content = bytearray(b"n,s\n1,x\n")
    else:
        at = parquet.read_metadata(path).row_group(2).column(1).data_page_offset
        content[at : at + 4] = b"\xff\xff\xff\xff"
    path.write_bytes(content)
    outcome = failing(lambda: opened(path))
    assert outcome.code is Exit.BAD_DATA
    assert str(path) in outcome.cause
    assert ("row group 2" in outcome.cause) == (damage == "flipped")


def flip(path, at, bit=0):
    """Another bit at a byte of a file that says it was not written since."""
    before, content = os.stat(path), bytearray(path.read_bytes())
    content[at] ^= 1 << bit
    with path.open("r+b") as file:
        file.write(content)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_bytes_that_change_behind_the_files_time_are_found_where_they_are_read(tmp_path, suffix):
    path = tmp_path / f"a.{suffix}"
    WRITE[suffix](path, [(float(n), f"word {n}") for n in range(40)])
    opened(path)
    at = path.read_bytes().find(b"word 25")
    if suffix == "parquet":
        at = parquet.read_metadata(path).row_group(2).column(1).data_page_offset
    flip(path, at)
    source = opened(path).encoded(Small())
    assert len(source.read(np.arange(20), np.arange(20))) == 20
    outcome = failing(lambda: source.read(np.arange(25, 26), np.arange(1)))
    assert outcome.code is Exit.BAD_DATA
    assert {"csv": "a.csv:22: a block begins here", "parquet": "row group 2: column 's'"}[suffix] in outcome.cause


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
@settings(max_examples=40)
@given(data=st.data())
def test_any_flipped_bit_of_a_block_is_named_with_the_block(tmp_path_factory, suffix, data):
    path = tmp_path_factory.mktemp("log") / f"a.{suffix}"
    WRITE[suffix](path, [(float(n), f"word {n}") for n in range(20)])
    file = opened(path)._files._files[0]
    start, stop = file._stops[1:3] if suffix == "csv" else columns_parquet._span(file.footer.row_group(1).column(1))
    flip(path, data.draw(st.integers(start, stop - 1)), data.draw(st.integers(0, 7)))
    source = opened(path).encoded(Small())
    assert len(source.read(np.arange(10), np.arange(10))) == 10
    outcome = failing(lambda: source.read(np.arange(10, 11), np.arange(1)))
    assert outcome.code is Exit.BAD_DATA
    assert {"csv": "a.csv:12: a block begins here", "parquet": "row group 1: column 's'"}[suffix] in outcome.cause


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_a_file_that_is_replaced_while_it_is_read_is_an_error(tmp_path, suffix):
    path = tmp_path / f"a.{suffix}"
    WRITE[suffix](path, rows(40))
    source = opened(path).encoded(Small())
    WRITE[suffix](path, rows(40, 1))
    os.utime(path, (1, 1))
    assert "changed or replaced" in failing(lambda: whole(source)).cause


def test_only_a_few_blocks_are_kept_where_none_is_for_the_next_epoch(tmp_path):
    write_parquet(tmp_path / "a.parquet", rows(400))
    source = opened(tmp_path / "a.parquet", window=10, kept=0).encoded(Small())
    source, order = training_order(Train(sources=({},)), {"log": source}, 0, Scale(Batches(8)), 2)
    assert isinstance(source, ColumnSource)
    for at in range(0, 800, 8):
        source.read(order.ids(at, at + 8), np.arange(at, at + 8))
        assert len(source._windows._blocks) <= 8
        assert len(source._cache._blocks) <= 4


@pytest.mark.parametrize("shuffle", [True, False])
def test_however_many_blocks_are_kept_rows_have_the_same_bits(tmp_path, shuffle):
    """Of about 1.7 MiB of blocks none, some or all outlast an epoch."""
    write_parquet(tmp_path / "a.parquet", rows(60_000), group=2_000)
    ran = {}
    for kept in (0, 1, 512):
        source = opened(tmp_path / "a.parquet", window=3_000, kept=kept).encoded(Small())
        source, order = training_order(Train(sources=({},), shuffle=shuffle), {"log": source}, 7, BATCHES, 4)
        assert isinstance(source, ColumnSource)
        made, block = [], source._cache._make
        source._cache._make = lambda number, made=made, block=block: made.append(number) or block(number)
        ran[kept] = [bits_of(source, order, at) for at in range(0, 120_000, 6_000)]
        assert ran[kept] == ran[0]
        assert source._cache._bytes <= max(kept << 20, 8 * max(map(_bytes_of, source._cache._blocks.values())))
        assert (len(made) == 30) == (kept == 512)


def bits_of(source, order, at):
    """Names, types and bytes of a batch's arrays."""
    found = source.read(order.ids(at, at + 6_000), np.arange(at, at + 6_000)).arrays
    plain = {name: column for name, column in found.items() if not isinstance(column, Ragged)}
    for name in found.keys() - plain.keys():
        plain |= {f"{name}.values": found[name].values, f"{name}.offsets": found[name].offsets}
    return {name: (column.dtype.str, column.tobytes()) for name, column in plain.items()}


BATCHES = Scale(Batches(6_000))


def test_ragged_columns_of_several_blocks_come_in_order(tmp_path):
    values = [(float(n), "ab" * (n % 5)) for n in range(50)]
    write_csv(tmp_path / "a.csv", values)
    source = opened(tmp_path / "a.csv").encoded(Small())
    ids = np.array([49, 0, 17, 33, 17])
    found = source.read(ids, ids).arrays["l"]
    assert isinstance(found, Ragged)
    assert found.offsets.tolist() == [0, 8, 8, 12, 18, 22]


def test_pyarrow_that_is_not_there_is_told_with_its_pip_line(tmp_path):
    write_csv(tmp_path / "a.csv", rows(3))
    with patch.dict("sys.modules", {"pyarrow": None}):
        outcome = failing(lambda: opened(tmp_path / "a.csv"))
    assert outcome.code is Exit.INPUT_MISSING
    assert "pip install 'drivetrain[data]'" in outcome.hint


@pytest.mark.parametrize("settings", [ColumnFiles, Table])
@pytest.mark.parametrize("delimiter", ['"', "\n", "\r", "\0", ";;", ""])
def test_what_can_stand_between_no_fields_is_a_mistake(settings, delimiter):
    with pytest.raises(ValueError, match=r"^delimiter "):
        settings(path="log.csv", delimiter=delimiter)
