import contextlib
import hashlib
import json
import logging
import os
import re
import shutil
import stat
import sys
import threading
import types
import urllib.request
import uuid
from datetime import timedelta

import obstore
import pytest
from moto.server import ThreadedMotoServer
from obstore.store import LocalStore, from_url

from drivetrain.checkpoint import mirrored_commit, mirrored_ledger, store
from drivetrain.checkpoint.commit import verify
from drivetrain.checkpoint.commits import Commit, newest
from drivetrain.checkpoint.mirror import Mirror, fetch
from drivetrain.ledger.ledger import LedgerFile, read
from drivetrain.spec.code.kept import put
from drivetrain.spec.exits import Exit, Failure
from drivetrain.spec.secrets import error_without_secrets
from processes import wait_until
from states import same, save_in_parts, state

SECRET = "not-to-be-told-to-anybody"


def started(port=0):
    server = ThreadedMotoServer("127.0.0.1", port, verbose=False)
    server.start()
    return server


def stopped(server):
    server.stop()
    server._server.server_close()


@pytest.fixture(scope="module")
def server():
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = started()
    host, port = server.get_host_and_port()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
        patch.setenv("AWS_ALLOW_HTTP", "true")
        patch.setenv("AWS_ACCESS_KEY_ID", "AKIDFORTESTS")
        patch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
        patch.setenv("AWS_REGION", "us-east-1")
        yield server
    stopped(server)


@pytest.fixture
def s3(server):
    bucket = f"bucket-{uuid.uuid4().hex}"
    made = urllib.request.Request(f"{os.environ['AWS_ENDPOINT_URL']}/{bucket}", method="PUT")
    urllib.request.urlopen(made).close()
    return f"s3://{bucket}/runs/one"


@pytest.fixture
def folder(tmp_path):
    return f"file://{tmp_path}/the%20mirror"


@pytest.fixture(params=["s3", "folder"])
def url(request):
    return request.getfixturevalue(request.param)


@pytest.fixture
def run(tmp_path):
    """A run with an open ledger, as one that trains."""
    return Run(tmp_path / "run")


class Run:
    def __init__(self, path):
        self.path = path
        (path / "checkpoints").mkdir(parents=True)
        self.ledger = LedgerFile.open(path / "ledger.jsonl")

    def sources(self, *texts):
        """Sources that an attempt keeps, by their names."""
        names = [hashlib.sha256(text.encode()).hexdigest() for text in texts]
        for name, text in zip(names, texts, strict=True):
            put(self.path, name, text.encode())
        return names

    def commit(self, step, size=3000, keep=9):
        """A commit as the project writes it, after some records."""
        for number in range(5):
            self.ledger.append({"kind": "made", "step": step, "number": number})
        name = f"step-{step:08d}"
        folder = self.path / "checkpoints" / name
        folder.mkdir(mode=0o700)
        contents = {
            "tensors-00000.safetensors": hashlib.shake_256(name.encode()).digest(size),
            "values-00000.json": json.dumps({"step": step}).encode(),
        }
        for file, content in contents.items():
            (folder / file).write_bytes(content)
        metadata = {f: {"size": len(c), "sha256": hashlib.sha256(c).hexdigest()} for f, c in contents.items()}
        (folder / "MANIFEST.json").write_bytes(sealed({"step": step, "files": metadata}))
        for old in sorted((self.path / "checkpoints").iterdir())[:-keep]:
            shutil.rmtree(old)
        return name


def sealed(manifest):
    line = json.dumps(manifest).encode()
    return line + b"\n" + hashlib.sha256(line).hexdigest().encode() + b"\n"


def mirrored(url, run, *names, **options):
    """What a mirror noted that got these commits one after the other."""
    notes = []
    for name in names:
        mirror = Mirror(url, run.path, sleep=lambda seconds: None, **options)
        mirror.push(name)
        mirror.close(30)
        notes += mirror.notes()
    return notes


def quick(url, run, reasons=None):
    return fetch(url, run, reasons, sleep=lambda seconds: None)


def store_of(url):
    return (
        LocalStore(url.removeprefix("file://").replace("%20", " "))
        if url.startswith("file")
        else from_url(url, client_options={"allow_http": True})
    )


