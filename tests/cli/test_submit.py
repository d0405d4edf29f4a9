"""The commands about jobs, as far as they start none."""

import json
import subprocess
import sys
from dataclasses import replace

import pytest
import yaml

from drivetrain.cli.main import run
from drivetrain.launch.job import StartOptions
from drivetrain.launch.preparation import plan
from drivetrain.launch.store import JobStore, Record
from drivetrain.launch.targets.config import settings_of

CLUSTER = {"cluster": {"kind": "slurm", "nodes": 2, "processes": 2, "walltime": "12h", "secrets": {"KEY": "file:/k"}}}


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DRIVETRAIN_JOBS", str(tmp_path / "jobs"))
    monkeypatch.setenv("DRIVETRAIN_TARGETS", str(tmp_path / "targets.yaml"))
    (tmp_path / "targets.yaml").write_text(yaml.safe_dump(CLUSTER))
    return tmp_path


def files(folder):
    return sorted(path.name for path in folder.rglob("*"))


@pytest.mark.parametrize("target", ["local", "cluster"])
def test_a_dry_run_shows_the_request_and_leaves_nothing(here, capsys, target):
    before = files(here)
    assert run(["submit", "quickstart", "--to", target, "--dry-run"]) == 0
    shown = capsys.readouterr().out
    assert "worker --conduct" in shown or "sbatch --parsable" in shown
    assert run(["submit", "quickstart", "--to", target, "--dry-run", "--json"]) == 0
    parts = json.loads(capsys.readouterr().out)
    assert json.loads(parts[-1]["body"])["nodes"] == (2 if target == "cluster" else 1)
    assert files(here) == before


def test_a_mesh_is_one_of_the_processes_that_the_target_has(here, capsys):
    """The recipe by itself has one process."""
    asked = ["submit", "quickstart", "--to", "cluster", "--dry-run"]
    assert run([*asked, "parallel={replicate: 2, shard: 2}"]) == 0
    assert run([*asked, "parallel.shard=3"]) == 78
    assert "cluster: 2 nodes of 2" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (["quickstart", "optimizer.lrr=1"], 78, "lrr"),
        (["quickstart", "batch.size=3"], 78, "batch"),
        (["quickstart", "--to", "clustr"], 64, "no target 'clustr'; there are local, cluster"),
        (["quickstart", "--resume", "perhaps"], 64, "auto, never or must"),
        (["nothing.yaml"], 66, "no recipe"),
    ],
)
def test_a_mistake_ends_before_anything_is_sent(here, capsys, arguments, code, told):
    before = files(here)
    assert run(["submit", *arguments]) == code
    assert told.partition(";")[0] in capsys.readouterr().err
    assert files(here) == before


def test_targets_says_what_is_reachable_and_why_not(here, capsys, monkeypatch):
    monkeypatch.setenv("PATH", str(here))
    assert run(["targets", "--json"]) == 0
    rows = {row["target"]: row for row in json.loads(capsys.readouterr().out)}
    assert rows["local"]["reachable"]
    assert not rows["cluster"]["reachable"]
    assert "squeue is not installed" in rows["cluster"]["says"]


def test_a_recipe_may_bring_its_targets(here, capsys):
    (here / "r.yaml").write_text("base: quickstart\nlaunch: {targets: {mine: {kind: slurm, queue: gpu}}}\n")
    assert run(["submit", "r.yaml", "--to", "mine", "--dry-run"]) == 0
    assert "--partition=gpu" in capsys.readouterr().out


@pytest.mark.cold
def test_none_of_it_loads_torch(here):
    commands = [
        ["submit", "quickstart", "--to", "cluster", "--dry-run"],
        ["submit", "quickstart", "--to", "local", "--dry-run"],
        ["jobs", "--all"],
        ["targets"],
        ["status", "nothing"],
    ]
    code = f"import sys\nfrom drivetrain.cli.main import run\nfor command in {commands}: run(command)\n"
    code += "assert not {'torch', 'numpy'} & set(sys.modules), 'loaded'"
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_an_engines_long_error_is_one_line_of_the_table_and_whole_in_status(here, capsys, monkeypatch):
    said = "slurm_load_jobs error: Unable to contact slurm controller " + "(connect failure) " * 20
    for name, script in (("sbatch", "echo 7"), ("squeue", f"echo '{said}' >&2; exit 1"), ("sacct", "exit 1")):
        (here / name).write_text(f"#!/bin/sh\n{script}\n")
        (here / name).chmod(0o755)
    job = plan(
        "quickstart",
        [],
        "cluster",
        settings_of("cluster", {}),
        options=StartOptions(started=0.0),
        run=str(here / "run"),
    )
    JobStore().keep(replace(Record.of(job, "quickstart", 0.0), native="7"))
    monkeypatch.setenv("PATH", f"{here}:/usr/bin:/bin")
    monkeypatch.setenv("COLUMNS", "200")
    assert run(["jobs"]) == 0
    header, row = capsys.readouterr().out.splitlines()
    assert (len(header) <= 200, "Unable to contact" in row, "…" in row) == (True, True, True)
    assert run(["status", job.token]) == 69
    assert capsys.readouterr().err.count("connect failure") == 20


def test_logs_of_a_job_that_may_have_been_sent_do_not_say_that_it_was_not(here):
    (here / "targets.yaml").write_text(yaml.safe_dump({"away": {"kind": "ray", "address": "http://127.0.0.1:9"}}))
    job = plan(
        "quickstart", [], "away", settings_of("away", {}), options=StartOptions(started=0.0), run=str(here / "run")
    )
    JobStore().keep(Record.of(job, "quickstart", 0.0))
    assert run(["logs", job.token]) == 69
