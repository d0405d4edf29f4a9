"""What of our own code grows with the number of processes: `python benchmarks/scale.py`.

One process of 1,024, 4,096 and 16,384 does its part of what a step, a commit, a start or a load asks of it; the others
are not there, and what they would say is made up. The table says what that takes, in time of this process and in bytes
that reach it; `by` is the exponent of the growth between the smallest and the largest size: 0 is constant, 1 is linear.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from typing import NamedTuple

import torch

from drivetrain.checkpoint.boxes import require_whole
from drivetrain.checkpoint.manifest import parse_manifest
from drivetrain.checkpoint.stored import dealt
from drivetrain.data.batch_reader import BatchReader
from drivetrain.data.geometry import Geometry
from drivetrain.data.lane_order import LaneDeal
from drivetrain.data.order import Order
from drivetrain.data.quarantine import Quarantine
from drivetrain.engine.placement import Placement
from drivetrain.engine.recompute import fold
from drivetrain.ledger.records import StepRecord
from drivetrain.loop.replicas import require_equal
from drivetrain.loop.step_sync import WIDTH
from drivetrain.loop.telemetry import spread
from drivetrain.plan.stand_in import StandInGroup
from drivetrain.runtime.doubling import exchanges
from drivetrain.runtime.heartbeat import HeartbeatMemory
from drivetrain.runtime.mesh import Mesh
from drivetrain.spec.batches import Batches
from drivetrain.spec.box import Box
from drivetrain.spec.mesh import MeshSizes

SIZES = (1024, 4096, 16384)
TENSORS = 300
"""Of a network and its optimizer."""
PER_RANK = 4
"""Samples of a step for each process."""


class Work(NamedTuple):
    """What is timed, and what reaches the process for it: bytes, and messages that wait for each other."""

    run: Callable[[], object]
    bytes: int = 0
    messages: int = 0


@dataclass(frozen=True)
class Subject:
    """Something that a rank does; `when`: how often, `who`: any rank, or the leader."""

    name: str
    when: str
    who: str
    work: Callable[[int], Work]


class Costs(NamedTuple):
    """Of one subject on one number of processes."""

    milliseconds: float
    bytes: int
    messages: int


def measured(subject: Subject, world: int, repeats: int = 5) -> Costs:
    """The median of some repeats, after one that warms up: of the processor's time, since nothing here waits."""
    work = subject.work(world)
    work.run()
    took = []
    for _ in range(repeats):
        began = time.process_time()
        work.run()
        took.append(time.process_time() - began)
    return Costs(1e3 * statistics.median(took), work.bytes, work.messages)


def exponent(small: float, large: float, sizes: Sequence[int] = SIZES) -> float:
    """Of the growth from the smallest to the largest size."""
    if small <= 0 or large <= 0:
        return 0.0
    return math.log(large / small) / math.log(sizes[-1] / sizes[0])


def pulse(world: int) -> Work:
    """One rank's exchanges; what others send is zeros."""
    row = torch.ones(WIDTH, dtype=torch.int64)
    made = list(exchanges(row.clone(), 0, world))
    return Work(lambda: sum(1 for _ in exchanges(row.clone(), 0, world)), 16 * WIDTH * len(made), len(made))


def reader(world: int, quarantine: Quarantine | None = None) -> BatchReader:
    """Of the last rank; the run ends in the third step, which is ragged: the last processes read nothing there."""
    batch = PER_RANK * world
    geometry = Geometry(Batches(batch), world, world, 2)
    order = Order(100 * batch, 0, True)
    total = 3 * batch - PER_RANK
    return BatchReader(range(100 * batch), order, geometry, world - 1, total, list, dict, quarantine or Quarantine())


def plan(world: int) -> Work:
    """The micro-batches of a whole step."""
    own = reader(world)
    return Work(lambda: own.plan(1))