def keys(url):
    return {meta["path"]: meta["size"] for chunk in obstore.list(store_of(url)) for meta in chunk}


def flip(url, key):
    store = store_of(url)
    content = bytearray(obstore.get(store, key).bytes())
    content[len(content) // 2] ^= 4
    obstore.put(store, key, bytes(content))


def tree(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_what_was_pushed_is_fetched_by_another_machine(url, run, tmp_path):
    names = [run.commit(step) for step in (10, 20)]
    notes = mirrored(url, run, *names)
    assert [re.sub(r"\d\.\d", "N", note) for note in notes] == [f"mirrored {name} in N s" for name in names]
    other = tmp_path / "other"
    reasons = []
    assert quick(url, other, reasons) == names[-1]
    assert reasons == []
    expected = {name: data for name, data in tree(run.path).items() if names[0] not in name}
    assert tree(other) == expected
    assert verify(other / "checkpoints" / names[-1])["step"] == 20
    assert len(list(read(other / "ledger.jsonl"))) == 10
    assert os.listdir(other / "checkpoints") == [names[-1]]


def test_the_sources_that_a_run_keeps_go_along_once_each(url, run, tmp_path):
    kept = run.sources("one", "two")
    mirror = Mirror(url, run.path, sleep=lambda seconds: None)
    mirror.push(run.commit(10))
    wait_until(lambda: any("mirrored" in note for note in mirror.notes()), 30)
    kept += run.sources("three")
    (run.path / "code" / kept[0]).write_text("torn")  # it is there already
    (run.path / "code" / "a.py").write_text("of somebody else")
    mirror.push(run.commit(20))
    mirror.close(30)
    assert {key for key in keys(url) if key.startswith("code/")} == {f"code/{name}" for name in kept}
    flip(url, f"code/{kept[1]}")
    reasons = []
    quick(url, tmp_path / "other", reasons)
    assert {path.name for path in (tmp_path / "other" / "code").iterdir()} == {kept[0], kept[2]}
    assert (tmp_path / "other" / "code" / kept[0]).read_text() == "one"
    assert reasons == [f"code/{kept[1]} in the mirror is damaged"]


def test_fetched_files_are_for_nobody_else(s3, run, tmp_path):
    run.sources("one")
    mirrored(s3, run, run.commit(10))
    old = os.umask(0)
    try:
        quick(s3, tmp_path / "other")
    finally:
        os.umask(old)
    for path in (tmp_path / "other").rglob("*"):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path
    assert stat.S_IMODE((tmp_path / "other" / "ledger.jsonl").stat().st_mode) == 0o600


def test_a_mirror_that_was_never_written_is_none(url, tmp_path):
    assert quick(url, tmp_path / "other") is None
    assert not (tmp_path / "other").exists()


def test_large_files_go_in_parts(url, run, tmp_path, monkeypatch):
    monkeypatch.setattr(store, "BLOCK", 5 << 20)
    name = run.commit(10, size=(11 << 20) + 7)
    assert mirrored(url, run, name)[0].startswith("mirrored")
    quick(url, tmp_path / "other")
    assert tree(tmp_path / "other") == tree(run.path)


def test_killed_before_the_manifest_the_commit_is_not_there(url, run, tmp_path, monkeypatch):
    first, second = run.commit(10), run.commit(20)
    mirrored(url, run, first)
    put = store.ObjectStore.put

    def dies(store, key, content):
        if key.endswith("MANIFEST.json"):
            raise SystemExit
        put(store, key, content)

    monkeypatch.setattr(store.ObjectStore, "put", dies)
    mirrored(url, run, second)
    assert f"checkpoints/{second}/values-00000.json" in keys(url)
    monkeypatch.undo()
    assert quick(url, tmp_path / "other") == first


@pytest.mark.parametrize("file", ["tensors-00000.safetensors", "values-00000.json", "MANIFEST.json"])
@pytest.mark.parametrize("how", ["flipped", "missing", "longer"])
def test_a_damaged_commit_is_passed_over_by_name(folder, run, tmp_path, file, how):
    first, second = run.commit(10), run.commit(20)
    mirrored(folder, run, first, second)
    key = f"checkpoints/{second}/{file}"
    if how == "flipped":
        flip(folder, key)
    elif how == "missing":
        obstore.delete(store_of(folder), key)
    else:
        obstore.put(store_of(folder), key, bytes(obstore.get(store_of(folder), key).bytes()) + b"\n")
    reasons = []
    assert quick(folder, tmp_path / "other", reasons) == first
    assert [reason.split(" ")[0] for reason in reasons] == (
        [] if (file, how) == ("MANIFEST.json", "missing") else [second]
    )


def test_all_damaged_is_86(url, run, tmp_path):
    names = [run.commit(step) for step in (10, 20)]
    mirrored(url, run, *names)
    for name in names:
        flip(url, f"checkpoints/{name}/values-00000.json")
    with pytest.raises(Failure, match=f"none of 2 commits.*{names[1]}.*{names[0]}") as caught:
        quick(url, tmp_path / "other")
    assert caught.value.outcome.code == Exit.NO_VALID_COMMIT
    assert os.listdir(tmp_path / "other" / "checkpoints") == []
    assert not (tmp_path / "other" / "ledger.jsonl").exists()


def test_an_outage_is_noted_and_the_next_push_catches_up(s3, run, tmp_path, monkeypatch):
    server = started()
    host, port = server.get_host_and_port()
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
    monkeypatch.setattr(store, "_BACKOFF", timedelta(milliseconds=1))
    waits = []
    mirror = Mirror(s3, run.path, sleep=waits.append)
    stopped(server)
    mirror.push(run.commit(10))
    wait_until(lambda: len(waits) == 3 and mirror._said, 10)
    (note,) = mirror.notes()
    assert note.startswith("mirror: cannot upload step-00000010: ")
    assert note.endswith(", tried again with the next commit")
    assert SECRET not in note
    assert "AKIDFORTESTS" not in note
    with pytest.raises(Failure) as caught:
        quick(s3, tmp_path / "other")
    assert caught.value.outcome.code == Exit.STORAGE
    assert not (tmp_path / "other").exists()
    server = started(port)
    try:
        mirror.push(run.commit(20))
        mirror.close(30)
        assert [note.split(" in ")[0] for note in mirror.notes()] == ["mirrored step-00000020"]
        assert quick(s3, tmp_path / "other") == "step-00000020"
    finally:
        stopped(server)
    assert len(list(read(tmp_path / "other" / "ledger.jsonl"))) == 10


def test_one_failed_request_is_tried_again(s3, run, monkeypatch):
    put, failures, waits = obstore.put, [OSError("weather"), OSError("weather")], []

    def fails(*arguments, **options):
        if failures:
            raise failures.pop()
        return put(*arguments, **options)

    monkeypatch.setattr(obstore, "put", fails)
    mirror = Mirror(s3, run.path, sleep=waits.append)
    mirror.push(run.commit(10))
    mirror.close(30)
    assert mirror.notes()[0].startswith("mirrored")
    assert waits == [1.0, 4.0]


@pytest.mark.parametrize("what", ["bucket", "mount"])
def test_a_place_that_is_gone_is_no_empty_mirror(server, run, tmp_path, what):
    url = {"bucket": "s3://no-such-bucket/run", "mount": f"file://{tmp_path}/gone/mirror"}[what]
    with pytest.raises(Failure) as caught:
        quick(url, tmp_path / "other")
    assert caught.value.outcome.code == Exit.STORAGE
    assert mirrored(url, run, run.commit(10))[0].startswith("mirror: cannot upload step-00000010")


def test_only_the_newest_queued_commit_is_uploaded(url, run, monkeypatch):
    begun, go_on = threading.Event(), threading.Event()
    put_file = store.ObjectStore.put_file

    def slow(*arguments):
        begun.set()
        go_on.wait(10)
        put_file(*arguments)

    monkeypatch.setattr(store.ObjectStore, "put_file", slow)
    mirror = Mirror(url, run.path)
    mirror.push(run.commit(10))
    begun.wait(10)
    for step in (20, 30, 40):
        mirror.push(run.commit(step, keep=1))  # 10 is rotated away while it is being uploaded
    go_on.set()
    mirror.close(30)
    assert [note.split(" in ")[0] for note in mirror.notes()] == ["mirrored step-00000010", "mirrored step-00000040"]
    assert {key.split("/")[1] for key in keys(url) if key.startswith("c")} == {"step-00000010", "step-00000040"}


def test_closing_gives_up_after_a_while(folder, run, monkeypatch):
    go_on = threading.Event()
    monkeypatch.setattr(store.ObjectStore, "list", lambda *_: go_on.wait(10) and {})
    mirror = Mirror(folder, run.path)
    mirror.push(run.commit(10))
    mirror.close(0.05)
    assert mirror.notes() == ["mirror: gave up after 0.05 s, the last commit may not be there"]
    go_on.set()
    mirror._thread.join(10)
    assert keys(folder) == {}


def test_a_commit_that_is_gone_is_noted(folder, run):
    (note,) = mirrored(folder, run, "step-00000010")
    assert note.startswith("mirror: cannot upload step-00000010: it is no longer in the run's checkpoints, ")


def test_bytes_that_changed_on_the_disk_are_not_mirrored(folder, run, tmp_path):
    first, second = run.commit(10), run.commit(20)
    (run.path / "checkpoints" / second / "tensors-00000.safetensors").write_bytes(b"x" * 3000)
    notes = mirrored(folder, run, first, second)
    assert "tensors-00000.safetensors does not have its SHA-256 any more" in notes[1]
    assert quick(folder, tmp_path / "other") == first


def test_the_mirror_keeps_what_the_run_keeps_and_never_less_than_two(url, run):
    for step in (10, 20, 30, 40):
        mirrored(url, run, run.commit(step, keep=3))
    assert {key.split("/")[1] for key in keys(url) if key.startswith("c")} == {f"step-000000{n}" for n in (20, 30, 40)}
    mirrored(url, run, run.commit(50, keep=1))
    assert {key.split("/")[1] for key in keys(url) if key.startswith("c")} == {f"step-000000{n}" for n in (40, 50)}


def test_a_commit_of_the_same_name_is_replaced_and_an_equal_one_is_not_uploaded_again(url, run, tmp_path, monkeypatch):
    name = run.commit(10)
    mirrored(url, run, name)
    shutil.rmtree(run.path / "checkpoints" / name)
    mirrored(url, run, run.commit(10, size=4000))
    assert keys(url)[f"checkpoints/{name}/tensors-00000.safetensors"] == 4000
    monkeypatch.setattr(store.ObjectStore, "put_file", None)
    assert mirrored(url, run, name)[0].startswith("mirrored")
    assert quick(url, tmp_path / "other") == name


def test_killed_while_a_commit_is_replaced_it_is_not_there(folder, run, tmp_path, monkeypatch):
    first, second = run.commit(10), run.commit(20)
    mirrored(folder, run, first, second)
    shutil.rmtree(run.path / "checkpoints" / second)
    run.commit(20, size=4000)
    monkeypatch.setattr(store.ObjectStore, "put_file", lambda *_: (_ for _ in ()).throw(SystemExit()))
    mirrored(folder, run, second)
    reasons = []
    assert quick(folder, tmp_path / "other", reasons) == first
    assert reasons == []


def test_what_does_not_fit_on_the_disk_is_74(folder, run, tmp_path, monkeypatch):
    mirrored(folder, run, run.commit(10))
    monkeypatch.setattr(os, "statvfs", lambda _: types.SimpleNamespace(f_bavail=1000, f_frsize=1, f_files=0))
    with pytest.raises(Failure, match="MB are free") as caught:
        quick(folder, tmp_path / "other")
    assert caught.value.outcome.code == Exit.STORAGE
    assert os.listdir(tmp_path / "other" / "checkpoints") == []


def segments(url):
    return sorted(key for key in keys(url) if key.startswith("ledger/"))


@pytest.mark.parametrize("small", [0, mirrored_ledger._SMALL_SEGMENT])
def test_the_ledger_goes_on_over_attempts_and_a_torn_tail(url, run, tmp_path, monkeypatch, small):
    monkeypatch.setattr(mirrored_ledger, "_SMALL_SEGMENT", small)
    path = run.path / "ledger.jsonl"
    mirrored(url, run, run.commit(10))
    run.ledger.close()
    with path.open("ab") as file:
        file.write(b'{"kind":"step","ti')
    (note,) = mirrored(url, run, "step-00000010")
    assert note.startswith("mirrored")
    assert len(segments(url)) == 1
    run.ledger = LedgerFile.open(path)  # another attempt: cuts the torn line off
    mirrored(url, run, run.commit(20))
    mirrored(url, run, run.commit(30))
    assert len(segments(url)) == (1 if small else 3)
    quick(url, tmp_path / "other")
    assert (tmp_path / "other" / "ledger.jsonl").read_bytes() == path.read_bytes()
    assert [record["kind"] for record in read(tmp_path / "other" / "ledger.jsonl")].count("repair") == 1


@pytest.mark.parametrize("small", [0, mirrored_ledger._SMALL_SEGMENT])
@pytest.mark.parametrize("lost", [1, 5, 7])
def test_a_ledger_that_lost_records_starts_a_branch(folder, run, tmp_path, monkeypatch, small, lost):
    monkeypatch.setattr(mirrored_ledger, "_SMALL_SEGMENT", small)
    path = run.path / "ledger.jsonl"
    mirrored(folder, run, run.commit(10))
    mirrored(folder, run, run.commit(20))
    run.ledger.close()
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-lost]))
    run.ledger = LedgerFile.open(path)
    mirrored(folder, run, run.commit(30))
    assert sum(keys(folder)[key] for key in segments(folder)) == path.stat().st_size
    quick(folder, tmp_path / "other")
    assert (tmp_path / "other" / "ledger.jsonl").read_bytes() == path.read_bytes()


