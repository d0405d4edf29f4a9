"""What of a run is kept and compared: one small JSON document. What is left out is listed here, and nowhere else."""

from __future__ import annotations

import json
import platform
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Json = Any
EXPECTED = Path(__file__).parent / "expected"
MOST = 20
"""Differences that are shown of one run."""
_DEPTH = 4
"""Records are so deep in a document."""

LEFT_OUT: Mapping[str, str] = {
    "time": "when it was",
    "started": "when it was",
    "startup": "how long it took",
    "seconds": "how long it took",
    "wait": "how long it took",
    "waited": "how long it took",
    "writing": "how long it took",
    "phases": "how long it took",
    "own_seconds": "how long it took, and which rank was the slowest",
    "host": "the machine's name; in telemetry: its memory",
    "device": "the device's name; in telemetry: its memory",
    "host_peak": "memory",
    "device_peak": "memory",
    "environment.code": "changes with every line of the source",
    "environment.drivetrain": "the version",
    "environment.python": "decides no bit",
    "environment.numpy": "decides no bit",
    "environment.platform": "decides no bit",
    "environment.cores": "decides no bit: the number of threads is fixed",
    "environment.git": "the commit of the source",
    "chain": "a hash over records with times",
    "manifest": "a hash over a manifest with a time and the ledger's hash",
    "noticed": "when it was",
    "after.phase": "where the processes were when the first of them died: left to time for those that survived it",
    "ledger": "in manifests and in replay.json: the ledger's hash",
}
"""Members of records and other JSON files whose values are not compared, wherever they stand, and why. `a.b` is b in a.
That they are there is compared, and what members they have themselves."""

SINCE: Mapping[str, str] = {
    "user_code": "the digest of the user's own code, in attempts and manifests",
    "claim.code": "the same in claims",
    "startup.find": "the part of a start in which the newest commit is found",
    "records.resident": "in attempts: the first process's memory before it builds networks",
    "commits.written": "in commits: bytes of the first rank's tensors",
}
"""Members that records have and those of 7e89af7 did not: they are passed over, so that the expected documents stay the
ones that it has made."""
_SINCE_FOLDER = "code"
"""Where sources of user code are kept, since then too."""

WORDS: Mapping[str, str] = {r"lost a peer: .*": "lost a peer: ..."}
"""Parts of texts that are put otherwise: gloo's words for a lost peer have a port."""

BITS: Mapping[str, str] = {
    "environment": "another one",
    "key": "claim.key: a digest over the environment",
    "losses": "numbers",
    "norm": "numbers",
    "metrics": "numbers",
    "networks": "numbers: statistics of weights and gradients",
    "text": "what a network has written, or a note that tells numbers",
    "why": "tells numbers",
    "files": "SHA-256 and sizes",
    "bytes": "files that hold numbers as text",
}
"""Members that are compared only where the environment is the one of the recording, and why."""


