"""What a run must not show, and where it must not listen."""

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from processes import family

CANARY = "canary-7f3a9c"
ANY = ("0" * 8, "0" * 32)  # every address, IPv4 and IPv6, as /proc tells them
LOCAL = ("0100007F", "00000000000000000000000001000000", "0000000000000000FFFF00000100007F")


@pytest.fixture
def command(tiny, tmp_path):
    """A run on two processes, as a user starts it."""
    path = tmp_path / "recipe.json"
    path.write_text(json.dumps(tiny | {"watch": {"tensorboard": True}, "budget": {"steps": 40}}))
    return [sys.executable, "-m", "drivetrain", "train", str(path), "--run", str(tmp_path / "run"), "--processes", "2"]


def test_x14_a_secret_of_the_environment_is_in_no_file_and_not_on_the_screen(command, tmp_path):
    secrets = dict.fromkeys(("WANDB_API_KEY", "HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "MY_PASSWORD"), CANARY)
    done = subprocess.run(command, env=os.environ | secrets, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert CANARY not in done.stdout + done.stderr
    files = [path for path in (tmp_path / "run").rglob("*") if path.is_file()]
    assert len(files) > 10
    assert [str(path) for path in files if CANARY.encode() in path.read_bytes()] == []


def test_x10_all_that_listens_while_a_run_trains_listens_on_this_machine_alone(command):
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    seen: set[str] = set()
    ended = threading.Event()
    watching = threading.Thread(target=lambda: [seen.update(listening(process.pid)) for _ in until(ended)])
    watching.start()
    assert process.wait() == 0
    ended.set()
    watching.join()
    assert seen, "the two processes speak to each other"
    assert seen <= set(LOCAL)


def until(ended):
    while not ended.is_set():
        yield time.sleep(0.02)


def test_listening_finds_what_listens():
    code = "import socket, time; s = socket.create_server(('', 0)); print('up', flush=True); time.sleep(30)"
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    try:
        process.stdout.readline()
        assert set(listening(process.pid)) & set(ANY)
    finally:
        process.kill()
        process.wait()


def listening(pid: int):
    """Addresses on which a process or one below it listens, in the kernel's notation."""
    sockets = set()
    for each in family(pid):
        try:
            links = [os.readlink(path) for path in Path(f"/proc/{each}/fd").iterdir()]
        except OSError:
            continue
        sockets |= {link[8:-1] for link in links if link.startswith("socket:")}
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in sockets:
                yield fields[1].partition(":")[0]