def test_killed_between_segment_and_removal_either_branch_is_whole(folder, run, tmp_path, monkeypatch):
    mirrored(folder, run, run.commit(10))
    with monkeypatch.context() as patch:
        patch.setattr(store.ObjectStore, "remove", lambda *_: (_ for _ in ()).throw(SystemExit()))
        mirrored(folder, run, run.commit(20))
    assert len(segments(folder)) == 2
    quick(folder, tmp_path / "other")
    assert len(list(read(tmp_path / "other" / "ledger.jsonl"))) == 10
    mirrored(folder, run, run.commit(30))
    assert len(segments(folder)) == 1


def test_segments_are_bounded(folder, run, tmp_path, monkeypatch):
    monkeypatch.setattr(mirrored_ledger, "_SEGMENT_BYTES", 200)
    monkeypatch.setattr(mirrored_ledger, "_SMALL_SEGMENT", 100)
    for step in (10, 20):
        mirrored(folder, run, run.commit(step))
    assert len(segments(folder)) > 3
    quick(folder, tmp_path / "other")
    assert tree(tmp_path / "other")["ledger.jsonl"] == tree(run.path)["ledger.jsonl"]


def test_a_damaged_segment_ends_the_ledger_and_a_first_one_leaves_none(folder, run, tmp_path, monkeypatch):
    monkeypatch.setattr(mirrored_ledger, "_SMALL_SEGMENT", 0)
    for step in (10, 20, 30):
        mirrored(folder, run, run.commit(step))
    first, second, _ = segments(folder)
    flip(folder, second)
    reasons = []
    assert quick(folder, tmp_path / "other", reasons) == "step-00000030"
    assert reasons == [f"{second} in the mirror is damaged"]
    assert len(list(read(tmp_path / "other" / "ledger.jsonl"))) == 5
    flip(folder, first)
    assert quick(folder, tmp_path / "third", reasons) == "step-00000030"
    assert reasons[-1] == "no ledger in the mirror verifies; a new one begins"
    assert not (tmp_path / "third" / "ledger.jsonl").exists()
    third = Run.__new__(Run)
    third.path, third.ledger = tmp_path / "third", LedgerFile.open(tmp_path / "third" / "ledger.jsonl")
    third.ledger.append({"kind": "start"})
    assert mirrored(folder, third, third.commit(40))[0].startswith(
        "mirrored"
    )  # it has a commit in common with the mirror


