import json
import os
import pickle
import threading
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from drivetrain.data.opening import open_source
from drivetrain.data.parquet import Decoded
from drivetrain.data.recipe import Datasets, JsonLines, Parquet
from drivetrain.spec.exits import Exit, Failure
from drivetrain.spec.load import load
from drivetrain.spec.tree import RecipeMistakes

ROWS = [{"n": n, "text": f"row {n}", "user": f"u{n % 5}", "ids": list(range(n % 4))} for n in range(60)]


def write_jsonl(folder, rows=ROWS, files=2):
    folder.mkdir(exist_ok=True)
    for number, part in enumerate(np.array_split(np.arange(len(rows)), files)):
        lines = "".join(json.dumps(rows[n]) + "\n" for n in part)
        (folder / f"{number}.jsonl").write_text(lines)
    return folder


def write_parquet(folder, rows=ROWS, files=2, **options):
    folder.mkdir(exist_ok=True)
    for number, part in enumerate(np.array_split(np.arange(len(rows)), files)):
        table = pa.Table.from_pylist([rows[n] for n in part])
        parquet.write_table(table, folder / f"{number}.parquet", **({"row_group_size": 7} | options))
    return folder


def write_datasets(folder, rows=ROWS, files=2):
    """As `Dataset.save_to_disk` of version 5 does."""
    folder.mkdir(exist_ok=True, parents=True)
    names = [f"data-{number:05}-of-{files:05}.arrow" for number in range(files)]
    for name, part in zip(names, np.array_split(np.arange(len(rows)), files), strict=True):
        table = pa.Table.from_pylist([rows[n] for n in part])
        with pa.OSFile(str(folder / name), "wb") as file, pa.ipc.new_stream(file, table.schema) as stream:
            stream.write_table(table, max_chunksize=9)
    state = {"_data_files": [{"filename": name} for name in names], "_fingerprint": "f", "_split": None}
    (folder / "state.json").write_text(json.dumps(state))
    (folder / "dataset_info.json").write_text("{}")
    return folder


KINDS = {
    "jsonl": (write_jsonl, JsonLines, ".jsonl"),
    "parquet": (write_parquet, Parquet, ".parquet"),
    "datasets": (write_datasets, Datasets, ".arrow"),
}
every_kind = pytest.mark.parametrize("kind", KINDS)


def opened(kind, path, cache, **how):
    return open_source(KINDS[kind][1](path=str(path), **how), 0, cache / "cache.json")


def plain(rows):
    return [
        {key: value.tolist() if isinstance(value, np.ndarray) else value for key, value in row.items()} for row in rows
    ]


def read(source, ids=None):
    ids = np.arange(len(source)) if ids is None else np.array(ids, np.int64)
    return plain(source.read(ids, ids))


@every_kind
def test_rows_are_read_in_any_order_over_all_files(kind, tmp_path):
    source = opened(kind, KINDS[kind][0](tmp_path / "data"), tmp_path)
    assert len(source) == 60
    assert read(source) == ROWS
    ids = np.random.default_rng(0).integers(0, 60, 200)
    assert read(source, ids) == [ROWS[n] for n in ids]
    assert read(source, []) == []
    two = opened(kind, tmp_path / "data", tmp_path, columns=("user", "n"))
    assert read(two, [7]) == [{"user": "u2", "n": 7}]
    assert list(read(two, [7])[0]) == ["user", "n"]


