"""Columns behind URLs: a real HTTP server of this machine, fsspec's memory, and files."""

import csv
import os
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from drivetrain.data import columns_csv
from drivetrain.data.column_files import open_columns
from drivetrain.data.recipe import ColumnFiles
from drivetrain.data.remote import find_remote, near_together
from drivetrain.spec.exits import Exit, Failure
from encoders import Small, plain
from web import Ranges, serving

fsspec = pytest.importorskip("fsspec")


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """A folder and the URL that it is served at."""
    pytest.importorskip("aiohttp")
    folder = tmp_path_factory.mktemp("served")
    with serving(folder) as url:
        yield folder, url


@pytest.fixture(autouse=True)
def small_blocks():
    with patch.object(columns_csv, "ROWS", 10):
        yield


VALUES = [(float(n), f"w\n{n}") for n in range(45)]
SCHEMA = pa.schema([("n", pa.float64()), ("s", pa.string())])


def write(folder):
    """Two days of rows, and a file that is none."""
    folder.mkdir(exist_ok=True)
    with (folder / "1.csv").open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([("n", "s"), *VALUES[:25]])
    table = pa.table([list(column) for column in zip(*VALUES[25:], strict=True)], SCHEMA)
    parquet.write_table(table, folder / "2.parquet", row_group_size=10)
    (folder / "notes.md").write_text("none")


def opened(path, cache, **options):
    return open_columns(ColumnFiles(path=path, **options), cache / "digests.json").encoded(Small())


def whole(source):
    ids = np.arange(len(source))
    return plain(source.read(ids, ids))


def refused(made):
    with pytest.raises(Failure) as found:
        made()
    return found.value.outcome


def test_files_behind_urls_are_read_as_those_of_this_machine(served, tmp_path):
    folder, url = served
    write(folder / "log")
    here = opened(str(folder / "log"), tmp_path)
    memory = fsspec.filesystem("memory")
    for name in ("1.csv", "2.parquet", "notes.md"):
        memory.pipe_file(f"/bucket/log/{name}", (folder / "log" / name).read_bytes())
    far = [f"{url}/log/1.csv, {url}/log/2.parquet", f"{url}/log/", f"{url}/log/[12].*", "memory://bucket/log"]
    for path in [*far, "memory://bucket/log/*.csv,memory://bucket/log/2.parquet", f"file://{folder}/log"]:
        source = opened(path, tmp_path)
        assert whole(source) == VALUES, path
        assert source.fingerprint == here.fingerprint
        ids = np.array([31, 3, 44])
        assert plain(source.read(ids, ids)) == [VALUES[i] for i in ids]
    source = opened(far[0], tmp_path)
    assert source.place(20) == f"{url}/log/1.csv:42"
    assert source.place(27) == f"{url}/log/2.parquet: row group 0, row 2 of it, counted from 0"


def test_what_is_known_of_a_file_is_not_read_again_and_columns_of_a_row_group_come_at_once(served, tmp_path):
    folder, url = served
    write(folder / "again")
    opened(f"{url}/again/", tmp_path)
    Ranges.asked.clear()
    source = opened(f"{url}/again/", tmp_path)
    assert [path for command, path in Ranges.asked if command == "GET" and not path.endswith("/")] == []
    Ranges.asked.clear()
    source.read(np.arange(41, 43), np.array([0, 5]))
    gets = [path for command, path in Ranges.asked if command == "GET"]
    assert gets.count("/again/2.parquet") <= 3, "the footer, and two columns by one request"
    assert list(near_together([(0, 5), (7, 9), (1 << 22, 1 << 23)])) == [[(0, 5), (7, 9)], [(1 << 22, 1 << 23)]]


@pytest.mark.parametrize("name", ["1.csv", "2.parquet"])
def test_content_that_changes_behind_a_url_is_an_error(served, tmp_path, name):
    folder, url = served
    write(folder / "changes")
    path = folder / "changes" / name
    source = opened(f"{url}/changes/{name}", tmp_path)
    content, before = bytearray(path.read_bytes()), os.stat(path)
    at = (
        content.find(b"w\n3")
        if name == "1.csv"
        else parquet.read_metadata(path).row_group(0).column(1).data_page_offset
    )
    content[at] ^= 1
    path.write_bytes(content)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    outcome = refused(lambda: whole(source))  # of the same size and time: found by its bytes
    assert (outcome.code, "other bytes than at the first start" in outcome.cause) == (Exit.BAD_DATA, True)
    os.utime(path, (1, 1))
    assert "was changed or replaced" in refused(lambda: whole(source)).cause


def test_urls_that_cannot_be_read_are_named(served, tmp_path):
    folder, url = served
    write(folder / "log")
    outcome = refused(lambda: opened(f"{url}/log/3.csv", tmp_path))
    assert (outcome.code, outcome.cause) == (Exit.INPUT_MISSING, f"{url}/log/3.csv is not there")
    assert refused(lambda: opened("memory://nowhere/*.csv", tmp_path)).code is Exit.INPUT_MISSING
    outcome = refused(lambda: opened(f"{url}/forbidden.csv", tmp_path))
    assert outcome.code is Exit.INPUT_MISSING
    assert "environment" in outcome.hint
    assert refused(lambda: opened("http://127.0.0.1:9/a.csv", tmp_path)).code is Exit.PEER_UNAVAILABLE
    outcome = refused(lambda: opened("ftq://host/a.csv", tmp_path))
    assert outcome.code is Exit.BAD_RECIPE
    with patch.object(Ranges, "whole", True):
        outcome = refused(lambda: whole(opened(f"{url}/log/1.csv", tmp_path)))
    assert (outcome.code, "gives whole files only" in outcome.cause) == (Exit.BAD_DATA, True)
    with patch.dict("sys.modules", {"fsspec.core": None}):
        assert "drivetrain[urls]" in refused(lambda: find_remote("s3://bucket/log", ["*.csv"])).hint