def test_a_damaged_local_ledger_does_not_spoil_the_mirror(folder, run, tmp_path):
    mirrored(folder, run, run.commit(10))
    path = run.path / "ledger.jsonl"
    name = run.commit(20)
    lines = path.read_bytes().splitlines(keepends=True)
    lines[7] = lines[7].replace(b"20", b"21")
    path.write_bytes(b"".join(lines))
    notes = mirrored(folder, run, name)
    assert "does not follow from the one before; later records are not uploaded" in notes[0]
    assert notes[1].startswith("mirrored")
    assert quick(folder, tmp_path / "other") == name
    assert (tmp_path / "other" / "ledger.jsonl").read_bytes() == b"".join(lines[:7])


def test_a_ledger_with_other_records_stays(folder, run, tmp_path):
    mirrored(folder, run, run.commit(10))
    other = Run(tmp_path / "other")
    other.ledger.append({"kind": "start", "other": True})
    before = (other.path / "ledger.jsonl").read_bytes()
    reasons = []
    assert quick(folder, other.path, reasons) == "step-00000010"
    assert "stays as it is" in reasons[0]
    assert (other.path / "ledger.jsonl").read_bytes() == before


def test_fetching_twice_and_over_a_damaged_commit(folder, run, tmp_path):
    name = run.commit(10)
    mirrored(folder, run, name)
    quick(folder, tmp_path / "other")
    (tmp_path / "other" / "checkpoints" / name / "values-00000.json").write_text("{}")
    assert quick(folder, tmp_path / "other") == name
    assert tree(tmp_path / "other") == tree(run.path)