@settings(max_examples=60)
@given(
    rows=st.lists(
        st.dictionaries(st.text(max_size=5), st.integers() | st.text(max_size=20) | st.none(), max_size=4), min_size=1
    ),
    blanks=st.lists(st.integers(0, 3)),
    newline=st.booleans(),
    data=st.data(),
)
def test_any_lines_come_back_whatever_is_blank_between_them(rows, blanks, newline, data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("lines")
    text = ""
    for number, row in enumerate(rows):
        text += "\n \t\r\n"[: blanks[number] if number < len(blanks) else 0] + (
            "\n" if text[-1:] not in ("", "\n") else ""
        )
        text += json.dumps(row, ensure_ascii=False)
        text += "\n" if newline or number < len(rows) - 1 else ""
    (folder / "a.jsonl").write_bytes(text.encode())
    source = opened("jsonl", folder, folder)
    ids = data.draw(st.lists(st.integers(0, len(rows) - 1), max_size=9))
    assert read(source, np.array(ids, np.int64)) == [rows[n] for n in ids]


def test_a_folder_a_pattern_and_a_file_name_the_same_rows(tmp_path):
    write_jsonl(tmp_path / "data", files=3)
    (tmp_path / "data" / "notes.txt").write_text("no rows")
    whole = opened("jsonl", tmp_path / "data", tmp_path)
    assert opened("jsonl", tmp_path / "data" / "*.jsonl", tmp_path).fingerprint == whole.fingerprint
    assert read(opened("jsonl", tmp_path / "data" / "1.jsonl", tmp_path)) == ROWS[20:40]


@every_kind
def test_a_sample_is_of_plain_values_that_a_task_can_collate(kind, tmp_path):
    rows = [{"x": 0.5, "ids": [1, 2], "many": [[1], [2, 3]], "none": None if n else "a"} for n in range(3)]
    source = opened(kind, KINDS[kind][0](tmp_path / "data", rows, 1), tmp_path)
    row = source.read(np.array([1]), np.array([0]))[0]
    assert (type(row["x"]), row["many"], row["none"]) == (float, [[1], [2, 3]], None)
    if kind != "jsonl":
        assert row["ids"].dtype == np.int64
        row["ids"] += 1  # its own memory
        assert read(source, [1]) == [rows[1]]


@every_kind
def test_parts_by_hash_by_range_and_by_the_value_of_a_column(kind, tmp_path):
    KINDS[kind][0](tmp_path / "data")
    for how in ({"by": "hash"}, {"by": "range"}, {"key": "user"}):
        split = (0.4, 0.3, 0.3)
        parts = [
            opened(kind, tmp_path / "data", tmp_path, part=part, split=split, columns=("n",), **how)
            for part in ("train", "validation", "test")
        ]
        found = [[row["n"] for row in read(part)] for part in parts]
        assert sorted(number for part in found for number in part) == list(range(60))
        if "key" in how:
            users = [{n % 5 for n in part} for part in found]
            assert sum(map(len, users)) == 5
        assert len({part.fingerprint for part in parts}) == 3


@every_kind
def test_data_workers_are_sent_no_content_and_find_the_same_rows(kind, tmp_path):
    rows = [{"n": n, "text": "x" * 2000} for n in range(300)]
    source = opened(kind, KINDS[kind][0](tmp_path / "data", rows), tmp_path, part="train", by="range")
    assert read(source, [5])
    sent = pickle.dumps(source)
    assert len(sent) < 5000
    again = pickle.loads(sent)
    assert again.fingerprint == source.fingerprint
    assert read(again, [8, 2]) == [rows[8], rows[2]]


@every_kind
def test_threads_may_read_at_the_same_time(kind, tmp_path):
    source = opened(kind, KINDS[kind][0](tmp_path / "data"), tmp_path)
    assert source.thread_safe
    wrong = []

    def work(seed):
        for _ in range(30):
            ids = np.random.default_rng(seed).integers(0, 60, 5)
            wrong.extend([ids] if read(source, ids) != [ROWS[n] for n in ids] else [])

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@every_kind
def test_the_fingerprint_follows_content_and_order_not_places(kind, tmp_path):
    write = KINDS[kind][0]
    before = opened(kind, write(tmp_path / "a"), tmp_path).fingerprint
    assert opened(kind, write(tmp_path / "b"), tmp_path).fingerprint == before
    assert opened(kind, write(tmp_path / "c", ROWS[::-1]), tmp_path).fingerprint != before


@every_kind
def test_an_unchanged_file_is_not_read_again(kind, tmp_path):
    write = KINDS[kind][0]
    opened(kind, write(tmp_path / "data"), tmp_path)
    cache = tmp_path / "cache.json"
    known = json.loads(cache.read_text())
    cache.write_text(json.dumps({key: entry | {"digest": "kept"} for key, entry in known.items()}))
    kept = opened(kind, tmp_path / "data", tmp_path).fingerprint
    cache.unlink()
    assert opened(kind, tmp_path / "data", tmp_path).fingerprint != kept


def test_row_groups_are_decoded_once_and_few_are_kept(tmp_path):
    source = opened("parquet", write_parquet(tmp_path / "data", files=1), tmp_path)
    (groups,) = source._sources
    decoded, groups._decoded = [], Decoded(1)
    decode = groups._decode
    groups._decode = lambda number, columns: decoded.append(number) or decode(number, columns)
    read(source, [0, 1, 6, 3])
    read(source, [7, 8])
    read(source, [9])
    read(source, [0])
    assert decoded == [0, 1, 0]


def spoil(path, how):
    data = bytearray(path.read_bytes())
    if how == "cut":
        data = data[: len(data) // 2]
    elif how == "flip":
        data[len(data) // 3] ^= 0x10
    else:
        data = b""
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("kind", "how"), [("parquet", "cut"), ("datasets", "cut"), ("parquet", "empty"), ("datasets", "empty")]
)
def test_d02_a_file_that_was_cut_off_is_65_and_named(kind, how, tmp_path):
    KINDS[kind][0](tmp_path / "data")
    path = sorted((tmp_path / "data").glob(f"*{KINDS[kind][2]}"))[1]
    spoil(path, how)
    with pytest.raises(Failure) as caught:
        opened(kind, tmp_path / "data", tmp_path)
    assert caught.value.outcome.code == Exit.BAD_DATA
    assert caught.value.outcome.where["file"].startswith(str(path))


def test_d02_a_stream_that_ends_between_two_batches_is_cut_off_too(tmp_path):
    """Arrow's own reader takes it for a shorter data set."""
    write_datasets(tmp_path / "data", files=1)
    (path,) = (tmp_path / "data").glob("*.arrow")
    path.write_bytes(path.read_bytes()[:-8])
    assert pa.ipc.open_stream(path.read_bytes()).read_all().num_rows == 60
    with pytest.raises(Failure, match="cut off"):
        opened("datasets", tmp_path / "data", tmp_path)


def test_d03_a_flipped_bit_in_a_page_is_65_before_the_first_step(tmp_path):
    rows = [{"n": n * 7919 % 1000} for n in range(4000)]
    options = {"write_page_checksum": True, "compression": "none", "use_dictionary": False}
    write_parquet(tmp_path / "data", rows, 1, **options)
    spoil(tmp_path / "data" / "0.parquet", "flip")
    with pytest.raises(Failure, match="row group") as caught:
        opened("parquet", tmp_path / "data", tmp_path)
    assert caught.value.outcome.code == Exit.BAD_DATA


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('{"n": 1, "text": ', "a.jsonl:4: "),
        ("[1]", "a.jsonl:4: is no JSON object"),
        ('{"nn": 1}', "a.jsonl:4 has no column 'n'; did you mean 'nn'"),
        ("\0\0\0", "a.jsonl:4: "),
        ("\udcff", "a.jsonl:4: 'utf-8'"),
    ],
    ids=["cut", "list", "column", "nul", "not unicode"],
)
def test_d04_a_malformed_line_is_65_with_file_and_line(line, words, tmp_path):
    (tmp_path / "a.jsonl").write_text('{"n": 1}\n\n{"n": 2}\n' + line + "\n", errors="surrogateescape")
    with pytest.raises(Failure) as caught:
        opened("jsonl", tmp_path / "a.jsonl", tmp_path, columns=("n",))
    assert caught.value.outcome.code == Exit.BAD_DATA
    assert words in caught.value.outcome.cause


