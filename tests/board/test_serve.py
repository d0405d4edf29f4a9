"""`drivetrain board` as it is started: where it listens, what it refuses, how it ends."""

import os
import signal
import socket
import subprocess
import sys
import urllib.request
from contextlib import contextmanager
from pathlib import Path

import pytest

from boards import made_run
from drivetrain.board.serve import listen
from drivetrain.cli.main import run as command
from drivetrain.spec.exits import Failure
from records import attempt, step

LISTENS = "0A"  # the state in /proc/net/tcp


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A folder with one run in `runs/`, and a user's folders of their own."""
    for name in ("XDG_STATE_HOME", "XDG_CACHE_HOME"):
        monkeypatch.setenv(name, str(tmp_path / name))
    monkeypatch.chdir(tmp_path)
    made_run(tmp_path / "runs" / "one", [attempt(), step(1)])
    return tmp_path


@contextmanager
def started(*words):
    """A board, and the first address that it prints."""
    process = subprocess.Popen(
        [sys.executable, "-m", "drivetrain", "board", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        # Where the tests run in the background of a shell, what they start would ignore Ctrl-C.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    try:
        yield process, process.stdout.readline().strip()
    finally:
        process.kill()
        process.communicate()


def listening(pid):
    """The addresses that a process listens at, as the kernel has them."""
    own = set()
    for fd in os.listdir(f"/proc/{pid}/fd"):
        own.add(os.readlink(f"/proc/{pid}/fd/{fd}"))
    found = []
    for table in ("tcp", "tcp6", "udp", "udp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            parts = line.split()
            bound = parts[3] == LISTENS or table.startswith("udp")
            if bound and f"socket:[{parts[9]}]" in own:
                found.append((table, parts[1]))
    return found


def test_it_listens_at_one_port_of_this_machine_alone(home):
    with started("--port", "0") as (process, address):
        port = int(address.removeprefix("http://127.0.0.1:").partition("/")[0])
        assert listening(process.pid) == [("tcp", f"0100007F:{port:04X}")]
        urllib.request.urlopen(address).read()
        assert len(listening(process.pid)) == 1


@pytest.mark.cold
@pytest.mark.parametrize(("how", "code"), [(signal.SIGTERM, -signal.SIGTERM), (signal.SIGINT, 75)])
def test_it_ends_when_it_is_told_to_and_its_port_is_free_again(home, how, code):
    with started("--port", "0") as (process, address):
        port = int(address.removeprefix("http://127.0.0.1:").partition("/")[0])
        process.send_signal(how)
        assert process.wait(timeout=20) == code
        assert "Traceback" not in process.stderr.read()
    listen("127.0.0.1", port).close()


def test_its_files_are_the_users_own(home):
    with started("--port", "0"):
        files = [path for path in (home / "XDG_STATE_HOME").rglob("*") if path.is_file()]
        assert [path.name for path in files if path.name == "keys.json"]
        assert {path.stat().st_mode & 0o077 for path in files} == {0}


def test_a_port_that_is_taken_is_64_and_says_what_to_do(home, capsys):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        assert command(["board", "--port", str(taken.getsockname()[1])]) == 64
    assert "--port 0 for any" in capsys.readouterr().err


@pytest.mark.parametrize("named", [["none"], ["empty"], ["runs", "none"]])
def test_where_no_run_is_it_ends_with_66(home, capsys, named):
    (home / "empty").mkdir()
    assert command(["board", *named]) == 66
    assert named[-1] in capsys.readouterr().err


@pytest.mark.parametrize("host", ["256.0.0.1", "no such host", "192.0.2.1"])
def test_an_address_that_is_not_this_machines_is_64(host):
    with pytest.raises(Failure, match="cannot be listened at") as refused:
        listen(host, 0)
    assert refused.value.outcome.code == 64


def test_another_address_is_listened_at_where_it_is_asked_for(home):
    with started("--port", "0", "--host", "127.0.0.2", "--read-only") as (process, address):
        assert address.startswith("http://127.0.0.2:")
        assert [at.partition(":")[0] for _, at in listening(process.pid)] == ["0200007F"]
        assert b"Drivetrain board" in urllib.request.urlopen(address).read()


def test_without_its_packages_it_is_64_and_names_the_extra(home, monkeypatch, capsys):
    monkeypatch.setattr("drivetrain.board.serve.find_spec", lambda name: None)
    assert command(["board"]) == 64
    assert "pip install 'drivetrain[board]'" in capsys.readouterr().err