def test_another_runs_mirror_is_left_alone(folder, run, tmp_path):
    mirrored(folder, run, run.commit(10), run.commit(20), run.commit(30))
    before = keys(folder)
    other = Run(tmp_path / "other")
    other.ledger.append({"kind": "start", "other": True})
    (note,) = mirrored(folder, other, other.commit(5))
    assert "the URL holds commits of another run" in note
    assert keys(folder) == before


HOSTILE = [
    "checkpoints/step-00000099/../../escaped",
    "checkpoints/step-99/MANIFEST.json",
    "checkpoints/step-０００００0９９/MANIFEST.json",
    "checkpoints/latest/MANIFEST.json",
    "checkpoints/step-00000010/.hidden",
    "checkpoints/step-00000010/code.py",
    "checkpoints/step-00000010/sub/values-00000.json",
    "ledger/passwd",
    f"ledger/{'0' * 16}/{0:016d}-{10:016d}-{'0' * 16}-{'f' * 16}.jsonl",
    "MANIFEST.json",
]


def test_hostile_names_are_ignored(url, run, tmp_path):
    name = run.commit(10)
    mirrored(url, run, name)
    ours = set(keys(url))
    for key in HOSTILE:
        with contextlib.suppress(ValueError, obstore.exceptions.BaseError):  # no store takes `..`
            obstore.put(store_of(url), key, b"hostile!!!")
    hostile = set(keys(url)) - ours
    assert len(hostile) >= len(HOSTILE) - 1
    other = tmp_path / "deep" / "other"
    assert quick(url, other) == name
    assert tree(tmp_path / "deep") == {f"other/{file}": data for file, data in tree(run.path).items()}
    mirrored(url, run, run.commit(20), run.commit(30), run.commit(40, keep=1))
    assert hostile <= set(keys(url))
    assert not any(key.startswith("checkpoints/step-00000020/") for key in keys(url))


