"""The command line as a whole: what it lists, and what a verb loads."""

import json
import subprocess
import sys
from dataclasses import replace

import pytest

from drivetrain.cli.main import NAMES, run
from drivetrain.launch.job import StartOptions
from drivetrain.launch.preparation import plan
from drivetrain.launch.store import JobStore, Record
from drivetrain.launch.targets.config import settings_of


def test_the_help_lists_every_verb_with_its_sentence(capsys):
    assert run([]) == 0
    lines = [line.strip("│ ").split(maxsplit=1) for line in capsys.readouterr().out.splitlines()]
    listed = [line[0] for line in lines if len(line) == 2 and line[0] in NAMES]
    assert listed == [name for name in NAMES if name != "worker"]


@pytest.mark.parametrize("name", NAMES)
def test_every_verb_has_a_help_of_its_own(name, capsys):
    assert run([name, "-h"]) == 0
    assert f"Usage: drivetrain {name}" in capsys.readouterr().out


def test_a_verb_that_is_mistyped_is_told_with_the_nearest(capsys):
    assert run(["submi"]) == 64
    assert "No such command 'submi'. Did you mean 'submit'?" in capsys.readouterr().err


@pytest.mark.cold
def test_a_look_at_a_job_loads_neither_other_verbs_nor_other_targets_nor_what_reads_recipes(tmp_path, monkeypatch):
    monkeypatch.setenv("DRIVETRAIN_JOBS", str(tmp_path / "jobs"))
    job = plan(
        "quickstart",
        [],
        "local",
        settings_of("local", {}),
        options=StartOptions(started=0.0),
        run=str(tmp_path / "run"),
    )
    JobStore().keep(replace(Record.of(job, "quickstart", 0.0), native="1:1"))
    code = "import json, sys\nfrom drivetrain.cli.main import run\nassert run(['status', sys.argv[1], '--json']) == 0\n"
    code += "print(json.dumps(list(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code, job.token], check=True, capture_output=True, text=True)
    state, loaded = map(json.loads, done.stdout.splitlines())
    assert state["state"] == "lost"
    unwanted = {"yaml", "rich.console", "torch", "drivetrain.spec.load", "drivetrain.spec.messages"}
    unwanted |= {"drivetrain.cli.train", "drivetrain.cli.data", "drivetrain.launch.supervisor"}
    unwanted |= {f"drivetrain.launch.targets.{kind}" for kind in ("slurm", "ray", "aws", "kubernetes")}
    assert unwanted & set(loaded) == set()
