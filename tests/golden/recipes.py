"""The recipes of golden runs, as plain data. Paths are relative to the folder that a run is started in."""

from __future__ import annotations

from pathlib import Path

Recipe = dict[str, object]

ROWS = {"train": {"sources": [{"kind": "golden.tasks:Rows"}]}, "validation": {"rows": {"kind": "golden.tasks:Rows"}}}
LLAMA = {"kind": "llama", "width": 16, "depth": 1, "heads": 2, "context": 16, "dropout": 0.1}
LAUNCH = {"threads": 1, "hang_after": None}
"""A busy machine is no hang."""


def write_text(folder: Path) -> None:
    """Eight small files under `text`, the same on every machine."""
    (folder / "text").mkdir()
    for number in range(8):
        lines = (f"line {n}: the quick brown fox jumps over the lazy dog {n * n % 97}\n" for n in range(100))
        (folder / "text" / f"{number}.txt").write_text("".join(lines)[number * 99 :])


def rows(name: str, task: Recipe, **changes: object) -> Recipe:
    """A recipe on noise: 24 steps, a commit in the middle and at the end."""
    return {
        "name": name,
        "device": "cpu",
        "task": task,
        "data": ROWS,
        "lanes": 4,
        "batch": {"size": 8, "micro": 2},
        "budget": {"steps": 24},
        "optimizer": {"kind": "adamw", "lr": 0.01, "clip": 1.0},
        "checkpoint": {"every": {"steps": 10}, "blocking": True},
        "evaluate": {"every": {"steps": 12}, "batch": 64},
        "launch": LAUNCH,
    } | changes


def text(name: str, **changes: object) -> Recipe:
    """A recipe for a tiny language model on `text`."""
    data = {
        "train": {"sources": [{"name": "text", "kind": "text", "path": "text"}]},
        "validation": {"last": {"kind": "text", "path": "text/7.txt"}},
    }
    schedule = {"kind": "cosine", "warmup": {"steps": 2}}
    return rows(name, {"kind": "language_model", "model": LLAMA}, data=data, schedule=schedule) | changes


def quickstart() -> Recipe:
    """The shipped recipe, shortened, on a text that is not this Python's library."""
    part = {"kind": "text", "path": "text", "holdout": 0.2}
    return {
        "base": "quickstart",
        "name": "quickstart",
        "device": "cpu",
        "task": {"model": {"width": 32, "depth": 2, "context": 32}, "sample": {"tokens": 40}},
        "data": {
            "train": {"sources": [part | {"name": "stdlib", "part": "train"}]},
            "validation": {"stdlib": part | {"part": "validation"}},
        },
        "budget": {"steps": 24},
        "schedule": {"warmup": {"steps": 4}},
        "evaluate": {"every": {"steps": 12}},
        "checkpoint": {"every": {"steps": 12}},
        "launch": LAUNCH,
    }


def blend() -> Recipe:
    """Two sources with weights that change in step 12, and a batch that doubles on the way."""
    sources = [
        {"name": "dogs", "kind": "text", "path": "text/0.txt", "weight": 3},
        {"name": "foxes", "kind": "text", "path": "text/1.txt", "weight": 1},
    ]
    train = {"sources": sources, "stages": [{"from": {"steps": 12}, "weights": {"dogs": 1, "foxes": 1}}]}
    batch = {"size": 8, "micro": 2, "ramp": [{"from": {"samples": 64}, "size": 16}]}
    return text("blend", batch=batch, data={"train": train, "validation": text("")["data"]["validation"]})


def galore() -> Recipe:
    """Low-rank gradients with several refreshes of each basis."""
    optimizer = {"kind": "galore", "lr": 0.01, "rank": 4, "gap": 7, "moments": "rotate", "clip": 1.0}
    return text("galore", optimizer=optimizer)


def guard() -> Recipe:
    """Two samples of no finite loss: the run goes back and leaves them out."""
    settings = {"nonfinite": "rollback", "rollback": {"back": 3, "every": 2}}
    return rows("guard", {"kind": "golden.tasks:Fit", "nan": [17, 101]}, guard=settings)


def duel() -> Recipe:
    """Two networks against each other, each with its own optimizer; averages, statistics, and a test set at the end."""
    optimizer = {
        "generator": {"kind": "adamw", "lr": 0.002, "betas": [0.8, 0.99], "clip": 0.035},
        "judge": {"kind": "sgd", "lr": 0.01, "momentum": 0.9},
    }
    more = {"average": {"decay": 0.9}, "statistics": {"every": {"steps": 12}}}
    data = ROWS | {"test": {"more": {"kind": "golden.tasks:Rows", "first": 2000}}}
    return rows("gan", {"kind": "golden.tasks:Duel"}, optimizer=optimizer, data=data, **more)


def exact(processes: int) -> Recipe:
    """The tiny language model to bits that no number of processes changes."""
    return text(f"exact-{processes}", exact=True, launch=LAUNCH | {"processes": processes})


def killed() -> Recipe:
    """One of two processes dies at the beginning of step 15; no commit is due near it."""
    task = {"kind": "golden.tasks:Dying", "at": 15, "died": "died"}
    return rows("killed", task, launch=LAUNCH | {"processes": 2})


def told(steps: list[int], folder: str) -> Recipe:
    """Two sources, and steps in which the run waits to be told something."""
    sources = [
        {"name": "a", "kind": "golden.tasks:Rows"},
        {"name": "b", "kind": "golden.tasks:Rows", "first": 1000},
    ]
    data = {"train": {"sources": sources}, "validation": ROWS["validation"]}
    task = {"kind": "golden.tasks:Waiting", "steps": steps, "folder": folder}
    return rows("told", task, data=data, launch=LAUNCH | {"processes": 2})
