"""Records of a ledger, as the loop writes them, for tests of what reads them."""

from __future__ import annotations

import json
from typing import Any

from drivetrain.ledger.ledger import chain

Record = dict[str, Any]


def attempt(number: int = 1, begin: int = 0, at: float = 10.0, steps: int = 4) -> Record:
    """The start of an attempt; its command was given a second before."""
    return {
        "kind": "attempt",
        "time": at,
        "attempt": number,
        "from_step": begin,
        "world": 2,
        "started": at - 1,
        "startup": {"import": 1.0},
        "budget": {"steps": steps, "samples": 8 * steps},
        "parameters": {"model": 12345},
    }


def step(number: int, at: float = 11.0, loss: float | str = 2.5, **other: Any) -> Record:
    """A step of a second: 8 samples, 800 tokens."""
    return {
        "kind": "step",
        "time": at + number,
        "attempt": 1,
        "step": number,
        "start": 8 * number - 8,
        "stop": 8 * number,
        "samples": "0" * 16,
        "losses": {"loss": loss},
        "counts": {"samples": 8, "tokens": 800},
        "norm": {"model": 1.0},
        "lr": {"model": 0.001},
        "seconds": 0.9,
        "wait": 0.1,
    } | other


def evaluation(number: int, value: float = 1.5, name: str = "dogs", metric: str = "bits") -> Record:
    """Half a second of scoring one validation set."""
    return {
        "kind": "evaluation",
        "time": 20.0,
        "step": number,
        "seconds": 0.5,
        "metrics": {name: {metric: value}},
        "counts": {name: 9},
    }


def rollback(number: int, to: int, at: float = 20.0, attempt: int = 1) -> Record:
    """A step that was undone in a tenth of a second, for two samples."""
    return {
        "kind": "rollback",
        "time": at,
        "attempt": attempt,
        "step": number,
        "to": to,
        "why": "not finite while model moved: loss loss nan; gradient norm model nan",
        "samples": [4, 9],
        "seconds": 0.1,
    }


def ended(code: int, cause: str, at: float = 30.0) -> Record:
    """The last record of an attempt."""
    return {"kind": "exit", "time": at, "code": code, "cause": cause, "step": 4, "position": 32, "seconds": {}}


def rechained(lines: list[bytes]) -> bytes:
    """Records with a chain that fits them, as someone who knows the format would write."""
    done, tail = b"", ""
    for line in lines:
        record = json.loads(line)
        record.pop("chain")
        body = json.dumps(record, separators=(",", ":"))[:-1].encode()
        tail = chain(tail, body)
        done += body + f',"chain":"{tail}"}}\n'.encode()
    return done
