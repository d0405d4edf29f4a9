import pytest

from jobs import Desk


@pytest.fixture
def desk(tmp_path, monkeypatch, capsys):
    """A place to submit from, with a store and targets of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DRIVETRAIN_JOBS", str(tmp_path / "jobs"))
    monkeypatch.setenv("DRIVETRAIN_TARGETS", str(tmp_path / "targets.yaml"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    (tmp_path / "targets.yaml").write_text("{}")
    return Desk(tmp_path, capsys)
