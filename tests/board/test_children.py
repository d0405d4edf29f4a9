import asyncio
import os
import resource
import time
from pathlib import Path

import pytest

from drivetrain.board import children as module
from drivetrain.board.children import Children
from drivetrain.spec.exits import Exit, Failure


def test_a_command_answers_with_what_it_prints():
    assert "quickstart" in asyncio.run(_asked("recipe", "list"))


async def _asked(*words, **limits):
    return await Children().ask(*words, **limits)


def test_what_it_refuses_is_said_with_its_code(tmp_path):
    with pytest.raises(Failure) as found:
        asyncio.run(_asked("report", str(tmp_path / "none")))
    assert found.value.outcome.code == Exit.INPUT_MISSING
    assert "no ledger" in found.value.outcome.cause


def test_one_that_takes_too_long_is_ended_and_said(tmp_path):
    os.mkfifo(tmp_path / "ledger.jsonl")  # whoever opens it waits for a writer
    began = time.monotonic()
    with pytest.raises(Failure) as found:
        asyncio.run(_asked("report", str(tmp_path), seconds=1.5))
    assert found.value.outcome.code == Exit.PEER_UNAVAILABLE
    assert time.monotonic() - began < 20


def test_none_is_left_when_the_board_closes(tmp_path):
    os.mkfifo(tmp_path / "ledger.jsonl")

    async def closed():
        children = Children()
        asking = asyncio.ensure_future(children.ask("report", str(tmp_path)))
        while not children._running:
            await asyncio.sleep(0.01)
        (child,) = children._running
        await children.close()
        assert child.returncode is not None
        with pytest.raises(Failure):
            await asking
        with pytest.raises(Failure) as found:
            await children.ask("recipe", "list")
        assert found.value.outcome.code == Exit.PEER_UNAVAILABLE

    asyncio.run(closed())


@pytest.fixture
def command(monkeypatch):
    """Have a few lines of Python stand for the command line."""

    def stand(code):
        monkeypatch.setattr(module, "_COMMAND", code)

    return stand


WHERE = """
import json, os, resource
from pathlib import Path
nice, score = os.nice(0), Path("/proc/self/oom_score_adj")
for _ in range(100):  # the board puts it there while it starts
    if score.read_text() == "1000\\n":
        break
    __import__("time").sleep(0.02)
told = [os.nice(0), resource.getrlimit(resource.RLIMIT_DATA)[0], int(score.read_text()), os.getsid(0) == os.getpid()]
print(json.dumps(told))
"""


def test_a_child_stands_behind_every_run(command):
    command(WHERE)
    nice = min(19, os.nice(0) + 10)
    assert asyncio.run(_asked("verify")) == [nice, 8 << 30, 1000, True]


def test_what_starts_a_run_has_the_place_of_the_board(command):
    command(WHERE.replace("range(100)", "range(10)"))
    score = int(Path("/proc/self/oom_score_adj").read_text())
    assert asyncio.run(_asked("requeue", "a")) == [os.nice(0), resource.getrlimit(resource.RLIMIT_DATA)[0], score, True]


def test_one_that_takes_too_much_memory_ends_by_itself(command, monkeypatch):
    monkeypatch.setattr(module, "_MEMORY", 200 << 20)
    command("import time; time.sleep(0.5); kept = bytearray(400 << 20)")
    with pytest.raises(Failure):
        asyncio.run(_asked("verify"))


def test_what_a_child_has_started_goes_with_it(command):
    command("import subprocess as s; print(s.Popen(['sleep', '60'], stdout=s.DEVNULL, stderr=s.DEVNULL).pid)")
    pid = asyncio.run(_asked("verify"))
    end = time.monotonic() + 5
    while _lives(pid) and time.monotonic() < end:
        time.sleep(0.02)
    assert not _lives(pid)


def _lives(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_one_that_does_not_heed_is_killed(command, monkeypatch):
    monkeypatch.setattr(module, "_GRACE", 0.3)
    command("import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(60)")
    began = time.monotonic()
    with pytest.raises(Failure) as found:
        asyncio.run(_asked("verify", seconds=0.5))
    assert found.value.outcome.code == Exit.PEER_UNAVAILABLE
    assert time.monotonic() - began < 5


def test_more_than_is_kept_is_said_and_of_lines_the_newest_are_kept(command, monkeypatch):
    monkeypatch.setattr(module, "_OUTPUT", 1000)
    command("for number in range(10_000): print(number)")
    with pytest.raises(Failure, match="printed more"):
        asyncio.run(_asked("logs"))
    lines = asyncio.run(Children().lines("logs"))
    assert lines == list(range(10_000 - len(lines), 10_000))
    assert len(lines) > 150


def test_a_long_one_leaves_a_place_to_a_short_one(command):
    command("import sys, time; time.sleep(60 * (sys.argv[1] == 'verify')); print(1)")

    async def asked():
        children = Children()
        long = [asyncio.ensure_future(children.ask("verify", seconds=1800)) for _ in range(3)]
        await asyncio.sleep(0)
        assert await asyncio.wait_for(children.ask("jobs"), 30) == 1
        await children.close()
        ended = await asyncio.gather(*long, return_exceptions=True)
        assert [type(one) for one in ended] == [Failure] * 3

    asyncio.run(asked())


def test_no_secret_of_the_environment_is_in_what_is_said(command, monkeypatch):
    monkeypatch.setenv("HUB_TOKEN", "hf_abcdef")
    command("import sys; sys.exit(print('drivetrain: 69 no answer with hf_abcdef', file=sys.stderr) or 69)")
    with pytest.raises(Failure) as found:
        asyncio.run(_asked("jobs"))
    assert found.value.outcome.code == Exit.PEER_UNAVAILABLE
    assert found.value.outcome.cause == "no answer with ***"


@pytest.mark.parametrize(
    "code", ["print('no')", "print('[' * 100_000)", "", "import sys; sys.exit(3)", "import os; os.abort()"]
)
def test_what_is_no_answer_is_a_failure(command, code):
    command(code)
    with pytest.raises(Failure):
        asyncio.run(_asked("jobs"))


def test_nothing_of_the_folder_that_a_board_stands_in_is_run(tmp_path, monkeypatch):
    for name in ("json.py", "pkgutil.py", "random.py"):
        (tmp_path / name).write_text("raise SystemExit(99)")
    (tmp_path / "drivetrain").mkdir()
    (tmp_path / "drivetrain" / "__init__.py").write_text("raise SystemExit(99)")
    monkeypatch.chdir(tmp_path)
    assert "quickstart" in asyncio.run(_asked("recipe", "list"))
