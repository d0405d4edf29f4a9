import itertools
import os
import signal
import sys
from dataclasses import replace

import pytest

from counting import Counting
from drivetrain.launch import jobs
from drivetrain.launch.job import StartOptions
from drivetrain.launch.job_status import job_status, status_text
from drivetrain.launch.preparation import plan
from drivetrain.launch.states import JobStatus, State
from drivetrain.launch.store import JobStore
from drivetrain.launch.targets import config
from drivetrain.spec.exits import Exit, Failure


@pytest.fixture
def engine(tmp_path, monkeypatch):
    folder = tmp_path / "engine"
    folder.mkdir()
    monkeypatch.setattr(config, "KINDS", {**config.KINDS, "counting": "counting:CountingTarget"})
    return folder


def planned(engine, run="run"):
    settings = config.settings_from("counted", {"kind": "counting", "engine": str(engine)})
    return plan("quickstart", [], "counted", settings, options=StartOptions(), run=str(engine.parent / run))


def killed_at(number, act):
    """Do something in a process that is killed at its so-manieth call that could leave something behind; False where it
    ended before that."""
    pid = os.fork()
    if not pid:
        seen = itertools.count(1)
        kinds = {"open", "os.rename", "os.mkdir", "os.remove", "fcntl.flock", "os.listdir"}

        def hook(event, _):
            if event in kinds and next(seen) == number:
                os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(hook)
        try:
            act()
        finally:
            os._exit(0)
    return os.waitpid(pid, 0)[1] == signal.SIGKILL


def test_a_submit_that_dies_anywhere_leaves_no_unknown_job_and_never_two(engine, tmp_path):
    for number in itertools.count(1):
        here = engine / str(number)
        here.mkdir()
        store, job = JobStore(tmp_path / f"jobs-{number}"), planned(here)
        died = killed_at(number, lambda: jobs.submit(store, job, "quickstart"))  # noqa: B023
        assert {path.read_text() for path in here.iterdir()} <= {record.token for record in store.all()}
        for record in store.all():
            jobs.refresh(store, record)
        record, _ = jobs.submit(store, planned(here), "quickstart")
        assert [path.read_text() for path in here.iterdir()] == [record.token] == [one.token for one in store.all()]
        if not died:
            break
    assert number > 10


def test_the_same_submit_is_the_same_job_until_that_has_ended(engine, tmp_path):
    store = JobStore(tmp_path / "jobs")
    first, new = jobs.submit(store, planned(engine), "quickstart")
    again, other = jobs.submit(store, planned(engine), "quickstart")
    assert (new, other, again.token) == (True, False, first.token)
    assert jobs.submit(store, planned(engine, "elsewhere"), "quickstart")[1]
    assert jobs.cancel(store, first).state is State.CANCELLED
    assert jobs.submit(store, planned(engine), "quickstart")[0].token != first.token


def test_a_cancel_that_dies_anywhere_is_still_a_cancel(engine, tmp_path):
    for number in itertools.count(1):
        here = engine / str(number)
        here.mkdir()
        store = JobStore(tmp_path / f"jobs-{number}")
        record, _ = jobs.submit(store, planned(here), "quickstart")
        died = killed_at(number, lambda: jobs.cancel(store, record))  # noqa: B023
        now = jobs.refresh(store, store.reload(record))
        assert any(here.iterdir()) or now.state is State.CANCELLED
        assert jobs.cancel(store, now).state is State.CANCELLED
        if not died:
            break
    assert number > 5


def test_what_was_never_sent_is_sent_by_requeue(engine, tmp_path, monkeypatch):
    store = JobStore(tmp_path / "jobs")
    with monkeypatch.context() as away:
        away.setattr(Counting, "submit", unreachable)
        submit_unanswered(store, engine)
    record = store.all()[0]
    assert jobs.refresh(store, record).state is State.SUBMITTED
    assert jobs.requeue(store, record).native == "0"


def unreachable(*_):
    raise Failure(Exit.PEER_UNAVAILABLE, "nobody answers")


def submit_unanswered(store, engine):
    """Submit to an engine that is away; the record is there all the same."""
    with pytest.raises(Failure, match="nobody answers"):
        jobs.submit(store, planned(engine), "quickstart")


def test_what_was_never_sent_is_cancelled_without_a_word_to_the_engine(engine, tmp_path, monkeypatch):
    store = JobStore(tmp_path / "jobs")
    monkeypatch.setattr(Counting, "submit", unreachable)
    submit_unanswered(store, engine)
    assert jobs.cancel(store, store.all()[0]).state is State.CANCELLED


