"""The language model on prepared documents: every token predicted once, over processes and a resume."""

import json

from conftest import run_under_supervisor, trace
from drivetrain.cli.main import run as command
from drivetrain.ledger.derive import lineage, steps
from drivetrain.ledger.ledger import read
from drivetrain.spec.exits import Exit


def test_an_epoch_of_packed_documents_counts_every_token_once(tiny, tmp_path, capsys):
    lines = [json.dumps({"text": f"document {n} " * (n % 7 + 1)}) for n in range(40)]
    (tmp_path / "in.jsonl").write_text("\n".join(lines))
    name = str(tmp_path / "out")
    assert command(["data", "prepare", str(tmp_path / "in.jsonl"), "--to", name, "--tokenizer", "bytes"]) == 0
    tiny["data"] = {
        "train": {"sources": [{"kind": "documents", "path": name}]},
        "validation": {"dogs": {"kind": "documents", "path": name}},
    }
    tiny["budget"] = {"epochs": 1}
    for processes in (1, 2):
        asked = f"launch.processes={processes}"
        assert run_under_supervisor(tiny, tmp_path / f"run{processes}", asked).code == Exit.DONE
    made = steps(lineage(read(tmp_path / "run2" / "ledger.jsonl")))
    stored = (tmp_path / "out.bin").stat().st_size // 2
    assert sum(record["counts"]["tokens"] for record in made) == stored - 1
    assert trace(tmp_path / "run1").samples == trace(tmp_path / "run2").samples
    assert run_under_supervisor(tiny, tmp_path / "cut", most_steps=3).code == Exit.STOPPED
    assert run_under_supervisor(tiny, tmp_path / "cut").code == Exit.DONE
    assert trace(tmp_path / "cut") == trace(tmp_path / "run1")
