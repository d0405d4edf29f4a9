"""The samples of each kind of source are what docs/data.md says."""

import csv
import json
import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

import glues
import sounds
from brokers import Broker
from drivetrain.data.inputs import find_inputs
from drivetrain.data.opening import open_source
from drivetrain.data.prepare import Preparation, encoding, prepare
from drivetrain.spec.registry import KINDS, imported

PAGE = Path(__file__).parents[2] / "docs" / "data.md"
SIZES = {"context": 16, "rate": 8000, "seconds": 0.2}
NAMED = {"context": 16, "context + 1": 17, "frames": 1600, "numbers": 3}
BROKERS: list[Broker] = []  # that answer until the tests end
ROWS = [{"text": f"row {n}", "whole": n, "fractions": n / 2, "lists": [n, n + 1, n + 2]} for n in range(20)]


def told():
    """The page's table: what each kind's samples are, by their key ("" for the sample itself)."""
    _, _, section = PAGE.read_text().partition("## What a sample is\n")
    table: dict[str, dict[str, tuple]] = {}
    for line in section.partition("\n## ")[0].splitlines():
        cells = [cell.strip() for cell in line.split("|")[1:-1]]
        if len(cells) != 4 or not cells[0].startswith("`"):
            continue
        kind, key, type_ = [re.match(r"`(\w+)`", cell) for cell in cells[:3]]
        shape = None
        if cells[3]:
            shape = tuple(NAMED[name] for name in cells[3].strip("[]").split(", "))
        table.setdefault(kind.group(1), {})[key.group(1) if key else ""] = (type_.group(1), shape)
    return table


def written(kind, folder):
    """Data of a kind, and the settings of a source over them."""
    if kind in ("text", "documents", "jsonl"):
        path = folder / "rows.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
        if kind == "documents":
            prepare(Preparation(folder / "out", tuple(find_inputs([str(path)])), encoding(None, eod="0")))
            path = folder / "out"
    elif kind == "tokens":
        path = folder / "tokens.bin"
        np.arange(200, dtype="<u2").tofile(path)
    elif kind == "table":
        path = folder / "rows.csv"
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, ["text", "whole", "fractions"], extrasaction="ignore")
            writer.writeheader()
            writer.writerows(ROWS)
    elif kind in ("parquet", "columns"):
        path = folder / "rows.parquet"
        parquet.write_table(pa.Table.from_pylist(ROWS), path)
    elif kind == "datasets":
        path = folder / "saved"
        pytest.importorskip("datasets").Dataset.from_list(ROWS).save_to_disk(str(path))
    elif kind == "hub":
        pytest.importorskip("datasets")
        path = folder / "files"
        path.mkdir()
        (path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    elif kind == "kafka":
        pytest.importorskip("confluent_kafka")
        broker = Broker()
        broker.write("rows", 0, [json.dumps(row).encode() for row in ROWS])
        BROKERS.append(broker)
        return {"brokers": broker.address, "topic": "rows"}
    elif kind == "glue":
        glues.write_rte(folder / "RTE")
        return {"path": str(folder), "task": "rte", "set": "train"}
    elif kind == "speech":
        return {"path": str(sounds.folders(folder) / "speech")}
    else:
        return {"samples": 20}
    return {"path": str(path)}


def shape_of(value):
    if isinstance(value, np.ndarray):
        return str(value.dtype), value.shape
    return type(value).__name__, None


def test_the_page_tells_of_every_kind():
    assert told().keys() == KINDS["source"].keys()


@pytest.mark.parametrize("kind", KINDS["source"])
def test_a_sample_is_what_the_page_says(kind, tmp_path):
    cls = imported(KINDS["source"][kind])
    given = written(kind, tmp_path)
    given |= {name: value for name, value in SIZES.items() if name in cls.__dataclass_fields__}
    source = open_source(cls(**given), 0, tmp_path / "cache.json")
    ids = np.arange(2)
    (first, _) = source.read(ids, ids)
    found = {"": shape_of(first)}
    if isinstance(first, dict):
        found = {key: shape_of(value) for key, value in first.items()}
    assert found == told()[kind]