def environment() -> dict[str, str]:
    """What bits depend on beside the recipe; runs train with one thread."""
    import torch

    return {
        "torch": torch.__version__,
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "processor": _processor(),
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")


def recorded(folder: Path, runs: Sequence[str], codes: Sequence[int]) -> Json:
    """The document of a golden run that was made in this folder."""
    found = {run: _of_run(folder / run) for run in runs}
    document = {"environment": environment(), "codes": list(codes), "runs": found}
    return json.loads(json.dumps(document).replace(str(folder), "."))


def keep(name: str, document: Json) -> None:
    """Make a document the expected one."""
    (EXPECTED / f"{name}.json").write_text(_lines(document, "") + "\n")


@dataclass(frozen=True)
class Verdict:
    """What of a run is not as it is kept, and the differences of the environment for which bits were not compared."""

    differences: tuple[str, ...]
    elsewhere: tuple[str, ...]

    def __str__(self) -> str:
        """A line, and one more for each difference."""
        bits = f" (no bits were compared: {'; '.join(self.elsewhere)})" if self.elsewhere else ""
        if not self.differences:
            return f"equal{bits}"
        return "\n  ".join([f"{len(self.differences)} differences{bits}", *self.differences[:MOST]])


def verdict(name: str, document: Json) -> Verdict:
    """A document beside the expected one: every bit where the environment is the same, else all but the bits."""
    expected = json.loads((EXPECTED / f"{name}.json").read_text())
    elsewhere = tuple(_unequal(expected["environment"], document["environment"]))
    if elsewhere:
        expected, document = _without_bits(expected), _without_bits(document)
    return Verdict(tuple(_unequal(expected, document)), elsewhere)


def _unequal(expected: Json, found: Json, path: str = "") -> Iterator[str]:
    """Each place where two documents differ, with both values."""
    if isinstance(expected, dict) and isinstance(found, dict):
        for key in [*expected, *(key for key in found if key not in expected)]:
            yield from _unequal(expected.get(key, "(absent)"), found.get(key, "(absent)"), f"{path}.{key}")
        if set(expected) == set(found) and list(expected) != list(found):
            yield f"{path.removeprefix('.')}: its members are in another order"
    elif isinstance(expected, list) and isinstance(found, list) and len(expected) == len(found):
        for index, (one, other) in enumerate(zip(expected, found, strict=True)):
            yield from _unequal(one, other, f"{path}[{index}]")
    elif expected != found:
        yield f"{path.removeprefix('.')}: {_short(expected)} -> {_short(found)}"


def _of_run(run: Path) -> Json:
    """Commits are written beside training, so where a record of one stands among the others is left to time."""
    records = [json.loads(line) for line in (run / "ledger.jsonl").read_text().splitlines()]
    commits = [record for record in records if record["kind"] == "commit"]
    others = [record for record in records if record["kind"] != "commit"]
    final = max((run / "checkpoints").glob("step-*"))
    document = {
        "names": sorted(_names(run)),
        "exit": json.loads((run / "exit.json").read_text()),
        "manifest of the last": json.loads((final / "MANIFEST.json").read_text().splitlines()[0]),
        "records": others,
        "commits": commits,
    }
    replay = run / "replay.json"
    if replay.exists():
        document["replay"] = json.loads(replay.read_text())
    return _masked(document)


def _names(run: Path) -> Iterator[str]:
    for path in run.rglob("*"):
        name = path.relative_to(run)
        if name.parts[0] != _SINCE_FOLDER:
            yield str(name)


def _masked(value: Json, left_out: bool = False, inside: str = "") -> Json:
    """A document in which "..." stands for every value that is left out."""
    if isinstance(value, dict):
        older = {key: part for key, part in value.items() if not _named(key, inside, SINCE)}
        return {key: _masked(part, left_out or _named(key, inside, LEFT_OUT), key) for key, part in older.items()}
    if isinstance(value, list):
        return [_masked(part, left_out, inside) for part in value]
    if left_out:
        return "..."
    return _reworded(value) if isinstance(value, str) else value


def _without_bits(value: Json, inside: str = "") -> Json:
    """A document without the members that other environments have otherwise."""
    if isinstance(value, dict):
        kept = (key for key in value if not _named(key, inside, BITS))
        return {key: _without_bits(value[key], key) for key in kept}
    return [_without_bits(part, inside) for part in value] if isinstance(value, list) else value


def _named(key: str, inside: str, names: Mapping[str, str]) -> bool:
    return key in names or f"{inside}.{key}" in names


def _reworded(text: str) -> str:
    for pattern, words in WORDS.items():
        text = re.sub(pattern, words, text, flags=re.DOTALL)
    return text


def _lines(value: Json, indent: str) -> str:
    """JSON with a line for each record, so that a change of one shows as such."""
    if len(indent) == _DEPTH or not isinstance(value, (dict, list)) or not value:
        return json.dumps(value, ensure_ascii=False)
    named = isinstance(value, dict)
    pairs = value.items() if named else enumerate(value)
    parts = [f"{json.dumps(key)}: " * named + _lines(part, indent + " ") for key, part in pairs]
    begin, end = "{}" if named else "[]"
    return f",\n{indent} ".join([f"{begin}\n{indent} {parts[0]}", *parts[1:]]) + f"\n{indent}{end}"


def _short(value: Json) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 200 else f"{text[:200]}..."
