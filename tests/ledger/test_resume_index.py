import records
from drivetrain.ledger.resume_index import ResumeIndex


def history(*found):
    made = ResumeIndex()
    for record in records.parsed(found):
        made.add(record)
    return made


def test_a_later_attempt_makes_void_what_came_after_its_start():
    made = history(
        records.attempt(1),
        records.step(1),
        records.evaluation(1, 0.9),
        records.step(2),
        records.evaluation(2, 0.4),
        records.attempt(2, begin=1),
    )
    assert (made.attempts, made.last_step) == (2, 1)
    assert made.evaluated(1)
    assert not made.evaluated(2)
    assert made.scores("dogs/bits") == {1: 0.9}
    assert made.scores("dogs/nothing") == {}


def test_survivors_records_join_the_ledger_or_leave_a_gap():
    made = history(records.attempt(1), records.step(1), records.step(2))
    assert made.joins([], 2)
    assert made.joins([2, 3, 4], 4)
    assert made.joins([4, 3], 4)
    assert not made.joins([4], 4)
    assert not made.joins([3], 4)


def test_nobody_goes_on_from_what_hangs_on_scores_or_ways_back_that_the_ledger_lacks():
    made = history(records.attempt(1), records.step(1), records.evaluation(1, 0.9), records.rollback(3, to=1))
    assert made.has([])
    assert made.has([["evaluation", 1], ["rollback", 3]])
    assert not made.has([["evaluation", 1], ["evaluation", 2]])
    assert not made.has([["rollback", 2]])


def test_what_is_undone_is_void_and_need_not_come_to_the_same_again():
    made = history(
        records.attempt(1),
        *(records.step(number) for number in (1, 2, 3)),
        records.evaluation(1, 0.9),
        records.evaluation(2, 0.4),
        records.rollback(3, to=1),
        records.step(2, loss=7.0),
    )
    assert made.undone == [(3, 1, (4, 9))]
    assert (made.last_step, made.evaluated(1), made.evaluated(2)) == (2, True, False)
    made.add(*records.parsed([records.attempt(2, begin=0)]))
    assert {step: record.losses["loss"] for step, record in made.promised().items()} == {1: 2.5, 2: 7.0}
