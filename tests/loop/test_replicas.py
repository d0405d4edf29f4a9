"""Whether ranks that should be equal are: N04, N06, N07."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

import engines
from conftest import run_under_supervisor, trace
from drivetrain.engine import placement
from drivetrain.engine.recompute import fold
from drivetrain.loop import replicas
from drivetrain.loop.replicas import odd_ones, unequal
from drivetrain.runtime.group import Group
from drivetrain.spec.exits import Exit
from records import rechained

pytestmark = pytest.mark.usefixtures("forked")


def recipe(tmp_path, processes: int, every: int | None = 1, restarts: int = 0, **task) -> dict:
    return {
        "name": "flipped",
        "task": {"kind": "flips:Flipped", "seen": str(tmp_path), **task},
        "data": {"train": {"sources": [{"kind": "guarded:Rows"}]}},
        "lanes": 6,
        "batch": {"size": 12, "micro": 2},
        "budget": {"steps": 20},
        "optimizer": {"kind": "adamw", "lr": 0.01},
        "checkpoint": {"every": {"steps": 5}},
        "guard": {"replicas": {"steps": every}} if every else {},
        "launch": {"threads": 1, "processes": processes, "restarts": restarts},
    }


def committed(run):
    return sorted(int(path.name[5:]) for path in (run / "checkpoints").glob("step-*"))


def test_a_rank_that_holds_parts_stands_for_nobody():
    """What it would hand over to the next start, if another one died, is not the state of all."""
    engine = engines.build()
    engine.placement = placement.replicas(Group(1, 2))
    assert replicas.Replicas(engine).stands_for_all(within=False)
    engine.placement.mesh.replicated = False
    assert not replicas.Replicas(engine).stands_for_all(within=False)


@pytest.mark.parametrize(
    ("name", "what", "tensor"),
    [
        ("n04", "weight", "networks/model/0.weight"),
        ("n06", "exp_avg", "optimizers/model/0.weight/exp_avg"),
    ],
)
@pytest.mark.parametrize("processes", [2, 3])
def test_n04_n06_a_bit_that_flips_on_one_rank_ends_with_83_before_it_is_committed(
    tmp_path, name, what, tensor, processes
):
    run = tmp_path / "run"
    outcome = run_under_supervisor(recipe(tmp_path, processes, what=what), run)
    assert outcome.code is Exit.CORRUPTION_SUSPECTED
    assert outcome.cause.startswith(f"{tensor} is not the same on all ranks after step 7")
    assert outcome.where["rank"] == ([0, 1] if processes == 2 else 1)
    assert (outcome.where["step"], outcome.where["tensor"]) == (7, tensor)
    assert committed(run) == [5]


def test_n04_what_is_due_later_is_compared_before_a_commit(tmp_path):
    outcome = run_under_supervisor(recipe(tmp_path, 2, every=100), tmp_path / "run")
    assert (outcome.code, outcome.where["step"]) == (Exit.CORRUPTION_SUSPECTED, 10)
    assert committed(tmp_path / "run") == [5]


def test_n04_the_run_goes_on_from_the_commit_before_to_the_same_bits(tmp_path):
    assert run_under_supervisor(recipe(tmp_path, 2, restarts=1), tmp_path / "run").code is Exit.DONE
    assert (tmp_path / "flipped-1").exists()
    plain = recipe(tmp_path, 2, step=0)
    assert run_under_supervisor(plain, tmp_path / "plain").code is Exit.DONE
    assert trace(tmp_path / "run") == trace(tmp_path / "plain")


@pytest.mark.parametrize("processes", [1, 2])
def test_n07_a_bit_that_flips_on_all_ranks_is_found_when_the_step_is_made_again(tmp_path, processes):
    """The same flip everywhere is no difference between ranks; the step after it cannot be made again, though."""
    wanted = recipe(tmp_path, processes, rank=-1, killed=True)
    run_under_supervisor(wanted, tmp_path / "run")
    outcome = run_under_supervisor(wanted, tmp_path / "run")
    assert (outcome.code, outcome.where["step"]) == (Exit.CORRUPTION_SUSPECTED, 8)
    assert committed(tmp_path / "run") == [5]


@given(st.dictionaries(st.text(max_size=3), st.integers(0, 2**64 - 1), min_size=1), st.data())
def test_a_change_of_one_checksum_changes_the_fold(sums, data):
    name = data.draw(st.sampled_from(sorted(sums)))
    other = data.draw(st.integers(0, 2**64 - 1).filter(lambda value: value != sums[name]))
    assert fold(sums) != fold({**sums, name: other})


def test_the_odd_ranks_are_those_that_are_not_with_most():
    assert odd_ones([1, 1, 1]) == []
    assert odd_ones([1, 2, 1]) == [1]
    assert odd_ones([1, 2]) == [0, 1]
    assert odd_ones([1, 2, 3]) == [0, 1, 2]
    assert odd_ones([None, 4, 4, 4]) == [0]


def test_the_first_tensor_and_the_number_of_others_are_named():
    outcome = unequal(
        {0: {"a": 1, "b": 2, "c": 3}, 2: {"a": 1, "b": 9, "c": 9}, 4: {"a": 1, "b": 2, "c": 3}}, 4
    ).outcome
    assert outcome.cause == "b is not the same on all ranks after step 4: rank 2 differs from the others; and 1 more"
    assert "suspect that machine's memory" in outcome.hint


def test_hardware_is_not_accused_where_the_ranks_have_different_environments():
    outcome = unequal({0: {"a": 1}, 1: {"a": 2}}, 4, "rank 1 has torch 2.9, rank 0 2.13").outcome
    assert outcome.hint.startswith("rank 1 has torch 2.9, rank 0 2.13: give all ranks the same")
    assert "memory" not in outcome.hint


def test_a_step_that_is_made_again_after_a_rollback_is_compared_again(monkeypatch):
    """Its state is another one: samples of it were left out since."""
    compared = []
    monkeypatch.setattr(replicas, "require_equal", lambda tensors, placement, step, unlike: compared.append(step))
    engine = engines.build()
    engine.placement = placement.replicas(Group(0, 2))
    own = replicas.Replicas(engine)
    own.compare(10)
    own.compare(10)
    own.forget()
    own.compare(10)
    assert compared == [10, 10]


@pytest.mark.parametrize("processes", [1, 2])
def test_n07_a_step_that_comes_to_other_numbers_when_it_is_made_again_ends_with_83(tiny, tmp_path, processes):
    """The ledger tells of a loss that the same bits cannot give, as after a flip on all ranks; nothing is committed."""
    import shutil

    tiny["launch"]["processes"] = processes
    tiny["launch"]["restarts"] = 0
    run = tmp_path / "run"
    run_under_supervisor(tiny, run, most_steps=7)
    shutil.rmtree(run / "checkpoints" / "step-00000007")
    kept = []
    for line in (run / "ledger.jsonl").read_bytes().splitlines():
        record = json.loads(line)
        if record["kind"] == "step" and record["step"] == 6:
            record["losses"]["loss"] += 1e-6
            line = json.dumps(record).encode()
        if (record["kind"], record.get("step")) != ("commit", 7):
            kept.append(line)
    (run / "ledger.jsonl").write_bytes(rechained(kept))
    outcome = run_under_supervisor(tiny, run)
    assert outcome.code == Exit.CORRUPTION_SUSPECTED
    assert "step 6" in outcome.cause
    assert max(path.name for path in (run / "checkpoints").iterdir()) == "step-00000005"
