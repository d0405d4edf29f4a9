import socket

import pytest

from drivetrain.launch import forkserver
from drivetrain.launch.forkserver import ForkServer

pytestmark = pytest.mark.usefixtures("importable")


def test_p12_a_request_of_a_supervisor_that_has_died_meanwhile_starts_nothing(tmp_path, monkeypatch):
    """It was asked while the server still imported: the request is there, and whoever sent it is not."""
    forks = []
    monkeypatch.setattr(forkserver, "_fork", lambda *_: forks.append(1))
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        ours.send(b'{"worker": "ranks:hang", "rank": 0, "arguments": []}')
        ours.close()
        forkserver.serve(theirs)
    assert not forks


def test_p12_a_server_whose_supervisor_dies_during_the_imports_ends_in_peace_and_starts_nothing(tmp_path, monkeypatch):
    (tmp_path / "late.py").write_text("import time\ntime.sleep(0.3)\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    server = ForkServer(("ranks", "late"))
    server.start("ranks:hang", 0, [{"folder": str(tmp_path)}, {"rank": 0}])
    server.close()
    assert server._process.returncode == 0
    assert not list(tmp_path.glob("pid-*"))


def test_what_its_imports_raise_ends_the_server_at_once(tmp_path, monkeypatch, capfd):
    (tmp_path / "torn.py").write_text("import atexit, time\natexit.register(time.sleep, 60)\nraise ValueError(1)\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    server = ForkServer(("torn",))
    with pytest.raises(ConnectionError):
        server.news()
    server.close()
    assert "ValueError: 1" in capfd.readouterr().err
