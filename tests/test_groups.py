"""Tests of a group share what is made for them: all go to one worker. Where a pytest hides groups from xdist, nothing
fails; runs are only made once for each worker."""

import subprocess
import sys

import pytest

GROUPED = """
import os, pathlib, pytest

@pytest.mark.xdist_group("shared")
@pytest.mark.parametrize("number", range(8))
def test_writes_who_it_is(number):
    with pathlib.Path("workers").open("a") as file:
        print(os.environ["PYTEST_XDIST_WORKER"], file=file)
"""


@pytest.mark.cold
def test_tests_of_a_group_are_one_workers(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    (tmp_path / "test_grouped.py").write_text(GROUPED)
    (tmp_path / "pytest.ini").write_text("[pytest]")
    command = [sys.executable, "-m", "pytest", "-n", "2", "--dist", "loadgroup", "-p", "xdist"]
    subprocess.run(command, cwd=tmp_path, stdout=subprocess.DEVNULL, check=True)
    assert len(set((tmp_path / "workers").read_text().split())) == 1
