"""Machines that share no disk and are new in every attempt, as in containers: what one goes on from comes to all."""

import json
import os
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

import paced
from conftest import run_under_supervisor, trace
from drivetrain.launch.job import StartOptions
from drivetrain.launch.preparation import plan
from drivetrain.launch.targets.config import settings_from
from drivetrain.spec.exits import Exit

pytest.importorskip("obstore")


def train(work, folder, most_steps):
    """One attempt of two nodes, each with a disk of its own; their exit codes."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    told = {"DRIVETRAIN_ADDRESS": "127.0.0.1", "DRIVETRAIN_PORT": str(port), "OMP_NUM_THREADS": "1"}
    nodes = []
    for number in range(work.nodes):
        disk = folder / f"disk-{number}"
        disk.mkdir(parents=True)
        own = replace(work, job=replace(work.job, folder=str(disk / "run"), most_steps=most_steps))
        (disk / "work.json").write_text(json.dumps(own.to_json()))
        command = [sys.executable, "-m", "drivetrain", "worker", str(disk / "work.json")]
        nodes.append(subprocess.Popen(command, env={**os.environ, **told, "DRIVETRAIN_NODE": str(number)}))
    return [node.wait() for node in nodes]


def test_fresh_machines_go_on_from_the_mirror_to_the_same_bits(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "paced.py").write_text(Path(paced.__file__).read_text())
    (tmp_path / "gate").touch()
    (tmp_path / "paced.yaml").write_text(yaml.safe_dump(paced.recipe(tmp_path / "gate")))
    settings = settings_from("there", {"kind": "local", "nodes": 2, "runs": f"file://{tmp_path}/mirror"})
    work = plan("paced.yaml", [], "there", settings, options=StartOptions(started=1.0)).work
    Path(work.job.recipe["checkpoint"]["mirror"].removeprefix("file://")).parent.mkdir()
    assert train(work, tmp_path / "first", most_steps=13) == [Exit.DONE, Exit.DONE]
    assert train(work, tmp_path / "second", most_steps=None) == [Exit.DONE, Exit.DONE]
    outcome = run_under_supervisor(tmp_path / "paced.yaml", tmp_path / "straight", "launch.processes=2")
    assert outcome.code == Exit.DONE
    assert trace(tmp_path / "second" / "disk-0" / "run") == trace(tmp_path / "straight")