def test_the_store_is_private_and_tells_what_it_cannot_read(engine, tmp_path):
    store = JobStore(tmp_path / "jobs")
    record, _ = jobs.submit(store, planned(engine), "quickstart")
    file = tmp_path / "jobs" / f"{record.token}.json"
    assert file.stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "jobs").stat().st_mode & 0o777 == 0o700
    assert store.find(record.token[-8:]) == store.find("quick") == record
    for job, code in (("nope", Exit.INPUT_MISSING), ("../x", Exit.INPUT_MISSING), ("", Exit.INPUT_MISSING)):
        with pytest.raises(Failure) as failure:
            store.find(job)
        assert failure.value.outcome.code == code
    file.write_text("{")
    with pytest.raises(Failure, match="is damaged"):
        store.find(record.token)
    assert store.all() == []
    assert store.damaged() == [file]
    with pytest.raises(Failure, match="is damaged, and may be this job"):
        jobs.submit(store, planned(engine), "quickstart")


def test_a_look_that_a_cancel_overtakes_does_not_undo_it(engine, tmp_path, monkeypatch):
    store = JobStore(tmp_path / "jobs")
    record, _ = jobs.submit(store, planned(engine), "quickstart")
    look = Counting.look

    def slow(self, job, native):
        monkeypatch.setattr(Counting, "look", look)
        jobs.cancel(store, record)
        return JobStatus(state=State.RUNNING, native="there")

    monkeypatch.setattr(Counting, "look", slow)
    assert jobs.refresh(store, record).state is State.CANCELLED
    assert store.reload(record).cancelled is not None


def test_a_requeue_that_is_refused_leaves_the_cancel_as_it_was(engine, tmp_path, monkeypatch):
    store = JobStore(tmp_path / "jobs")
    record, _ = jobs.submit(store, planned(engine), "quickstart")
    monkeypatch.setattr(Counting, "cancel", lambda *_: None)
    assert jobs.cancel(store, record).state is State.STOPPING
    monkeypatch.setattr(Counting, "requeue", refused)
    with pytest.raises(Failure, match="is running"):
        jobs.requeue(store, record)
    assert jobs.refresh(store, store.reload(record)).state is State.STOPPING


def refused(*_):
    raise Failure(Exit.BAD_COMMAND, "it is running")


def test_what_was_cancelled_before_it_was_sent_and_is_requeued_is_no_longer_cancelled(engine, tmp_path, monkeypatch):
    store = JobStore(tmp_path / "jobs")
    with monkeypatch.context() as away:
        away.setattr(Counting, "submit", unreachable)
        submit_unanswered(store, engine)
    jobs.cancel(store, store.all()[0])
    again = jobs.requeue(store, store.all()[0])
    assert jobs.refresh(store, again).state is State.RUNNING


def test_a_requeue_whose_answer_is_lost_is_looked_at_again(engine, tmp_path, monkeypatch):
    store = JobStore(tmp_path / "jobs")
    record, _ = jobs.submit(store, planned(engine), "quickstart")
    assert jobs.cancel(store, record).state is State.CANCELLED

    def unheard(self, job, native):
        self.submit(job)
        unreachable()

    monkeypatch.setattr(Counting, "requeue", unheard)
    with pytest.raises(Failure, match="nobody answers"):
        jobs.requeue(store, record)
    assert jobs.refresh(store, store.reload(record)).state is State.RUNNING
    assert not jobs.submit(store, planned(engine), "quickstart")[1]


def test_what_was_never_sent_and_may_have_been_by_requeue_is_found_again(engine, tmp_path, monkeypatch):
    store, submit = JobStore(tmp_path / "jobs"), Counting.submit

    def unheard(self, job):
        submit(self, job)
        unreachable()

    with monkeypatch.context() as away:
        away.setattr(Counting, "submit", unreachable)
        submit_unanswered(store, engine)
        record = jobs.cancel(store, store.all()[0])
        away.setattr(Counting, "submit", unheard)
        with pytest.raises(Failure, match="nobody answers"):
            jobs.requeue(store, record)
    assert jobs.refresh(store, store.reload(record)).state is State.RUNNING
    assert not jobs.submit(store, planned(engine), "quickstart")[1]


