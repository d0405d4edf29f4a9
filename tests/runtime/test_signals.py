import os
import signal
import threading

import pytest

from drivetrain.runtime.signals import StopRequests
from drivetrain.spec.exits import Failure


def test_a_signal_only_sets_a_flag_and_handlers_are_given_back():
    before = signal.getsignal(signal.SIGTERM)
    with StopRequests() as stops:
        assert stops.requested is None
        os.kill(os.getpid(), signal.SIGTERM)
        assert stops.requested == "SIGTERM"
        os.kill(os.getpid(), signal.SIGINT)
        assert stops.requested == "SIGINT"
    assert signal.getsignal(signal.SIGTERM) is before


def test_outside_the_main_thread_nothing_is_installed():
    before = signal.getsignal(signal.SIGTERM)
    seen = []

    def enter():
        with StopRequests():
            seen.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert seen == [before]


def test_a_request_that_could_not_be_passed_on_is_given_again():
    with StopRequests(at_third=None) as stops:
        assert not stops.take()
        os.kill(os.getpid(), signal.SIGTERM)
        assert stops.take()
        assert not stops.take()
        stops.repeat()
        assert stops.take()
        assert not stops.take()


def test_the_third_signal_is_urgent_and_does_what_its_user_wants():
    ended = []
    with StopRequests(at_third=lambda: ended.append(True)) as stops:
        for wanted in (0, 0, 1, 2):
            os.kill(os.getpid(), signal.SIGINT)
            assert (len(ended), stops.urgent) == (wanted, wanted > 0)


def test_a_pause_ends_with_a_stop_request():
    with StopRequests(at_third=None) as stops:
        os.kill(os.getpid(), signal.SIGTERM)
        stops.pause(60.0)  # returns at once, or the test's timeout ends it
        with pytest.raises(Failure, match="before anything was started"):
            stops.sleep(0.0)
