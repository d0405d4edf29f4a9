import threading
import time

from drivetrain.ledger.ledger import LedgerFile
from drivetrain.watch.sink import Follower


class Collector:
    def __init__(self, fail_at=None):
        self.records, self.fail_at, self.closed = [], fail_at, 0

    def record(self, record):
        self.records.append(record.kind)
        if len(self.records) == self.fail_at:
            raise ConnectionError("the tracker is down")

    def close(self):
        self.closed += 1


def test_records_are_handed_over_as_they_come_and_a_failing_sink_harms_nobody(tmp_path, capfd):
    ledger = LedgerFile.open(tmp_path / "l")
    ledger.append({"kind": "a"})
    good, bad = Collector(), Collector(fail_at=2)
    follower = Follower(tmp_path / "l", [bad, good])
    for kind in "bcd":
        time.sleep(0.02)
        ledger.append({"kind": kind})
    follower.close()
    assert good.records == list("abcd")
    assert bad.records == list("ab")
    assert (good.closed, bad.closed) == (1, 1)
    assert capfd.readouterr().err.count("Collector is dropped, the run goes on: ConnectionError: the tracker") == 1
    assert not [thread for thread in threading.enumerate() if thread.name == "watch"]


def test_a_line_that_is_being_written_is_waited_for(tmp_path):
    path = tmp_path / "l"
    ledger = LedgerFile.open(path)
    ledger.append({"kind": "a"})
    ledger.append({"kind": "b"})
    whole = path.read_bytes()
    path.write_bytes(whole[:-5])
    collector = Collector()
    follower = Follower(path, [collector])
    time.sleep(0.25)
    assert collector.records == ["a"]
    with path.open("ab") as file:
        file.write(whole[-5:])
    follower.close()
    assert collector.records == ["a", "b"]


def test_a_torn_line_that_its_writer_cuts_off_is_never_shown(tmp_path):
    path = tmp_path / "l"
    ledger = LedgerFile.open(path)
    ledger.append({"kind": "a"})
    ledger.append({"kind": "b"})
    ledger.close()
    path.write_bytes(path.read_bytes()[:-5])
    collector = Collector()
    follower = Follower(path, [collector])
    time.sleep(0.25)
    ledger = LedgerFile.open(path)
    ledger.append({"kind": "c"})
    ledger.close()
    follower.close()
    assert collector.records == ["a", "repair", "c"]


def test_a_record_that_does_not_follow_is_not_handed_over_before_it_does(tmp_path):
    path = tmp_path / "l"
    ledger = LedgerFile.open(path)
    for kind in "abc":
        ledger.append({"kind": kind})
    whole = path.read_bytes()
    path.write_bytes(whole.replace(b'"b"', b'"x"'))
    collector = Collector()
    follower = Follower(path, [collector])
    time.sleep(0.25)
    assert collector.records == ["a"]
    with path.open("r+b") as file:
        file.write(whole)
    follower.close()
    assert collector.records == ["a", "b", "c"]


def test_a_ledger_that_never_comes_is_no_error(tmp_path):
    collector = Collector()
    Follower(tmp_path / "l", [collector]).close()
    assert (collector.records, collector.closed) == ([], 1)