@pytest.mark.parametrize(
    ("manifest", "reason"),
    [
        ({"step": 99, "files": {"../../ledger.jsonl": {"size": 2, "sha256": "0" * 64}}}, "names '../../ledger.jsonl'"),
        ({"step": 99, "files": {"values-00000.json": {"size": 1 << 50, "sha256": "0" * 64}}}, "has 2 bytes instead of"),
        ({"step": 99, "files": {"values-00000.json": {"size": -1, "sha256": "0" * 64}}}, "another form"),
        ({"step": 98, "files": {"values-00000.json": {"size": 2, "sha256": "0" * 64}}}, "of step 98"),
        ({"step": 99, "files": {}}, "another form"),
        ({"step": {}, "files": {}}, "another form"),
        ({"files": []}, "another form"),
        ([], "another form"),
    ],
)
def test_hostile_manifests_are_passed_over(s3, run, tmp_path, manifest, reason):
    mirrored(s3, run, run.commit(10))
    obstore.put(store_of(s3), "checkpoints/step-00000099/values-00000.json", b"{}")
    obstore.put(store_of(s3), "checkpoints/step-00000099/MANIFEST.json", sealed(manifest))
    reasons = []
    assert quick(s3, tmp_path / "other", reasons) == "step-00000010"
    assert len(reasons) == 1
    assert reason in reasons[0]