def test_one_array_in_place_of_lines_is_65_with_advice(tmp_path):
    (tmp_path / "a.jsonl").write_text('\n [{"n": 1},\n{"n": 2}]\n')
    with pytest.raises(Failure, match="one array") as caught:
        opened("jsonl", tmp_path / "a.jsonl", tmp_path)
    assert caught.value.outcome.code == Exit.BAD_DATA
    assert "one object a line" in caught.value.outcome.hint


@every_kind
def test_unusable_rows_are_named(kind, tmp_path):
    write, _, suffix = KINDS[kind]
    write(tmp_path / "data")
    with pytest.raises(Failure, match="did you mean 'text'") as caught:
        opened(kind, tmp_path / "data", tmp_path, columns=("n", "texts"))
    assert caught.value.outcome.code == Exit.BAD_DATA
    with pytest.raises(Failure, match="no column 'usr'"):
        opened(kind, tmp_path / "data", tmp_path, part="train", key="usr")
    with pytest.raises(Failure) as caught:
        opened(kind, tmp_path / "nowhere", tmp_path)
    assert caught.value.outcome.code == Exit.INPUT_MISSING
    sorted((tmp_path / "data").glob(f"*{suffix}"))[0].unlink()
    if kind == "datasets":
        with pytest.raises(Failure) as caught:
            opened(kind, tmp_path / "data", tmp_path)
        assert caught.value.outcome.code == Exit.INPUT_MISSING


