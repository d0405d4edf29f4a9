"""One run of one system in a folder of its own: started, struck, started again, and written down."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import psutil
from judge import Ended, attempts, coverage, history
from systems import ADAPTERS, System

PATIENCE = 60.0
"""Seconds after which a system that neither ends nor goes on hangs."""
SLOWEST = 180.0
"""Seconds that an undisturbed start may take on a busy machine."""
TAIL = 900
"""Characters of each start's output that go into the raw log."""


class Trial:
    """The run directory lies in the trial's folder, or elsewhere; witness and outputs always lie in the folder."""

    def __init__(self, system: System, programs: Path, folder: Path, run: Path | None = None) -> None:
        self.system, self.programs, self.folder = system, programs, folder
        self.run = run or folder / "run"
        self.log: list[str] = []
        self.process: subprocess.Popen | None = None
        self.starts = 0
        folder.mkdir(parents=True, exist_ok=True)

    def copy(self, folder: Path) -> Trial:
        """The same run, to be treated otherwise."""
        shutil.copytree(self.folder, folder)
        other = Trial(self.system, self.programs, folder)
        other.log, other.starts = list(self.log), self.starts
        return other

    def start(self, processes: int, **settings: object) -> Trial:
        """Start it, or start it again; `settings` are those of `adapters/work.py` (pause, nan)."""
        command = self.system.command(self.programs, self.run, processes)
        own = {"CONFORMANCE_RUN": str(self.run), "CONFORMANCE_WITNESS": str(self.folder)}
        own |= {f"CONFORMANCE_{name.upper()}": str(value) for name, value in settings.items()}
        plain = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1", "NO_COLOR": "1"}
        self.starts += 1
        self.note(f"$ {' '.join(command)}   {' '.join(f'{k}={v}' for k, v in settings.items())}".rstrip())
        with self._output().open("wb") as output:
            self.process = subprocess.Popen(
                command,
                stdout=output,
                stderr=output,
                env=os.environ | plain | own,
                cwd=ADAPTERS,
                start_new_session=True,
            )
        return self

    def finish(self, patience: float = SLOWEST) -> Ended:
        """Wait for the end; what is still there when the patience is over is ended. Tells what came of the run."""
        assert self.process is not None
        try:
            code: int | None = self.process.wait(patience)
        except subprocess.TimeoutExpired:
            code = None
        self.kill()
        self.note(f"exit code {code}" if code is not None else f"still there after {patience:g} s: ended by us")
        self.note(_tail(self._output().read_text(errors="replace")))
        final = self.folder / "final.json"
        found = json.loads(final.read_text()) if final.is_file() else {}
        return Ended(code, found.get("sha256"), found.get("finite", True), self.witness())

    def whole(self, processes: int, **settings: object) -> Ended:
        """A start that nobody disturbs."""
        return self.start(processes, **settings).finish()

    def until(self, step: int, rank: int = 0) -> Trial:
        """Wait until a rank has made this step in the start that is running."""
        self._wait(lambda: (found := attempts(self.witness())) and found[-1].reached.get(rank, 0) >= step)
        return self

    def kill(self) -> None:
        """SIGKILL for the launcher and all below it."""
        everyone = self.everyone()
        for process in everyone:
            _send(process, signal.SIGKILL)
        psutil.wait_procs(everyone, timeout=10)
        if self.process:
            self.process.wait()

    def strike(self) -> None:
        """SIGKILL for all, in the log."""
        self.note(f"SIGKILL for all after {self._where()}")
        self.kill()

    def signal_rank(self, rank: int, number: signal.Signals) -> None:
        self.note(f"{number.name} for rank {rank} after {self._where()}")
        os.kill(attempts(self.witness())[-1].pids[rank], number)

    def signal_launcher(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.note(f"{number.name} for the launcher after {self._where()}")
        self.process.send_signal(number)

    def until_written(self) -> Path:
        """Wait for the next new file of more than 4 kB in the run directory: a checkpoint is being written."""
        before = set(_files(self.run))
        fresh: list[Path] = []
        self._wait(
            lambda: fresh.extend(p for p, size in _files(self.run).items() if p not in before and size > 4096) or fresh
        )
        return fresh[0]

    def everyone(self) -> list[psutil.Process]:
        """The launcher, all processes below it, and ranks that have lost their parent."""
        assert self.process is not None
        found: dict[int, psutil.Process] = {}
        try:
            launcher = psutil.Process(self.process.pid)
            found = {each.pid: each for each in [launcher, *launcher.children(recursive=True)]}
        except psutil.NoSuchProcess:
            pass
        for attempt in attempts(self.witness()):
            for pid in attempt.pids.values():
                if pid not in found and _ours(pid, self.folder):
                    found[pid] = psutil.Process(pid)
        return list(found.values())

    def witness(self) -> str:
        path = self.folder / "witness"
        text = path.read_text() if path.is_file() else ""
        return text[: text.rfind("\n") + 1]

    def note(self, line: str) -> None:
        self.log.append(line)

    def told(self, pattern: str) -> bool:
        """Whether the last start printed a line of this kind; the first one goes into the log."""
        printed = self._output().read_text(errors="replace").splitlines()
        line = next((line for line in printed if re.search(pattern, line, re.IGNORECASE)), None)
        self.note("told: " + (line.strip()[:240] if line else "nothing of it"))
        return line is not None

    def record(self) -> str:
        """The raw log of this trial: commands, strikes, codes, ends of outputs, and what the witness saw."""
        lines = list(self.log)
        found = attempts(self.witness())
        for number, attempt in enumerate(found, 1):
            lines.append(
                f"witness: start {number}: {len(attempt.pids)} process(es), steps {attempt.first} to {attempt.last}"
            )
        gap = coverage(history(found))
        lines.append(f"witness: of 2 epochs, {gap.lost} samples lost, {gap.doubled} doubled")
        final = self.folder / "final.json"
        lines.append(f"final: {final.read_text() if final.is_file() else 'none'}")
        return "\n".join(lines)

    def _where(self) -> str:
        return f"step {max((attempt.last for attempt in attempts(self.witness())[-1:]), default=0)}"

    def _output(self) -> Path:
        return self.folder / f"output-{self.starts}"

    def _wait(self, condition: Callable[[], object]) -> None:
        assert self.process is not None
        deadline = time.monotonic() + SLOWEST
        while not condition():
            if self.process.poll() is not None:
                raise MissedError(f"it ended with {self.process.returncode} before it could be struck")
            if time.monotonic() > deadline:
                raise MissedError(f"nothing to strike within {SLOWEST:g} s")
            time.sleep(0.001)


class MissedError(Exception):
    """The moment of the fault did not come."""


def _send(process: psutil.Process, number: signal.Signals) -> None:
    try:
        process.send_signal(number)
    except psutil.NoSuchProcess:
        pass


def _ours(pid: int, folder: Path) -> bool:
    """Whether a process id is still that of a rank of this trial, and not of a stranger that got the number."""
    try:
        return psutil.Process(pid).environ().get("CONFORMANCE_WITNESS") == str(folder)
    except psutil.Error:
        return False


def _files(folder: Path) -> dict[Path, int]:
    found = {}
    for where, _, names in os.walk(folder):
        for name in names:
            path = Path(where, name)
            try:
                found[path] = path.stat().st_size
            except OSError:
                pass
    return found


def _tail(text: str) -> str:
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text).replace("\r", "\n")
    lines = [line.rstrip()[:240] for line in plain.splitlines() if line.strip()]
    tail = "\n".join(f"  | {line}" for line in lines)[-TAIL:]
    return tail[tail.find("  | ") :] if tail else "  | (nothing printed)"
