"""Records of a ledger, as the loop writes them, for tests of what reads them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from drivetrain.ledger import records
from drivetrain.ledger.ledger import chain, read

Record = dict[str, Any]


def of_kind(run: Path, kind: str) -> list[records.Record]:
    """The records of a kind in a run's ledger, in order."""
    return [record for record in read(run / "ledger.jsonl") if record.kind == kind]


def attempt(number: int = 1, begin: int = 0, at: float = 10.0, steps: int = 4) -> Record:
    """The start of an attempt; its command was given a second before."""
    return {
        "kind": "attempt",
        "time": at,
        "attempt": number,
        "from_step": begin,
        "from_position": 8 * begin,
        "world": 2,
        "claim": {"class": "same-world", "key": "k"},
        "host": "here",
        "device": "cpu",
        "started": at - 1,
        "startup": {"import": 1.0},
        "overrides": [],
        "budget": {"samples": 8 * steps, "steps": steps},
        "tokens_per_sample": 100,
        "parameters": {"model": 12345},
        "recipe": "r",
        "settings": "s",
        "data": {},
        "environment": {},
        "order": {"sizes": [32], "seed": 0, "shuffle": True},
        "quarantine": [],
        "batch": {"size": 8, "ramp": []},
        "lanes": 2,
        "sources": {"cats": 32},
        "epoch": number,
        "after": None,
        "survivors": False,
        "replay": None,
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


def statistics(number: int) -> Record:
    """Norms of one network, and histograms of two bins."""
    one = {"low": -1.0, "high": 3.0, "counts": [5, 7]}
    return {
        "kind": "statistics",
        "time": 20.0,
        "attempt": 1,
        "step": number,
        "networks": {"model": {"weights": 2.5, "change": 0.1}},
        "histograms": {"model": {"weights": one}},
    }


def training(number: int, auc: float = 0.7) -> Record:
    """The samples of a step, scored before it."""
    return {
        "kind": "training",
        "time": 20.0,
        "attempt": 1,
        "step": number,
        "position": 8 * number - 8,
        "seconds": 0.1,
        "metrics": {"auc": auc, "loss": "nan"},
        "means": {"auc": 0.65},
    }


def evaluation(number: int, value: float = 1.5, name: str = "dogs", metric: str = "bits") -> Record:
    """Half a second of scoring one validation set."""
    return {
        "kind": "evaluation",
        "time": 20.0,
        "attempt": 1,
        "step": number,
        "position": 8 * number,
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


def commit(number: int, at: float, seconds: float = 0.5) -> Record:
    """A commit for which training waited half a second."""
    return {
        "kind": "commit",
        "time": at,
        "attempt": 1,
        "step": number,
        "position": 8 * number,
        "name": f"step-{number:08d}",
        "seconds": seconds,
        "waited": 0.0,
        "writing": 0.1,
        "bytes": 1000,
        "held": {},
        "manifest": "0" * 64,
        "removed": [],
        "coverage": {},
    }


def parsed(told: Iterable[Record]) -> list[records.Record]:
    """Records as what reads a ledger is given them."""
    return [records.parse(record) for record in told]


def ended(code: int, cause: str, at: float = 30.0) -> Record:
    """The last record of an attempt."""
    return {
        "kind": "exit",
        "time": at,
        "attempt": 1,
        "code": code,
        "cause": cause,
        "step": 4,
        "position": 32,
        "seconds": {},
    }


def rechained(lines: list[bytes]) -> bytes:
    """Records with a chain that fits them, as someone who knows the format would write."""
    done, tail = b"", ""
    for line in lines:
        # The bytes of one that was not touched stay: commits name the hashes of those before them.
        body, untouched, _ = line.rpartition(b',"chain":"')
        if not untouched:
            record = json.loads(line)
            record.pop("chain")
            body = json.dumps(record, separators=(",", ":"))[:-1].encode()
        tail = chain(tail, body)
        done += body + f',"chain":"{tail}"}}\n'.encode()
    return done


def _item(record: Any, name: str) -> Any:
    """A member of a record's line."""
    return record.to_json()[name]


def _has(record: Any, name: str) -> bool:
    return name in record.to_json()


def _get(record: Any, name: str, default: Any = None) -> Any:
    return record.to_json().get(name, default)


# Tests look at records as lines of JSON, whatever their kind, as people's own readers do.
for _kind in (records.RecordBase, records.UnknownRecord):
    _kind.__getitem__ = _item  # type: ignore[attr-defined]
    _kind.__contains__ = _has  # type: ignore[attr-defined]
    _kind.get = _get  # type: ignore[attr-defined]
