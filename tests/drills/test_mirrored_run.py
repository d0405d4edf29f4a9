"""A machine is lost with its disk; another one goes on from the mirror, to the same bits."""

import shutil

import pytest

from conftest import run_under_supervisor, trace
from drivetrain.ledger.ledger import read
from drivetrain.spec.exits import Exit

pytest.importorskip("obstore")


@pytest.fixture(params=["file", "s3"])
def url(request, tmp_path, monkeypatch):
    """A folder, and a bucket of a local server."""
    if request.param == "file":
        yield f"file://{tmp_path}/mirror"
        return
    server = pytest.importorskip("moto.server").ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    host, port = server.get_host_and_port()
    address = f"http://{host}:{port}"
    for name, value in {
        "AWS_ENDPOINT_URL": address,
        "AWS_ALLOW_HTTP": "true",
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "canary-of-a-secret",
        "AWS_REGION": "us-east-1",
    }.items():
        monkeypatch.setenv(name, value)
    import urllib.request

    urllib.request.urlopen(urllib.request.Request(f"{address}/bucket", method="PUT")).close()
    yield "s3://bucket/runs/one"
    server.stop()


def test_a_fresh_machine_resumes_from_the_mirror(tiny, tmp_path, url):
    tiny["checkpoint"]["mirror"] = url
    lost = run_under_supervisor(tiny, tmp_path / "lost", "budget.steps=8")
    assert lost.code == Exit.DONE
    shutil.rmtree(tmp_path / "lost")
    found = run_under_supervisor(tiny, tmp_path / "fresh", override=("budget",))
    assert found.code == Exit.DONE
    records = list(read(tmp_path / "fresh" / "ledger.jsonl"))
    assert [r["from_step"] for r in records if r["kind"] == "attempt"] == [0, 8]
    notes = [r["text"] for r in records if r["kind"] == "note"]
    assert any("step-00000008 comes from the mirror" in note for note in notes)
    assert any(note.startswith("mirrored step-00000012") for note in notes)
    run_under_supervisor(tiny, tmp_path / "whole", "budget.steps=8", "checkpoint.mirror=null")
    run_under_supervisor(tiny, tmp_path / "whole", "checkpoint.mirror=null", override=("budget",))
    assert trace(tmp_path / "fresh") == trace(tmp_path / "whole")
    for path in (tmp_path / "fresh").rglob("*"):
        assert path.is_dir() or b"canary-of-a-secret" not in path.read_bytes(), path
