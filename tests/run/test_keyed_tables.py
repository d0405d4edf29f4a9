"""Whole runs of networks with keyed tables: worlds, stops, votes, evictions, yesterday's keys."""

import pytest
import torch

from conftest import run_under_supervisor, tensors, trace
from drivetrain.engine.tables.keys import COUNT, KEY, LAST
from drivetrain.ledger.ledger import read
from drivetrain.spec.exits import Exit
from own_tables import keyed_recipe

pytestmark = [
    pytest.mark.xdist_group("meshes"),
    pytest.mark.timeout(300),
    pytest.mark.usefixtures("forked", "importable"),
]

TWO, FOUR = ("launch.processes=2",), ("launch.processes=4",)
BY_ROWS = ('embeddings.hold={".*": row}',)
WHOLE = ('embeddings.hold={".*": table}',)
EXACT = {"exact": True, "batch": {"size": 16, "micro": 2}}
USERS = "networks/model/embeddings.keys_users"


def require_same_bits(run, other):
    assert trace(run)[1:] == trace(other)[1:]
    found, wanted = tensors(run), tensors(other)
    assert found.keys() == wanted.keys()
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)


@pytest.fixture(scope="module")
def one(tmp_path_factory):
    """What one process comes to, exactly."""
    run = tmp_path_factory.mktemp("one") / "run"
    assert run_under_supervisor(keyed_recipe(**EXACT), run).code is Exit.DONE
    return run


@pytest.mark.parametrize("asked", [(*TWO, *WHOLE), (*TWO, *BY_ROWS), FOUR], ids=["whole", "by rows", "four"])
def test_exact_runs_with_keyed_tables_have_the_same_bits_on_any_number_of_processes(one, tmp_path, asked):
    run = tmp_path / "run"
    assert run_under_supervisor(keyed_recipe(**EXACT), run, *asked).code is Exit.DONE
    require_same_bits(run, one)
