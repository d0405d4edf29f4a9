"""Names, arguments and variables that a shell could read otherwise: nothing is executed, nothing is lost."""

import json
import shlex
import subprocess
import sys

import pytest

from drivetrain.launch.job import StartOptions
from drivetrain.launch.preparation import new_token, plan
from drivetrain.launch.submission import NodeWork
from drivetrain.launch.targets.config import build, settings_from
from drivetrain.launch.targets.slurm import SCRIPT
from hostile import MARK, NAMES, VALUES

SETTLE = """
import json, os, sys
from pathlib import Path
from drivetrain.launch.node import prepare_node
from drivetrain.launch.submission import NodeWork

work = NodeWork.read(Path(sys.argv[1]))
prepare_node(work, work.job)
print(json.dumps({name: os.environ[name] for name in work.environment}))
"""


def test_there_are_a_hundred():
    assert len(VALUES) == len(set(VALUES)) >= 100


@pytest.fixture
def dump(tmp_path):
    """An interpreter that only writes down what it was given."""
    python = tmp_path / "python"
    python.write_text('#!/bin/bash\nprintf "%s\\0" "$@" > "$(dirname "$0")/arguments"\n')
    python.chmod(0o755)
    return python


def test_the_script_is_a_shells_and_has_nothing_of_a_job():
    subprocess.run(["bash", "-n"], input=SCRIPT, text=True, check=True)
    job = plan("quickstart", [], "x", settings_from("x", {"kind": "slurm"}), options=StartOptions(started=0.0))
    assert next(one.body for one in build(job.settings).render(job) if one.what.endswith("job.sh")) == SCRIPT


def test_x15_folders_setups_and_options_reach_sbatch_and_the_worker_as_they_are(tmp_path, dump, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.sh").write_text(SCRIPT)
    for name in NAMES:
        settings = settings_from("x", {"kind": "slurm", "python": str(dump), "extras": {"licenses": name}})
        job = plan("quickstart", [], "x", settings, options=StartOptions(started=0.0), run=str(tmp_path / name))
        command = build(settings).render(job)[0].body
        assert job.run == (tmp_path / name)
        argv = shlex.split(command)
        assert f"--licenses={name}" in argv
        script, python, file, setup = argv[-4:]
        assert (script, python, setup) == (str(job.folder / "job.sh"), str(dump), "")
        (job.folder / "output").mkdir(parents=True)
        subprocess.run(["bash", "job.sh", python, file, setup], check=True)
        got = (tmp_path / "arguments").read_bytes().decode().split("\0")[:-1]
        assert got == ["-m", "drivetrain", "worker", "--conduct", "slurm", str(job.folder / "work.json")]
    assert not (tmp_path / MARK).exists()


def test_arguments_and_variables_travel_whole(tmp_path):
    names = {f"V{number}": value for number, value in enumerate(VALUES)}
    settings = settings_from("x", {"kind": "slurm", "environment": names})
    overrides = [f"task.sample.prompt={json.dumps(value)}" for value in VALUES]
    for prompt, value in zip(overrides, VALUES, strict=True):
        job = plan("quickstart", [prompt], "x", settings, options=StartOptions(started=0.0), run=str(tmp_path / "run"))
        work = NodeWork.from_json(json.loads(job.work.text()))
        assert work.job.recipe["task"]["sample"]["prompt"] == value
        assert work.environment == names
    for one in build(settings).render(job)[:2]:  # the command and the script have none of it
        assert not any(value in one.body for value in VALUES if len(value) > 12)


def test_whatever_a_recipe_is_called_its_token_is_a_word():
    for value in VALUES:
        token = new_token(value)
        assert len(token) <= 33
        assert token[0].isalpha()
        assert set(token) <= set("abcdefghijklmnopqrstuvwxyz0123456789-")


def test_a_worker_gets_its_variables_as_they_were(tmp_path):
    names = {f"V{number}": value for number, value in enumerate(VALUES)}
    settings = settings_from("x", {"kind": "local", "environment": names})
    job = plan("quickstart", [], "x", settings, options=StartOptions(started=0.0), run=str(tmp_path / "run"))
    (tmp_path / "work.json").write_text(job.work.text())
    done = subprocess.run([sys.executable, "-c", SETTLE, tmp_path / "work.json"], capture_output=True, check=True)
    assert json.loads(done.stdout) == names
