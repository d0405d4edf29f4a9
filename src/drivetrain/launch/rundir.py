"""What launchers read and leave in a run directory: its folders, the steps of its commits, how the run ended."""

from __future__ import annotations

import json
import os
import re
import stat
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from drivetrain.spec.exits import Exit, Failure, Outcome
from drivetrain.spec.files import own_name, sync_folder, within, write_json

SCRATCH = Path(f"/var/tmp/drivetrain-{os.getuid()}")
"""Where this user's run directories are on machines that share none: commits and ledger are mirrored from there."""
ANSWER = 5.0
"""Seconds in which a run directory must take the last word of a run that is over."""
HEARD = 2.0
"""Seconds in which the process that failed by itself is heard, where the first one has lost it."""
_OURS = "drivetrain-"  # how the names of scratch folders begin, whoever has submitted the job
_COMMIT = re.compile(r"step-(\d{8,})")


def committed(run: Path) -> int | None:
    """The step of the newest commit; None for none."""
    return max(steps(run / "checkpoints").values(), default=None)


def steps(folder: Path) -> dict[Path, int]:
    """Commits, or what survivors have left, with their steps."""
    found = {}
    for path in folder.glob("step-*"):
        if match := _COMMIT.match(path.name):
            found[path] = int(match.group(1))
    return found


def prepare(run: Path) -> Path:
    """Make the run directory and its `logs`, 0700. Raises Failure: 73 where that is refused, 77 where it is below a
    scratch folder that another user has made, or may write to."""
    logs = run / "logs"
    try:
        # Everybody may write to /var/tmp: a scratch folder there is looked at before anything below it is believed.
        for folder in run.parents:
            if folder.parent == SCRATCH.parent and folder.name.startswith(_OURS):
                _require_own(folder)
        for folder in (run, logs):
            if not folder.is_dir():
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                sync_folder(folder.parent)
        # Tried rather than looked up: modes say little of a full disk, of a quota or of a network file system.
        probe = logs / f".probe-{own_name()}"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise Failure(Exit.CANNOT_CREATE, f"{run} cannot be used: {error}", "choose another place by --run") from error
    return logs


def _require_own(folder: Path) -> None:
    """Make a folder where anybody may make one. Raises Failure(77) where it is not this user's alone."""
    # Made first and judged afterwards, by lstat: between a look and a mkdir another user could put a link there.
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        cause = f"{folder} is another's, a link, or open to others"
        raise Failure(Exit.SECURITY, cause, "see who made it, and remove it; or set runs to another place")


def last_word(run: Path) -> tuple[int, int] | None:
    """What tells one writing of `exit.json` from the next, on whatever file system; None where there is none."""
    try:
        status = within(ANSWER, (run / "exit.json").stat)
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns


def record_first(run: Path, outcome: Outcome, rank: int, before: tuple[int, int] | None) -> Outcome:
    """Keep the outcome of one of several processes in `exit.json`. It is the first one's to write, or that of one that
    failed by itself; the loss of a peer never hides what that peer said. `before` is the `last_word` at the start."""
    lost = outcome.code is Exit.PEER_UNAVAILABLE
    if not lost and (rank == 0 or outcome.code not in (Exit.DONE, Exit.STOPPED)):
        return record(run, outcome)
    if lost and rank == 0 and not _said_by_another(run, before):
        return record(run, outcome)
    return outcome


def _said_by_another(run: Path, before: tuple[int, int] | None) -> bool:
    """Whether the process that failed by itself has said so, or does so soon: its loss may be seen before its word."""
    end = time.monotonic() + HEARD
    while time.monotonic() < end:
        if last_word(run) != before:
            return True
        time.sleep(0.05)
    return False


def record(run: Path, outcome: Outcome) -> Outcome:
    """Keep a run's outcome in `exit.json`, with the last committed step; returns it completed. Where the directory does
    not answer, it is only said."""
    where = outcome.where
    with suppress(TimeoutError):
        where = where | {"last_committed_step": within(ANSWER, lambda: committed(run))}
    complete = replace(outcome, where=where)
    try:
        if outcome.code in (Exit.DONE, Exit.STOPPED):  # it has just taken a commit
            within(ANSWER, lambda: write_json(run / "exit.json", complete.to_json()))
        else:
            _write_apart(run / "exit.json", complete)
    except OSError as error:  # the disk is full or gone: the line on stderr still says all
        print(f"drivetrain: exit.json cannot be written: {error}", file=sys.stderr)
    return complete


_WRITE = """
import sys
from pathlib import Path
from drivetrain.spec.files import write_private
write_private(Path(sys.argv[1]), sys.stdin.buffer.read())
"""


def _write_apart(path: Path, outcome: Outcome) -> None:
    """Write an outcome from a process of its own: on a disk that stalls the kernel may let none end that writes."""
    content = (json.dumps(outcome.to_json(), indent=2) + "\n").encode()
    writer = subprocess.Popen([sys.executable, "-c", _WRITE, str(path)], stdin=subprocess.PIPE, stderr=subprocess.PIPE)
    assert writer.stdin is not None
    assert writer.stderr is not None
    with suppress(BrokenPipeError), writer.stdin:
        writer.stdin.write(content)
    try:
        code = writer.wait(ANSWER)
    except subprocess.TimeoutExpired:
        raise TimeoutError(f"no answer within {ANSWER:g} s") from None
    if code:
        said = writer.stderr.read().decode(errors="replace").strip().rpartition("\n")[2]
        raise OSError(said.partition(": ")[2] or "the process that writes it has failed")
