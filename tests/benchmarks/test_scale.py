"""What grows with the number of processes, by counts: calls, bytes and messages, never time."""

import sys

import pytest

from scale import SIZES, SUBJECTS, exponent

BY_NAME = {subject.name: subject for subject in SUBJECTS}
FEW, MANY = SIZES[0], 4 * SIZES[0]


def calls(subject, world):
    """How many functions are called, of Python and of C, once it is warm."""
    work = subject.work(world)
    work.run()
    seen = 0

    def see(frame, event, argument):
        nonlocal seen
        seen += event in ("call", "c_call")

    sys.setprofile(see)
    try:
        work.run()
    finally:
        sys.setprofile(None)
    return seen


@pytest.mark.parametrize("subject", SUBJECTS, ids=lambda subject: subject.name)
def test_nothing_is_worse_than_linear(subject):
    few, many = subject.work(FEW), subject.work(MANY)
    for kind in ("bytes", "messages"):
        assert exponent(getattr(few, kind), getattr(many, kind), (FEW, MANY)) < 1.02
    assert exponent(calls(subject, FEW), calls(subject, MANY), (FEW, MANY)) < 1.02


@pytest.mark.parametrize(
    "name",
    [
        "pulse",
        "micro-batches",
        "record",
        "signs of life",
        "gaps, ragged",
        "gaps, quarantine",
        "lanes of a window",
        "telemetry",
        "folder told",
        "holders",
        "agree",
    ],
)
def test_what_a_step_takes_grows_with_the_logarithm_at_most(name):
    subject = BY_NAME[name]
    few, many = subject.work(FEW), subject.work(MANY)
    assert many.messages - few.messages <= 3 * 2  # of each doubling so many as there are rounds of it
    assert many.bytes <= 1.3 * few.bytes
    assert calls(subject, MANY) <= 1.3 * calls(subject, FEW)
