import math
import os
import shutil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drivetrain.checkpoint.commits import Commit, newest
from drivetrain.checkpoint.retention import PINS, Retention, pinned_steps, retained
from drivetrain.runtime.lease import Lease
from drivetrain.spec.exits import Exit, Failure
from states import committer, save


def there(run):
    return sorted(int(name.removeprefix("step-")) for name in os.listdir(run / "checkpoints"))


def test_the_newest_are_kept(tmp_path):
    results = save(tmp_path, 1, 2, 3, 4, 5, keep=2)
    assert there(tmp_path) == [4, 5]
    assert results[-1].removed == ("step-00000003",)


def test_pinned_ones_the_best_and_every_nth_stay(tmp_path):
    (tmp_path / PINS).mkdir()
    (tmp_path / PINS / "step-00000002").touch()
    (tmp_path / PINS / "nonsense").touch()
    assert pinned_steps(tmp_path) == [2]
    writer = committer(tmp_path, scores=lambda: {3: 0.5, 4: 0.1, 5: math.nan})
    writer.retention = Retention(last=1, every=lambda step, position: position // (8 * 6), best=1)
    save(tmp_path, *range(1, 10), writer=writer)
    assert there(tmp_path) == [2, 4, 6, 9]


positions = st.dictionaries(st.integers(1, 200), st.integers(1, 2000), min_size=1)


@given(positions, st.integers(1, 5), st.integers(1, 300), st.integers(0, 3), st.lists(st.integers(1, 200)), st.data())
def test_the_newest_the_pinned_and_the_best_are_always_among_those_that_stay(found, last, every, best, pinned, data):
    scores = data.draw(st.dictionaries(st.sampled_from(sorted(found)), st.floats()))
    policy = Retention(last, lambda step, position: position // every, best)
    stay = retained(found, pinned, scores, policy)
    assert stay <= set(found)
    assert set(sorted(found)[-last:]) <= stay
    assert set(pinned) & set(found) <= stay
    real = {step: score for step, score in scores.items() if not math.isnan(score)}
    assert best == 0 or not real or min(real.values()) in {real.get(step) for step in stay}
    assert retained({s: found[s] for s in stay}, pinned, scores, policy) == stay


@given(st.dictionaries(st.integers(1, 50), st.floats(), min_size=1))
def test_a_score_that_is_no_number_never_wins(scores):
    steps = {step: step for step in scores} | {99: 99}
    for sign in (1, -1):
        stay = retained(steps, [], scores, Retention(last=1, best=1, sign=sign)) - {99}
        assert all(not math.isnan(scores[step]) for step in stay)


def test_s18_commits_that_do_not_verify_do_not_count_and_are_left_for_a_person(tmp_path):
    save(tmp_path, 1, 2, 3)
    for junk in (4, 5, 6):
        (tmp_path / "checkpoints" / f"step-{junk:08d}").mkdir()
    next((tmp_path / "checkpoints" / "step-00000003").glob("tensors*")).write_bytes(b"torn")
    save(tmp_path, 7, keep=2)
    assert there(tmp_path) == [2, 3, 4, 5, 6, 7]
    assert newest(tmp_path).path.name == "step-00000007"


def test_p16_a_zombie_cannot_commit(tmp_path):
    old = Lease.take(tmp_path, list)
    zombie = committer(tmp_path, lease=old)
    save(tmp_path, 1, writer=zombie)
    (tmp_path / "lease" / "00000002.json").write_text("another has taken over")
    (result,) = save(tmp_path, 2, writer=zombie)
    assert result.code == Exit.OWNED_ELSEWHERE
    assert there(tmp_path) == [1]
    old.release()


def test_a_lease_that_is_removed_ends_the_run_with_a_hint_of_its_own(tmp_path):
    lease = Lease.take(tmp_path, list)
    own = committer(tmp_path, lease=lease)
    save(tmp_path, 1, writer=own)
    shutil.rmtree(tmp_path / "lease")
    (result,) = save(tmp_path, 2, writer=own)
    assert (result.code, result.lasting) == (Exit.STORAGE, True)
    assert "lease was removed while the run trained" in result.cause
    assert "makes the folder anew" in result.hint
    assert there(tmp_path) == [1]
    lease.release()


def test_p16_what_a_zombie_published_in_spite_of_all_is_passed_over(tmp_path):
    old = Lease.take(tmp_path, list)
    save(tmp_path, 1, writer=committer(tmp_path, lease=old))
    old.release()
    new = Lease.take(tmp_path, lambda: ["step-00000001"])
    old._next = tmp_path / "never"  # as if it had looked just before
    (result,) = save(tmp_path, 2, writer=committer(tmp_path, lease=old))
    assert isinstance(result, Commit)
    found = newest(tmp_path)
    assert found.path.name == "step-00000001"
    assert "lost the directory (epoch 1)" in found.passed_over[0]
    new.release()


def test_a_pool_that_is_closed_has_finished_its_commit(tmp_path):
    writer = committer(tmp_path)
    from states import state

    writer.begin(1, state(), {})
    writer.close()
    assert there(tmp_path) == [1]


def test_all_damaged_is_named_one_by_one(tmp_path):
    save(tmp_path, 1, 2)
    for path in (tmp_path / "checkpoints").rglob("*.safetensors"):
        path.unlink()
    with pytest.raises(Failure, match=r"step-00000002: .* is missing; step-00000001: .* is missing"):
        newest(tmp_path)
