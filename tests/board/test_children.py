import asyncio
import os
import time

import pytest

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

    asyncio.run(closed())
