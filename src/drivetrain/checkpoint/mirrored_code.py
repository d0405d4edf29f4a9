"""The mirror's copy of the sources that a run keeps: `code/<SHA-256>`, each uploaded once and never removed."""

from __future__ import annotations

from pathlib import Path

from drivetrain.checkpoint.store import ObjectStore
from drivetrain.spec.code.kept import FOLDER, MOST, all_kept, is_digest, is_of, kept, put


def push_code(store: ObjectStore, run: Path, there: set[str]) -> None:
    """Upload the sources that are not `there` yet, and add them to it."""
    lacking = [name for name in all_kept(run) if name not in there]
    if not lacking:
        return
    there |= {key.rpartition("/")[2] for key in store.list(FOLDER)}
    for name in lacking:
        content = kept(run, name)
        if name not in there and content is not None:
            store.put(f"{FOLDER}/{name}", content)
        there.add(name)


def fetch_code(store: ObjectStore, run: Path, reasons: list[str]) -> None:
    """Bring the mirror's sources that are not here; why some are not taken is appended to `reasons`."""
    for key, stored in sorted(store.list(FOLDER).items()):
        name = key.rpartition("/")[2]
        if key != f"{FOLDER}/{name}" or not is_digest(name) or kept(run, name) is not None:
            continue
        content = store.read(key, 0, stored.size) if stored.size <= MOST else b""
        if is_of(content, name):
            put(run, name, content)
        else:
            reasons.append(f"{key} in the mirror is damaged")
