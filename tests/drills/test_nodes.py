"""Several nodes of a job under faults of one of them: who is blamed, and with which code."""

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import paced
from drivetrain.launch.job import StartOptions
from drivetrain.launch.preparation import plan
from drivetrain.launch.targets.config import settings_from
from drivetrain.spec.exits import Exit
from processes import family, wait_until


def started(work, folder):
    """Two nodes of a job that share a run directory."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    told = {"DRIVETRAIN_ADDRESS": "127.0.0.1", "DRIVETRAIN_PORT": str(port), "OMP_NUM_THREADS": "1"}
    nodes = []
    for number in range(2):
        file = folder / f"work-{number}.json"
        file.write_text(json.dumps(work.to_json()))
        nodes.append(
            subprocess.Popen(
                [sys.executable, "-m", "drivetrain", "worker", str(file)],
                env={**os.environ, **told, "DRIVETRAIN_NODE": str(number)},
                stderr=(folder / f"said-{number}").open("w"),
            )
        )
    return nodes


def end(nodes):
    """Whatever of them is still there."""
    for node in nodes:
        if node.poll() is None:
            for pid in family(node.pid):
                os.kill(pid, signal.SIGKILL)
        node.wait()


@pytest.mark.cold  # what a node starts is its own child
def test_nodes_that_hear_nothing_of_another_one_say_so_and_do_not_blame_a_rank_of_their_own(tmp_path, monkeypatch):
    """As in a cut: one node's processes are frozen, all of them. The other has lost a peer (69) and is no hang (84)."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "paced.py").write_text(Path(paced.__file__).read_text())
    (tmp_path / "gate").touch()
    recipe = paced.recipe(tmp_path / "gate") | {"budget": {"steps": 100_000}}
    (tmp_path / "paced.yaml").write_text(yaml.safe_dump(recipe))
    settings = settings_from("there", {"kind": "local", "nodes": 2, "runs": str(tmp_path / "runs")})
    work = plan("paced.yaml", ["launch.hang_after=2"], "there", settings, options=StartOptions(started=1.0)).work
    nodes = started(work, tmp_path)
    try:
        ledger = Path(work.job.folder) / "ledger.jsonl"
        wait_until(lambda: ledger.is_file() and b'"kind":"step"' in ledger.read_bytes(), 60)
        for pid in family(nodes[1].pid):
            os.kill(pid, signal.SIGSTOP)
        assert nodes[0].wait(60) == Exit.PEER_UNAVAILABLE
        said = (tmp_path / "said-0").read_text() + (Path(work.job.folder) / "exit.json").read_text()
        assert "nothing has come from the other machines" in said
        assert "rank 0 at step" in said
    finally:
        end(nodes)


@pytest.mark.cold
def test_a_slow_show_on_one_node_is_no_loss_of_a_peer_for_the_others(tmp_path, monkeypatch):
    """The others wait for it, where that is known to be no hang, and not in their next step."""
    monkeypatch.chdir(tmp_path)
    task = """
import time
from paced import Noise, Paced

class Shows(Paced):
    def show(self, nets, batch, gallery):
        time.sleep(6)
"""
    (tmp_path / "paced.py").write_text(Path(paced.__file__).read_text())
    (tmp_path / "shows.py").write_text(task)
    (tmp_path / "gate").touch()
    recipe = paced.recipe(tmp_path / "gate") | {"evaluate": {"every": {"steps": 20}}}
    recipe["task"]["kind"] = "shows:Shows"
    recipe["data"]["validation"] = {"noise": {"kind": "paced:Noise"}}
    (tmp_path / "paced.yaml").write_text(yaml.safe_dump(recipe))
    settings = settings_from("there", {"kind": "local", "nodes": 2, "runs": str(tmp_path / "runs")})
    work = plan("paced.yaml", ["launch.hang_after=2"], "there", settings, options=StartOptions(started=1.0)).work
    nodes = started(work, tmp_path)
    try:
        assert [node.wait(120) for node in nodes] == [Exit.DONE, Exit.DONE]
    finally:
        end(nodes)