def test_what_failed_without_a_word_is_looked_at_before_another_is_submitted(engine, tmp_path, monkeypatch):
    store = JobStore(tmp_path / "jobs")
    record, _ = jobs.submit(store, planned(engine), "quickstart")
    with monkeypatch.context() as ill:
        ill.setattr(Counting, "look", lambda *_: JobStatus(state=State.FAILED, native="NODE_FAIL"))
        assert jobs.refresh(store, record).state is State.FAILED
    assert jobs.submit(store, planned(engine), "quickstart")[0].token == record.token  # its engine started it again


def test_a_submit_of_something_else_on_the_run_of_a_job_differs(engine, tmp_path):
    store = JobStore(tmp_path / "jobs")
    record, _ = jobs.submit(store, planned(engine), "quickstart")
    assert not store.reload(record).differs(planned(engine))
    other = plan(
        "quickstart", ["checkpoint.every.steps=77"], "counted", planned(engine).settings, options=StartOptions()
    )
    assert store.reload(record).differs(other)


def test_a_cancel_is_kept_while_the_engine_is_away_and_told_by_the_next_look(engine, tmp_path, monkeypatch):
    store = JobStore(tmp_path / "jobs")
    record, _ = jobs.submit(store, planned(engine), "quickstart")
    with monkeypatch.context() as away:
        for name in ("look", "cancel", "find"):
            away.setattr(Counting, name, unreachable)
        with pytest.raises(Failure, match="nobody answers") as failure:
            jobs.cancel(store, record)
        assert "`drivetrain status" in failure.value.outcome.hint
        assert "has not heard" in status_text(job_status(store.reload(record)))
    assert list(engine.iterdir())
    assert jobs.refresh(store, store.reload(record)).state is State.CANCELLED
    assert not list(engine.iterdir())
    assert jobs.submit(store, planned(engine), "quickstart")[1]


def test_a_cancel_that_is_told_late_stops_what_the_engine_has_requeued(engine, tmp_path, monkeypatch):
    store = JobStore(tmp_path / "jobs")
    record, _ = jobs.submit(store, planned(engine), "quickstart")
    with monkeypatch.context() as away:
        away.setattr(Counting, "look", unreachable)
        away.setattr(Counting, "cancel", unreachable)
        with pytest.raises(Failure):
            jobs.cancel(store, record)
    monkeypatch.setattr(Counting, "look", lambda *_: JobStatus(state=State.REQUEUED, native="PENDING"))
    assert jobs.refresh(store, store.reload(record)).state is State.STOPPING
    assert not list(engine.iterdir())


def test_what_may_have_been_sent_and_was_cancelled_unheard_is_not_sent_again(engine, tmp_path, monkeypatch):
    store = JobStore(tmp_path / "jobs")
    with monkeypatch.context() as away:
        away.setattr(Counting, "submit", unreachable)
        away.setattr(Counting, "find", unreachable)
        submit_unanswered(store, engine)
        first = store.all()[0]
        with pytest.raises(Failure, match="nobody answers"):
            jobs.cancel(store, first)
    again, new = jobs.submit(store, planned(engine), "quickstart")
    assert (new, store.reload(first).state) == (True, State.CANCELLED)
    assert [one.read_text() for one in engine.iterdir()] == [again.token]


def test_a_cancel_that_the_engine_refuses_was_not_asked_for(engine, tmp_path, monkeypatch):
    store = JobStore(tmp_path / "jobs")
    record, _ = jobs.submit(store, planned(engine), "quickstart")
    monkeypatch.setattr(Counting, "cancel", refused)
    with pytest.raises(Failure, match="is running"):
        jobs.cancel(store, record)
    assert jobs.refresh(store, store.reload(record)).state is State.RUNNING


def test_who_watches_a_job_bears_with_an_engine_that_is_away_for_a_while(engine, tmp_path, monkeypatch, capsys):
    store, pauses = JobStore(tmp_path / "jobs"), []
    record, _ = jobs.submit(store, planned(engine), "quickstart")
    seen = iter([RUNNING, None, None, RUNNING, replace(RUNNING, state=State.SUCCEEDED)])
    monkeypatch.setattr(Counting, "look", lambda *_: next(seen) or unreachable())
    assert [one.state for one in jobs.watched(store, record, pauses.append)] == [State.RUNNING] * 2 + [State.SUCCEEDED]
    assert pauses == [5.0, 2.0, 4.0, 5.0]
    assert capsys.readouterr().err.count("nobody answers; asking again") == 2


RUNNING = JobStatus(state=State.RUNNING)
