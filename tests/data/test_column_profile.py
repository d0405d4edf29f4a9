import json

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from drivetrain.cli.main import run
from drivetrain.data.column_profile import _Distinct, describe_columns
from drivetrain.data.hashing import hash_strings
from drivetrain.spec.exits import Exit


def test_columns_are_described_over_all_blocks(tmp_path):
    path = tmp_path / "log.parquet"
    numbers = [None if n % 5 == 0 else n % 7 for n in range(100)]
    words = [None if n % 10 == 0 else f"w{n % 3}" for n in range(100)]
    table = pa.table(
        {"n": numbers, "s": words, "label": np.arange(100) % 4 == 0, "l": [[1]] * 100, "none": pa.nulls(100)}
    )
    parquet.write_table(table, path, row_group_size=30)
    about = describe_columns(str(path))
    given = [n for n in numbers if n is not None]
    deviations = {name: about["columns"][name].pop("deviation") for name in ("n", "label")}
    assert np.allclose([deviations["n"], deviations["label"]], [np.std(given), np.sqrt(0.1875)], rtol=1e-12)
    assert about == {
        "name": str(path),
        "rows": 100,
        "blocks": 4,
        "largest_block": 30,
        "columns": {
            "n": {
                "type": "int64",
                "nulls": 20,
                "distinct": 7,
                "least": 0,
                "most": 6,
                "mean": pytest.approx(sum(given) / 80),
            },
            "s": {"type": "string", "nulls": 10, "distinct": 3},
            "label": {"type": "bool", "nulls": 0, "distinct": 2, "least": 0, "most": 1, "mean": pytest.approx(0.25)},
            "l": {"type": "list<element: int64>", "nulls": 0},
            "none": {"type": "null", "nulls": 100},
        },
    }


def test_many_values_are_counted_within_two_percent():
    distinct = _Distinct()
    for first in range(0, 300_000, 50_000):
        distinct.add(hash_strings(pa.array([str(n) for n in range(first, first + 60_000)])))
    assert abs(distinct.count / 310_000 - 1) < 0.02


def test_the_command_goes_by_suffix(tmp_path, capsys):
    path = tmp_path / "log.csv"
    path.write_text("label,word\n0,a\n1,\n1,b\n")
    assert run(["data", "describe", str(path), "--json"]) == 0
    about = json.loads(capsys.readouterr().out)
    assert about["columns"]["label"]["mean"] == pytest.approx(2 / 3)
    assert run(["data", "describe", str(path)]) == 0
    told = capsys.readouterr().out
    assert "rows: 3\n" in told
    assert "column word: string, nulls 1, distinct 2\n" in told
    assert run(["data", "describe", str(tmp_path / "none.csv")]) == Exit.INPUT_MISSING
