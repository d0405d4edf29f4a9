"""A system that has nothing of what only Linux has."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from drivetrain.cli.main import run
from drivetrain.ledger.ledger import read
from drivetrain.spec.exits import Exit

BARE = [sys.executable, str(Path(__file__).parents[1] / "bare.py")]


@pytest.mark.cold
def test_a_mesh_trains_where_torchrun_starts_its_processes(tiny, tmp_path):
    tiny["data"]["train"]["workers"] = 1
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(tiny))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    world = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    asked = ["train", str(tmp_path / "tiny.yaml"), "--run", str(tmp_path / "run"), "parallel.shard=2"]
    started = []
    for rank in ("0", "1"):
        own = os.environ | world | {"RANK": rank, "LOCAL_RANK": rank}
        started.append(subprocess.Popen([*BARE, *asked], env=own, stderr=subprocess.PIPE, text=True))
    said = [process.communicate(timeout=100)[1] for process in started]
    assert [process.returncode for process in started] == [Exit.DONE] * 2, said
    (told,) = [record for record in read(tmp_path / "run" / "ledger.jsonl") if record["kind"] == "telemetry"]
    assert 0 < told["host"]["resident"] <= told["host"]["peak"]


def test_a_supervisor_says_that_it_needs_linux(tiny, tmp_path, monkeypatch, capsys):
    monkeypatch.delattr(os, "pidfd_open")
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(tiny))
    assert run(["train", str(tmp_path / "tiny.yaml"), "--run", str(tmp_path / "run")]) == Exit.BAD_RECIPE
    told = capsys.readouterr().err
    assert "a supervisor watches processes as Linux lets it" in told
    assert "torchrun" in told
