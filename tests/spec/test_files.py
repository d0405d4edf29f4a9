import os
from types import SimpleNamespace

from drivetrain.spec.files import write_private


def test_writers_in_two_containers_whose_processes_are_numbered_alike_do_not_meet(tmp_path, monkeypatch):
    path, rename = tmp_path / "exit.json", os.replace
    monkeypatch.setattr(os, "getpid", lambda: 1)

    def after_the_other(temporary, place):
        monkeypatch.setattr(os, "replace", rename)
        monkeypatch.setattr(os, "uname", lambda: SimpleNamespace(nodename="another"))
        write_private(path, b"the other's")
        rename(temporary, place)

    monkeypatch.setattr(os, "replace", after_the_other)
    write_private(path, b"one's own")
    assert [file.name for file in tmp_path.iterdir()] == ["exit.json"]
    assert path.read_bytes() == b"one's own"