@pytest.mark.parametrize(
    "url",
    [
        "",
        "bucket/path",
        "http://host/path",
        "s3://",
        "file://",
        "file:///",
        "file://host/x",
        "memory:///",
        "s3://a:b@bucket/x",
        "s3://bucket/x?key=1",
    ],
)
def test_a_url_that_cannot_be_meant_is_78(url, tmp_path):
    for call in (lambda: Mirror(url, tmp_path), lambda: fetch(url, tmp_path)):
        with pytest.raises(Failure) as caught:
            call()
        assert caught.value.outcome.code == Exit.BAD_RECIPE
        assert "a:b" not in str(caught.value)


def test_without_obstore_it_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(Failure) as caught:
        Mirror("s3://bucket/x", tmp_path)
    assert caught.value.outcome.code == Exit.BAD_RECIPE
    assert "drivetrain[mirror]" in caught.value.outcome.hint


def test_secrets_and_queries_are_cut_out_of_errors(monkeypatch):
    monkeypatch.setenv("AZURE_STORAGE_SAS_TOKEN", "sv=2026&sig=abcdef")
    error = OSError("GET https://x/y?sig=123 with sv=2026&sig=abcdef\nDebug source:\nmore")
    assert error_without_secrets(error) == "GET https://x/y?... with ***"


# Commits in parts: each rank uploads what it wrote, the manifest comes last.


def in_parts(run, step, world=3):
    """A commit that so many ranks have written."""
    run.ledger.append({"kind": "made", "step": step, "number": 0})
    (made,) = save_in_parts(run.path, step, world=world)
    assert isinstance(made, Commit), made
    return made.name


def ranks_of(url, run, world, **options):
    return [Mirror(url, run.path, place=(rank, world), **options) for rank in range(world)]


def pushed(mirrors, *names):
    """What each rank's mirror noted that got these commits."""
    for name in names:
        for mirror in mirrors:
            mirror.push(name)
    for mirror in reversed(mirrors):
        mirror.close(60)
    return [mirror.notes() for mirror in mirrors]


@pytest.fixture
def _soon(monkeypatch):
    monkeypatch.setattr(mirrored_commit, "_TURN", 0.01)


@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.usefixtures("_soon")
def test_each_rank_uploads_its_files_and_another_machine_fetches_the_whole(url, run, tmp_path, world):
    """Also where other ranks than those that wrote it go on from it."""
    name = in_parts(run, 10)
    notes = pushed(ranks_of(url, run, world), name)
    assert [len(note) for note in notes] == [1] * world
    assert all(note[0].startswith(f"mirrored {name}") for note in notes)
    local = {f"checkpoints/{name}/{path.name}" for path in (run.path / "checkpoints" / name).iterdir()}
    assert {key for key in keys(url) if key.startswith("checkpoints")} == local
    assert quick(url, tmp_path / "other") == name
    same(newest(tmp_path / "other").state.tensors, state(10.0).tensors)
    pushed(ranks_of(url, run, world), name)  # it is there: nobody waits
    assert {key for key in keys(url) if key.startswith("checkpoints")} == local


