import json

import pytest

from drivetrain.launch.job import Job
from drivetrain.launch.supervisor import supervise
from drivetrain.spec.exits import Exit

pytestmark = pytest.mark.usefixtures("importable")


def run(folder, worker, processes, *overrides):
    job = Job(folder=str(folder), recipe={}, origins={}, processes=processes, overrides=overrides)
    return supervise(job, worker=f"ranks:{worker}", preload=("torch", "ranks"))


@pytest.mark.parametrize("processes", [1, 2, 3, 4])
def test_numbers_add_up_over_all_ranks_modulo_2_to_the_64(tmp_path, processes):
    outcome = run(tmp_path, "add_up", processes)
    assert outcome.code == Exit.DONE, outcome


@pytest.mark.parametrize("most_gathered", [0, 4], ids=["reduced", "gathered"])
def test_a_rank_that_ends_without_a_word_is_a_lost_peer_for_all_others(tmp_path, most_gathered):
    run(tmp_path, "pulse_alone", 4, most_gathered)
    told = [json.loads((tmp_path / "logs" / f"outcome-{rank}.json").read_text()) for rank in range(3)]
    assert [(outcome["code"], "lost a peer" in outcome["cause"]) for outcome in told] == [(69, True)] * 3