@every_kind
def test_d06_no_row_at_all_is_65(kind, tmp_path):
    if kind == "jsonl":
        (tmp_path / "data").mkdir()
        (tmp_path / "data" / "a.jsonl").write_text("\n  \n")
    else:
        KINDS[kind][0](tmp_path / "data", ROWS[:1], 1)
        table = pa.Table.from_pylist(ROWS[:1]).slice(0, 0)
        if kind == "parquet":
            parquet.write_table(table, tmp_path / "data" / "0.parquet")
        else:
            with pa.ipc.new_stream(str(tmp_path / "data" / "data-00000-of-00001.arrow"), table.schema) as stream:
                stream.write_table(table)
    with pytest.raises(Failure, match="has no row") as caught:
        opened(kind, tmp_path / "data", tmp_path)
    assert caught.value.outcome.code == Exit.BAD_DATA


@every_kind
@pytest.mark.parametrize("how", ["written to", "replaced", "removed"])
def test_d10_a_file_that_changes_while_it_is_read_is_found_at_the_next_read(kind, how, tmp_path):
    KINDS[kind][0](tmp_path / "data")
    source = opened(kind, tmp_path / "data", tmp_path)
    path = sorted((tmp_path / "data").glob(f"*{KINDS[kind][2]}"))[0]
    read(source, [0])
    content = path.read_bytes()
    if how == "written to":
        path.write_bytes(content[:-3] + b"xyz")
    elif how == "replaced":
        (tmp_path / "new").write_bytes(content)
        (tmp_path / "new").rename(path)
    else:
        path.unlink()
    with pytest.raises(Failure) as caught:
        read(source, [1])
    assert caught.value.outcome.code == (Exit.INPUT_MISSING if how == "removed" else Exit.BAD_DATA)
    assert caught.value.outcome.where["file"] == str(path)


def test_a_dataset_dict_needs_the_name_of_one(tmp_path):
    write_datasets(tmp_path / "both" / "train", ROWS[:40])
    write_datasets(tmp_path / "both" / "test", ROWS[40:])
    (tmp_path / "both" / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    assert read(opened("datasets", tmp_path / "both", tmp_path, subset="test")) == ROWS[40:]
    with pytest.raises(Failure, match="several data sets"):
        opened("datasets", tmp_path / "both", tmp_path)
    with pytest.raises(Failure, match="did you mean 'train'"):
        opened("datasets", tmp_path / "both", tmp_path, subset="trian")
    with pytest.raises(Failure, match="not needed"):
        opened("datasets", tmp_path / "both" / "train", tmp_path, subset="train")


def test_rows_chosen_beside_the_data_are_refused(tmp_path):
    write_datasets(tmp_path / "data")
    state = json.loads((tmp_path / "data" / "state.json").read_text())
    (tmp_path / "data" / "state.json").write_text(json.dumps(state | {"_indices_files": [{"filename": "i.arrow"}]}))
    with pytest.raises(Failure, match="selection of rows"):
        opened("datasets", tmp_path / "data", tmp_path)


def test_compressed_lines_are_refused_with_advice(tmp_path):
    (tmp_path / "a.jsonl.gz").write_bytes(b"x")
    with pytest.raises(Failure) as caught:
        opened("jsonl", tmp_path / "a.jsonl.gz", tmp_path)
    assert caught.value.outcome.hint == "decompress it"


def recipe(folder, task, **source):
    tree = load("quickstart").tree
    tree = tree | {"data": {"train": {"sources": [source]}, "validation": {}}}
    return load(tree | ({"task": {"kind": task}} if task else {}), folder=folder)


def test_mistakes_in_a_recipe_are_found_before_anything_is_opened(tmp_path):
    (source,) = recipe(tmp_path, "m:Task", kind="jsonl", path="p", columns=["a"]).recipe.data.train.sources
    assert (source.columns, source.part) == (("a",), "all")
    for wrong, words in (
        ({"columns": []}, "at least 1"),
        ({"key": "user", "by": "range"}, "key goes with"),
        ({"split": [0.5, 0.1, 0.1]}, "adds up to 0.7"),
    ):
        with pytest.raises(RecipeMistakes, match=words):
            recipe(tmp_path, "m:Task", kind="jsonl", path="p", **wrong)
    with pytest.raises(RecipeMistakes, match="reads tokens"):
        recipe(tmp_path, None, kind="jsonl", path="p")


def test_memory_of_the_index_is_eight_bytes_a_line(tmp_path):
    with (tmp_path / "a.jsonl").open("w") as file:
        file.writelines(f'{{"n": {n}}}\n' for n in range(50_000))
    source = opened("jsonl", tmp_path / "a.jsonl", tmp_path)
    (lines,) = source._sources
    assert lines._offsets.nbytes == 8 * 50_001
    assert read(source, [49_999]) == [{"n": 49_999}]
    assert os.path.getsize(tmp_path / "a.jsonl") > 500_000
    assert Path(tmp_path / "cache.json").is_file()
