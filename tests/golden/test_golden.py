"""Golden runs are made again, and every record and bit is the expected one."""

import copy
import json
import shutil

import pytest

from golden.record import EXPECTED, recorded, verdict
from golden.runs import RUNS, make
from golden.warm import warm

pytestmark = [pytest.mark.xdist_group("golden"), pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder, and how commands are given there."""
    folder = tmp_path_factory.mktemp("golden")
    with warm(folder) as command:
        yield folder, command


@pytest.fixture
def folder(place):
    """The folder, empty again."""
    for path in place[0].iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    return place[0]


@pytest.mark.parametrize("name", RUNS)
def test_a_golden_run_is_as_it_is_recorded(name, folder, place):
    codes = make(RUNS[name], folder, place[1])
    found = verdict(name, recorded(folder, RUNS[name].runs, codes))
    assert not found.differences, found


@pytest.fixture
def document():
    """What is recorded of a run."""
    return json.loads((EXPECTED / "guard.json").read_text())


def change_a_rate(run):
    run["records"][5]["lr"]["model"] += 1e-9


def rename_a_member(run):
    run["records"][5]["duration"] = run["records"][5].pop("seconds")


def reorder_members(run):
    run["records"][5] = dict(reversed(run["records"][5].items()))


def drop_a_record(run):
    del run["records"][5]


def leave_a_file(run):
    run["names"].append("more")


def change_a_weight(run):
    run["manifest of the last"]["files"]["tensors-00000.safetensors"]["sha256"] = "0" * 64


CHANGES = (change_a_rate, rename_a_member, reorder_members, drop_a_record, leave_a_file, change_a_weight)


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_of_a_run_is_told(document, change):
    changed = copy.deepcopy(document)
    change(changed["runs"]["run"])
    assert not verdict("guard", document).differences
    assert verdict("guard", changed).differences


def test_on_another_machine_all_but_the_bits_is_compared_and_it_says_so(document):
    document["environment"]["cpu_capability"] = "another"
    change_a_weight(document["runs"]["run"])
    found = verdict("guard", document)
    assert not found.differences
    assert "no bits were compared: cpu_capability" in str(found)
    rename_a_member(document["runs"]["run"])
    assert verdict("guard", document).differences