@pytest.mark.usefixtures("_soon")
def test_the_manifest_comes_after_the_files_of_all(folder, run, tmp_path, monkeypatch):
    name = in_parts(run, 10)
    order, put, put_file = [], store.ObjectStore.put, store.ObjectStore.put_file

    def slow(self, key, *more):
        if "00002" in key:
            wait_until(lambda: len(order) >= 6, 20)  # all but this rank's, and the other rank's mark
        put_file(self, key, *more)
        order.append(key.rpartition("/")[2])

    def noted(self, key, content):
        if key.startswith("checkpoints"):
            order.append(key.rpartition("/")[2])
        put(self, key, content)

    monkeypatch.setattr(store.ObjectStore, "put_file", slow)
    monkeypatch.setattr(store.ObjectStore, "put", noted)
    pushed(ranks_of(folder, run, 3), name)
    assert order[-1] == "MANIFEST.json"
    assert order[-2].startswith("part-00002-")
    assert len(order) == 10


def test_without_the_files_of_one_rank_there_is_no_commit_in_the_mirror_but_a_note(folder, run, tmp_path):
    names = [in_parts(run, step) for step in (10, 20)]
    first, second, third = ranks_of(folder, run, 3, sleep=lambda seconds: None)
    pushed([second], names[0])
    (notes,) = pushed([first], names[0])
    expected = "other ranks have not uploaded their files in 600 s, tried again with the next commit"
    assert notes == [f"mirror: cannot upload {names[0]}: {expected}"]
    assert quick(folder, tmp_path / "other") is None
    pushed([third, Mirror(folder, run.path, place=(1, 3))], names[1])
    again = Mirror(folder, run.path, sleep=lambda seconds: None, place=(0, 3))
    assert pushed([again], names[0])[0][0].startswith(f"mirror: cannot upload {names[0]}: other ranks have gone on to")
    assert pushed([Mirror(folder, run.path, place=(0, 3))], names[1])[0][0].startswith(f"mirrored {names[1]}")
    assert quick(folder, tmp_path / "other") == names[1]


def test_what_is_left_of_an_earlier_upload_of_the_step_stands_for_nothing(folder, run, tmp_path):
    name = in_parts(run, 10, world=2)
    pushed([Mirror(folder, run.path, place=(1, 2))], name)
    shutil.rmtree(run.path / "checkpoints" / name)
    in_parts(run, 10, world=2)  # of the same sizes, and another manifest: the time is in it
    mirrors = ranks_of(folder, run, 2, sleep=lambda seconds: None)
    assert "have not uploaded" in pushed(mirrors[:1], name)[0][0]
    pushed(mirrors[1:], name)
    assert pushed([Mirror(folder, run.path, place=(0, 2))], name)[0][0].startswith("mirrored")
    assert quick(folder, tmp_path / "other") == name


def test_a_mirror_of_another_run_is_left_alone_by_every_rank(folder, run, tmp_path):
    other = Run(tmp_path / "another")
    mirrored(folder, other, other.commit(99))
    before = keys(folder)
    name = in_parts(run, 10)
    for notes in pushed(ranks_of(folder, run, 3), name):
        assert "the URL holds commits of another run" in notes[0]
    assert keys(folder) == before


def test_a_rank_does_not_wait_for_ever_for_a_commit_that_was_not_made(folder, run):
    waits = []
    (notes,) = pushed([Mirror(folder, run.path, place=(1, 2), sleep=waits.append)], "step-00000010")
    assert notes == ["mirror: cannot upload step-00000010: it was not made, tried again with the next commit"]
    assert len(waits) == 600


def test_a_newer_format_in_the_mirror_is_76_and_no_older_commit_is_taken(folder, run, tmp_path):
    names = [run.commit(step) for step in (10, 20)]
    mirrored(folder, run, *names)
    key = f"checkpoints/{names[1]}/MANIFEST.json"
    obstore.put(store_of(folder), key, sealed({"step": 20, "format": 3}))
    with pytest.raises(Failure, match=f"{names[1]} in the mirror is a commit of format 3") as caught:
        quick(folder, tmp_path / "other")
    assert caught.value.outcome.code == Exit.INCOMPATIBLE
    assert os.listdir(tmp_path / "other" / "checkpoints") == []
