"""A real Slurm on this machine: munged, slurmctld and two slurmd, started and stopped by their process ids."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

SBIN = Path("/usr/sbin")
PROGRAMS = ("munged", "slurmctld", "slurmd")
NODES = ("n0", "n1")


def missing() -> str | None:
    """Why there can be no lab here; None where there can."""
    absent = [name for name in PROGRAMS if not (SBIN / name).exists()]
    if absent:
        return f"{', '.join(absent)} not installed (Debian: slurm-wlm)"
    return None if os.geteuid() == 0 else "the lab's daemons want root"


class Lab:
    """The daemons of one folder. `environment` is what its commands need."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = {"SLURM_CONF": str(folder / "slurm.conf")}
        for name in ("run", "log", "state", *(f"spool.{node}" for node in NODES)):
            (folder / name).mkdir(parents=True)
        (folder / "munge").mkdir(mode=0o711)
        self._socket = folder / "munge" / "munge.sock"

    def up(self) -> None:
        """Start everything, and wait until the nodes are idle."""
        ports = _free_ports(2 + len(NODES))
        (self.folder / "slurm.conf").write_text(self._configuration(*ports))
        if self._version() >= 23:  # it looks for cgroups unless it is told not to
            (self.folder / "cgroup.conf").write_text("CgroupPlugin=disabled\n")
        munge = self.folder / "munge"
        key = munge / "munge.key"
        key.touch(mode=0o600)
        key.write_bytes(secrets.token_bytes(1024))
        files = {"key-file": key, "socket": self._socket, "log-file": munge / "log", "seed-file": munge / "seed"}
        self._start("munged", "--force", f"--pid-file={self._pid('munged')}", *(f"--{n}={p}" for n, p in files.items()))
        self.controller_up()
        for node in NODES:
            self.node_up(node)
        self.wait_idle()

    def down(self) -> None:
        """End everything that was started."""
        for node in NODES:
            self.kill_steps(node)
        files = sorted((self.folder / "run").glob("*.pid"), key=lambda file: file.name == "munged.pid")
        pids = [int(file.read_text()) for file in files]
        for pid in pids:
            _signal(pid, signal.SIGTERM)
        for pid in pids:
            _end(pid)

    def controller_up(self) -> None:
        """Start slurmctld."""
        self._start("slurmctld", "-i")

    def controller_down(self) -> None:
        """End slurmctld."""
        _end(int(self._pid("slurmctld").read_text()))

    def node_up(self, node: str) -> None:
        """Start one node's slurmd."""
        self._start("slurmd", "-N", node)

    def node_lost(self, node: str) -> None:
        """One node as after a power cut: slurmd, its steps and their processes die at once, without a word."""
        _end(int(self._pid(f"slurmd.{node}").read_text()), signal.SIGKILL)
        self.kill_steps(node)

    def kill_steps(self, node: str) -> None:
        """End the steps of a node with all that they started."""
        tasks = self.tasks(node)
        keepers = {parent for pid in tasks if (parent := _parent(pid)) and _read(parent, "comm") == b"slurmstepd\n"}
        for pid in (*keepers, *tasks):
            _signal(pid, signal.SIGKILL)

    def tasks(self, node: str) -> list[int]:
        """The processes of jobs on a node."""
        marks = {f"SLURMD_NODENAME={node}".encode(), f"SLURM_CONF={self.environment['SLURM_CONF']}".encode()}
        return [pid for pid in _pids() if marks <= set(_read(pid, "environ").split(b"\0"))]

    def wait_idle(self, timeout: float = 60.0) -> None:
        """Until every node can take a job."""
        end = time.monotonic() + timeout
        while self("sinfo", "-h", "-N", "-p", "main", "-o", "%T").split() != ["idle"] * len(NODES):
            if time.monotonic() > end:
                raise TimeoutError(self("sinfo", "-N", "-l"))
            time.sleep(0.1)

    def __call__(self, *command: str) -> str:
        """The output of a Slurm command."""
        environment = {**os.environ, **self.environment}
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=30).stdout

    def _start(self, name: str, *arguments: str) -> None:
        environment = {**os.environ, **self.environment}
        subprocess.run([SBIN / name, *arguments], env=environment, check=True, timeout=30, stdin=subprocess.DEVNULL)

    def _pid(self, name: str) -> Path:
        return self.folder / "run" / f"{name}.pid"

    def _version(self) -> int:
        said = subprocess.run([SBIN / "slurmd", "-V"], capture_output=True, text=True, check=True).stdout
        return int(said.split()[-1].partition(".")[0])

    def _configuration(self, controller: int, *ports: int) -> str:
        host, lab = socket.gethostname().partition(".")[0], self.folder
        nodes = "\n".join(
            f"NodeName={node} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=8 RealMemory=4000 State=UNKNOWN"
            for node, port in zip(NODES, ports, strict=False)
        )
        return f"""
ClusterName=lab
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
# A requeued job is held for as long as a credential lives: two minutes where this says less than five seconds.
AuthInfo=socket={self._socket},cred_expire=5
CredType=cred/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=1,sched_interval=1
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
JobRequeue=1
ReturnToService=2
KillWait=10
MinJobAge=3600
SlurmctldTimeout=10
SlurmdTimeout=6
InactiveLimit=0
SlurmdParameters=config_overrides
StateSaveLocation={lab}/state
SlurmdSpoolDir={lab}/spool.%n
SlurmctldPidFile={lab}/run/slurmctld.pid
SlurmdPidFile={lab}/run/slurmd.%n.pid
SlurmctldLogFile={lab}/log/slurmctld.log
SlurmdLogFile={lab}/log/slurmd.%n.log
{nodes}
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE DefaultTime=60 PriorityTier=1 PreemptMode=REQUEUE GraceTime=20
PartitionName=brief Nodes=ALL MaxTime=INFINITE DefaultTime=60 PriorityTier=1 PreemptMode=REQUEUE GraceTime=2
PartitionName=high Nodes=ALL MaxTime=INFINITE DefaultTime=60 PriorityTier=10
"""


@contextmanager
def lab(folder: Path) -> Iterator[Lab]:
    """A lab in a new folder, gone afterwards. No parent of munge's socket may be writable by everyone."""
    made = Lab(folder)
    try:
        made.up()
        yield made
    finally:
        made.down()
        shutil.rmtree(folder, ignore_errors=True)


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def _pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _read(pid: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:  # it has ended
        return b""


def _parent(pid: int) -> int:
    fields = _read(pid, "stat").rpartition(b")")[2].split()
    return int(fields[1]) if fields else 0


def _end(pid: int, number: int = signal.SIGTERM) -> None:
    _signal(pid, number)
    end = time.monotonic() + 10
    while Path(f"/proc/{pid}").exists() and time.monotonic() < end:
        time.sleep(0.05)
    _signal(pid, signal.SIGKILL)


def _signal(pid: int, number: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)