def ragged(world: int) -> Work:
    """Whether some rank has nothing to read in the last step."""
    own = reader(world)
    return Work(lambda: own._gaps(3))


def quarantined(world: int) -> Work:
    """The same in a whole step of a run that leaves out a sample."""
    own = reader(world, Quarantine([(1, [0])]))
    return Work(lambda: own._gaps(1))


def lanes(world: int) -> Work:
    """How many positions each lane has had, for an order by lanes."""
    deal = LaneDeal(Batches(PER_RANK * world), world)
    return Work(lambda: deal.before(1000 * world))


def meshed(world: int) -> Mesh:
    """Replicas of tensors that 8 ranks share out; the groups that torch makes of them are not made."""
    mesh = Mesh.__new__(Mesh)
    with unmet():
        mesh.__init__(StandInGroup(3, world), MeshSizes(replicate=world // 64, shard=8, tensor=8))
    return mesh


@contextmanager
def unmet() -> Iterator[None]:
    """Groups are made without meeting anybody."""
    before = StandInGroup.part
    StandInGroup.part = lambda self, ranks: StandInGroup(list(ranks).index(self.rank), len(ranks))  # type: ignore
    try:
        yield
    finally:
        StandInGroup.part = before  # type: ignore[method-assign]


def mesh_made(world: int) -> Work:
    """Who shares out the lanes with this rank."""
    return Work(lambda: meshed(world))


def holders(world: int) -> Work:
    """Who holds the same, for each tensor of a commit."""
    placement = Placement(meshed(world))
    tensors = {f"networks/model/{number}": torch.zeros(1) for number in range(TENSORS)}
    return Work(lambda: placement.counted(tensors))


def compared(world: int) -> Work:
    """Replicas are compared: each tells a number, and hears all."""
    placement = Placement(Mesh(StandInGroup(0, world)))
    tensors = {f"networks/model/{number}": torch.zeros(1) for number in range(TENSORS)}
    told = len(json.dumps({"0" * 16: fold(dict.fromkeys(tensors, 0))}))
    return Work(lambda: require_equal(tensors, placement, 1), told * world, 2 * (world - 1))


def gathered(row: dict) -> Callable[[int], Work]:
    """Every rank's row of JSON reaches every rank, by a ring."""

    def work(world: int) -> Work:
        group = StandInGroup(0, world)
        return Work(lambda: group.gather_json(row), len(json.dumps(row)) * world, 2 * (world - 1))

    return work


def telemetry(world: int) -> Work:
    """The smallest and the largest of two numbers, and whose the largest are: by doubling."""
    group = StandInGroup(0, world)
    rounds = math.ceil(math.log2(world))
    return Work(lambda: spread(group, [0.5, 1e9]), 2 * 8 * (4 + 2) * rounds, 2 * rounds)


def broadcast(world: int) -> Work:
    """What the leader decides: down a tree."""
    message = json.dumps("f" * 40).encode()
    return Work(lambda: json.loads(message), len(message), 2 * math.ceil(math.log2(world)))


def agreed(world: int) -> Work:
    """Whether all have the same: a digest down a tree, a number by doubling."""
    row = torch.zeros(1, dtype=torch.int64)
    rounds = math.ceil(math.log2(world))
    return Work(lambda: sum(1 for _ in exchanges(row.clone(), 0, world)), 66 + 16 * rounds, 3 * rounds)


def manifest_of(world: int) -> bytes:
    """Two files a rank."""
    file = {"size": 123456789, "sha256": "0" * 64}
    files = {}
    for rank in range(world):
        files[f"tensors-{rank:05d}-00000.safetensors"] = files[f"boxes-{rank:05d}.json"] = file
    line = json.dumps({"format": 2, "step": 1, "files": files}, separators=(",", ":")).encode()
    return line + b"\n" + sha256(line).hexdigest().encode() + b"\n"


def manifest(world: int) -> Work:
    """Read it."""
    content = manifest_of(world)
    return Work(lambda: parse_manifest(content, "here"), len(content))


def files_dealt(world: int) -> Work:
    """Who checks which file of a commit that as many ranks have written."""
    files = {f"tensors-{rank:05d}-00000.safetensors": 1000 + rank % 7 for rank in range(world)}
    return Work(lambda: dealt(files, world - 1, world))


def boxes(world: int) -> Work:
    """Whether the boxes of all ranks make up a tensor."""
    rows = [Box((world * 4, 64), (4 * rank, 0), (4, 64)) for rank in range(world)]
    return Work(lambda: require_whole("weight", rows))


def supervised(world: int) -> Work:
    """A machine's supervisor looks at its own processes, however many there are elsewhere."""
    memory = HeartbeatMemory(8)
    return Work(memory.look)


def record(world: int) -> Work:
    """What the ledger has of a step."""
    stop, losses = 1000 * PER_RANK * world, {"loss": 2.123456789}
    fields = {"step": 1000, "start": stop - PER_RANK * world, "stop": stop, "samples": "0" * 16, "losses": losses}
    numbers = {"counts": {"samples": PER_RANK * world}, "norm": {"model": 0.123}, "lr": {"model": 1e-3}}
    told = StepRecord(**fields, **numbers, seconds=1.2345678, wait=0.0001234)

    def line() -> bytes:
        return json.dumps(told.to_json(), separators=(",", ":")).encode()

    return Work(line, len(line()))


_STEP, _RAGGED, _COMMIT, _START = "step", "ragged or quarantined step", "commit", "start"
SUBJECTS = (
    Subject("pulse", _STEP, "any", pulse),
    Subject("micro-batches", _STEP, "any", plan),
    Subject("record", _STEP, "leader", record),
    Subject("signs of life", _STEP, "supervisor", supervised),
    Subject("gaps, ragged", _RAGGED, "any", ragged),
    Subject("gaps, quarantine", _RAGGED, "any", quarantined),
    Subject("lanes of a window", "window", "any", lanes),
    Subject("telemetry", "telemetry", "any", telemetry),
    Subject("folder told", _COMMIT, "any", broadcast),
    Subject("holders", _COMMIT, "any", holders),
    Subject("replicas compared", _COMMIT, "any", compared),
    Subject("parts told", _COMMIT, "any", gathered({"part": {"files": dict.fromkeys("ab", "0" * 64)}})),
    Subject("manifest", "commit and load", "leader; all", manifest),
    Subject("mesh", _START, "any", mesh_made),
    Subject("agree", _START, "any", agreed),
    Subject("environments", _START, "any", gathered(dict.fromkeys(map(str, range(12)), "12.3.4+cpu"))),
    Subject("files dealt", "load", "any", files_dealt),
    Subject("boxes of a tensor", "load", "any", boxes),
)


def main() -> None:
    """Measure all, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", help="names of what is measured")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for subject in SUBJECTS:
        if asked.only and subject.name not in asked.only:
            continue
        found = [measured(subject, world) for world in SIZES]
        rows.append({"what": subject.name, "when": subject.when, "who": subject.who})
        for kind in Costs._fields:
            values = [getattr(each, kind) for each in found]
            rows[-1][kind] = values
            rows[-1][f"{kind} by"] = exponent(values[0], values[-1])
        if not asked.json:
            print(_line(rows[-1]), flush=True)
    if asked.json:
        print(json.dumps(rows, indent=2))


def _line(row: dict) -> str:
    times = " / ".join(f"{each:.3g}" for each in row["milliseconds"])
    told = f"{row['what']:<18} {row['when']:<26} {row['who']:<12} ms {times} by {row['milliseconds by']:.2f}"
    for kind in ("bytes", "messages"):
        if any(row[kind]):
            told += f"; {kind} {' / '.join(f'{each:,}' for each in row[kind])} by {row[f'{kind} by']:.2f}"
    return told


if __name__ == "__main__":
    main()
