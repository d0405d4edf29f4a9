"""What Megatron-LM d98e8a64 gets wrong in its training loop, and what happens here, by its defects' numbers.

Others have their tests where they belong: 1, 2, 3, 5, 14 in test_evaluation, 9 in test_features, 11 and 16 in
test_guard, 17 in tasks/test_documents. 18 is of a listener without authentication; nothing listens here.
"""

import os
import signal
import threading
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conftest import run_under_supervisor
from drivetrain.data.batch_reader import BatchReader
from drivetrain.data.geometry import Geometry, divisors
from drivetrain.data.order import Order
from drivetrain.ledger.derive import steps
from drivetrain.ledger.ledger import read
from drivetrain.spec.batches import Batches
from drivetrain.spec.exits import Exit
from drivetrain.spec.load import load
from drivetrain.spec.schema import recipe_schema
from drivetrain.spec.tree import RecipeMistakes
from records import of_kind


class Numbers:
    """Samples that are their own numbers."""

    thread_safe = True
    fingerprint = ""

    def __init__(self, size):
        self._size = size

    def __len__(self):
        return self._size

    def read(self, ids, positions):
        return ids


@given(st.integers(4, 40), st.sampled_from([4, 8, 12]), st.integers(1, 3), st.data())
def test_megatron_4_each_epoch_has_each_sample_once_whatever_the_processes(size, batch, epochs, data):
    """Also the last ones of an epoch that the batch does not divide, and no rank is an epoch ahead of another."""
    lanes = data.draw(st.sampled_from([lanes for lanes in divisors(batch) if lanes <= size]))
    processes = data.draw(st.sampled_from(divisors(lanes)))
    total = epochs * size
    seen = []
    for rank in range(processes):
        geometry = Geometry(Batches(batch), lanes, processes, None)
        feed = BatchReader(Numbers(size), Order(size, 0, True), geometry, rank, total, list, lambda _: {})
        for step in range(1, -(-total // batch) + 1):
            seen += [pair for micro in feed.read(step).micro_batches for pair in enumerate(micro.ids, micro.start)]
    ids = np.array([int(number) for _, number in sorted(seen)])
    assert len(ids) == total
    for epoch in range(epochs):
        assert sorted(ids[epoch * size : (epoch + 1) * size]) == list(range(size))


def words(schema, path=()):
    """(path, word) for every word that the schema offers outside of lists."""
    for name, part in schema.get("properties", {}).items():
        for option in [part, *part.get("anyOf", [])]:
            yield from (((*path, name), word) for word in option.get("enum", []) if isinstance(word, str))
            yield from words(option, (*path, name))


def test_megatron_6_every_word_that_the_schema_offers_is_understood(tiny):
    offered = sorted({(".".join(path), word) for path, word in words(recipe_schema())})
    assert ("precision", "fp16") in offered
    assert ("guard.spike.action", "skip") in offered
    told = []
    for path, word in offered:
        try:
            load(tiny, [f"{path}={word}"])
        except RecipeMistakes as mistakes:  # a field of another kind than the one here, or one that does not go alone
            told.append(str(mistakes))
    assert [text for text in told if "Input should be" in text] == []


def deadline(run, recipe):
    return run_under_supervisor(recipe, run, "stop.deadline=0.001")


def listed(run, recipe):
    return run_under_supervisor(recipe, run, "stop.at=[5]")


def counted(run, recipe):
    return run_under_supervisor(recipe, run, most_steps=4)


def asked(run, recipe, *numbers):
    def send():
        path, until = run / "ledger.jsonl", time.time() + 60
        while time.time() < until and not (path.exists() and path.read_bytes().count(b'"kind":"step"') >= 2):
            time.sleep(0.002)
        for number in numbers or (signal.SIGTERM,):
            os.kill(os.getpid(), number)

    thread = threading.Thread(target=send)
    thread.start()
    try:
        return run_under_supervisor(recipe, run, "budget.steps=4000", "evaluate.every=null")
    finally:
        thread.join()


def both_signals(run, recipe):
    return asked(run, recipe, signal.SIGTERM, signal.SIGINT)


@pytest.mark.parametrize("way", [deadline, listed, counted, asked, both_signals])
def test_megatron_7_13_15_every_way_to_stop_leaves_one_verified_commit_of_where_it_stopped(tiny, tmp_path, way):
    """Also where a commit was due at that very step."""
    tiny["checkpoint"] = {"every": {"steps": 5}}
    outcome = way(tmp_path / "run", tiny)
    assert outcome.code == Exit.STOPPED
    committed = [record["step"] for record in of_kind(tmp_path / "run", "commit")]
    assert committed == sorted(set(committed))
    made = [record["step"] for record in steps(read(tmp_path / "run" / "ledger.jsonl"))]
    assert committed[-1] == outcome.where["step"] == (made[-1] if made else 0)


def test_megatron_8_an_option_acts_or_is_refused(tiny, tmp_path):
    with pytest.raises(RecipeMistakes, match="unknown key"):
        load(tiny, ["batch.rampup=[8, 8, 100]"])
    run_under_supervisor(tiny, tmp_path / "run", "batch.ramp=[{from: {steps: 2}, size: 16}]")
    sizes = [record["stop"] - record["start"] for record in of_kind(tmp_path / "run", "step")]
    assert sizes[:3] == [8, 8, 16]


def test_megatron_10_a_commit_that_lacks_a_layer_is_76_and_not_random(tiny, tmp_path):
    run_under_supervisor(tiny, tmp_path / "run", most_steps=4)
    outcome = run_under_supervisor(tiny, tmp_path / "run", "task.model.depth=2", override=("task",))
    assert outcome.code == Exit.INCOMPATIBLE
    assert "missing networks/model/layers.1" in outcome.cause
    assert len(of_kind(tmp_path / "run", "step")) == 4


def test_megatron_12_each_step_is_in_one_report_only(tiny, tmp_path):
    tiny["telemetry"] = {"every": {"steps": 5}}
    run_under_supervisor(tiny, tmp_path / "run", most_steps=7)
    run_under_supervisor(tiny, tmp_path / "run")
    told = [(record["step"], record["steps"]) for record in of_kind(tmp_path / "run", "telemetry")]
    assert told == [(5, 5), (7, 2), (10, 3), (12, 2)]
    assert [record["step"] for record in of_kind(tmp_path / "run", "step")] == list(range(1, 13))


@pytest.mark.parametrize("accepted", [False, True])
def test_n10_hyper_parameters_are_the_recipes_never_the_commits(tiny, tmp_path, accepted):
    """Changed ones are refused, or used once they are accepted; the commit's never come back."""
    change = "optimizer.betas=[0.5, 0.6]"
    run_under_supervisor(tiny, tmp_path / "old", most_steps=6)
    override = ("optimizer",) if accepted else ()
    outcome = run_under_supervisor(tiny, tmp_path / "old", change, override=override)
    assert outcome.code == (Exit.DONE if accepted else Exit.INCOMPATIBLE)
    if accepted:
        run_under_supervisor(tiny, tmp_path / "plain")
        losses = [[record["losses"] for record in of_kind(tmp_path / run, "step")] for run in ("old", "plain")]
        assert losses[0][:7] == losses[1][:7]
        assert losses[0][8:] != losses[1][8:]
