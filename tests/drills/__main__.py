"""`make drill`: every fault that can be tried on this machine, as often as there is time, and a scoreboard."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from itertools import product
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import own_tables
import own_torchrec
from conftest import TEXT, tiny_recipe
from drills import goodput, stalls, storage
from drills.commands import told_and_replayed
from drills.fault import ALL, Fault
from drills.kills import CUT, REPLICAS, TABLES, TORCHREC, kill_at_random
from drills.runs import drill, leftovers, one_server, reference, sweep
from drivetrain.spec.mesh import MeshSizes
from states import World

Row = dict[str, object]
MESH = MeshSizes(replicate=2, tensor=2)
"""Each of its ranks has columns of tensors, and half of them write nothing."""


def main() -> int:
    """Run the parts that are asked for; 1 where anything did not hold."""
    parser = argparse.ArgumentParser(prog="python -m drills", description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=15.0, help="of random kills, after the fixed parts")
    parser.add_argument("--kills", type=int, default=300, help="random ones in a directory that stalls, in that time")
    parser.add_argument("--only", choices=list(PARTS), help="one part")
    parser.add_argument("--axis", default="", help="of the meshes only those along it, such as pipeline")
    parser.add_argument("--json", type=Path, help="also write the scoreboard here")
    parser.add_argument("--keep", type=Path, help="also keep what was simulated in this folder")
    asked = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory(prefix="drills-") as name:
        folder = Path(name)
        corpus = folder / "corpus"
        corpus.mkdir()
        for number in range(4):
            (corpus / f"{number}.txt").write_text(TEXT[number * 999 :])
        for part, work in PARTS.items():
            if asked.only in (None, part):
                (folder / part).mkdir()
                rows.append({"drill": part, **work(tiny_recipe(corpus), folder / part, asked)})
                print(_line(rows[-1]), flush=True)
    if asked.json:
        asked.json.write_text(json.dumps(rows, indent=2))
    failures = [failure for row in rows for failure in row["failures"]]
    print(*failures, sep="\n")
    return 1 if failures else 0


def kill_sweep(recipe: dict, folder: Path, asked: argparse.Namespace) -> Row:
    """SIGKILL at every phase x rank x world x commit mode."""
    return _swept(recipe, folder, REPLICAS, cut=False)


def kill_sweep_on_meshes(recipe: dict, folder: Path, asked: argparse.Namespace) -> Row:
    """The same where tensors are cut, and all write parts of a commit; and a disk that is full for one rank only."""
    return _swept(recipe, folder, CUT, cut=True)


def _swept(recipe: dict, folder: Path, places: Sequence[tuple[int, tuple[str, ...]]], *, cut: bool) -> Row:
    tried, failures, lost, recovery = 0, [], [], []
    began = time.monotonic()
    with one_server():
        for world, layout in sorted(set(places)):
            asked = (f"launch.processes={world}", *layout)
            expected = reference(recipe, folder / f"reference-{world}", *asked)
            faults = sweep(world, cut=cut)
            if cut:
                faults += [Fault("no space", rank, "write", 5) for rank in range(world)]
            for number, (blocking, fault) in enumerate(product(("false", "true"), faults)):
                run = folder / f"{number}-{world}-{'-'.join(layout)}"
                found = drill(recipe, run, fault, *asked, f"checkpoint.blocking={blocking}")
                tried += 1
                if found.trace != expected or leftovers(run):
                    failures.append(f"{asked}, blocking {blocking}, {fault}: {found.outcome}")
                if fault.rank != ALL and world > 1 and not cut:
                    lost.append(found.lost)
                recovery += [found.recovery] if found.recovery else []
                shutil.rmtree(run)
    beside = {"lost beside survivors": max(lost)} if lost else {}
    return _row(tried, failures, began) | beside | _spread(recovery)


def hangs(recipe: dict, folder: Path, asked: argparse.Namespace) -> Row:
    """SIGSTOP, a held interpreter and a sleep in each phase, with the patience as it ships."""
    tried, failures, recovery = 0, [], []
    began = time.monotonic()
    with one_server():
        expected = reference(recipe, folder / "reference", "launch.processes=2")
        for act, phase in (("stop", "forward"), ("stop", "reduce"), ("gil", "backward"), ("sleep", "data")):
            run = folder / f"{act}-{phase}"
            found = drill(recipe, run, Fault(act, 1, phase, 7), "launch.processes=2")
            tried += 1
            if found.trace != expected:
                failures.append(f"{act} in {phase}: {found.outcome}")
            recovery += [found.recovery] if found.recovery else []
    return _row(tried, failures, began) | _spread(recovery)


def random_kills(recipe: dict, folder: Path, asked: argparse.Namespace) -> Row:
    """SIGKILL of a random process, or of all, at random moments."""
    began = time.monotonic()
    with one_server():
        score = kill_at_random(recipe, folder, seed=asked.seed, seconds=60 * asked.minutes)
    lost = {"lost beside survivors": max(score.lost_beside_survivors, default=0), "lost": max(score.lost, default=0)}
    return _row(score.kills, score.wrong, began) | {"runs": score.runs} | lost | _spread(score.recovery)


def kills_in_stalls(recipe: dict, folder: Path, asked: argparse.Namespace) -> Row:
    """Random kills while the run directory stalls again and again."""
    began = time.monotonic()
    with one_server():
        settings = {"seconds": 60 * asked.minutes, "most": asked.kills, "stalls": True}
        score = kill_at_random(recipe, folder, seed=asked.seed, **settings)
    return _row(score.kills, score.wrong, began) | {"runs": score.runs} | _spread(score.recovery)


def kills_on_meshes(recipe: dict, folder: Path, asked: argparse.Namespace) -> Row:
    """SIGKILL of a random process, or of all, at random moments, where tensors are cut."""
    began = time.monotonic()
    places = [(world, layout) for world, layout in CUT if asked.axis in "".join(layout)]
    with one_server():
        score = kill_at_random(
            recipe, folder, seed=asked.seed, seconds=60 * asked.minutes, most=2 * asked.kills, places=places
        )
    return _row(score.kills, score.wrong, began) | {"runs": score.runs} | _spread(score.recovery)


def kills_with_tables(_recipe: dict, folder: Path, asked: argparse.Namespace) -> Row:
    """The same where processes hold rows of embedding tables: as many kills where ids are rows, and where they are
    keys, which come and go."""
    began, row = time.monotonic(), {"runs": 0, "kills": {}}
    kills, wrong, recovery = 0, [], []
    with one_server():
        for name, recipe in (("rows", own_tables.recipe()), ("keys", own_tables.keyed_recipe())):
            (folder / name).mkdir()
            settings = {"seconds": 30 * asked.minutes, "most": asked.kills, "places": TABLES}
            score = kill_at_random(recipe, folder / name, seed=asked.seed, **settings)
            kills += score.kills
            wrong += [f"{name}: {told}" for told in score.wrong]
            recovery += score.recovery
            row["runs"] += score.runs
            row["kills"][name] = score.kills
    return _row(kills, wrong, began) | row | _spread(recovery)


def kills_on_torchrec(_recipe: dict, folder: Path, asked: argparse.Namespace) -> Row:
    """The same where TorchRec looks rows up and moves them, if it is installed here."""
    began = time.monotonic()
    if not all(map(find_spec, ("torchrec", "fbgemm_gpu"))):
        return _row(0, [], began)
    with one_server():
        settings = {"seconds": 60 * asked.minutes, "most": asked.kills, "places": TORCHREC}
        score = kill_at_random(own_torchrec.recipe(), folder, seed=asked.seed, **settings)
    return _row(score.kills, score.wrong, began) | {"runs": score.runs} | _spread(score.recovery)


def told(recipe: dict, folder: Path, asked: argparse.Namespace) -> Row:
    """A thousand random commands on two processes, then as many while processes are killed; each run is replayed."""
    tried, failures = 0, []
    began = time.monotonic()
    with one_server():
        for kills in (False, True):
            (folder / str(kills)).mkdir()
            settings = {"steps": 6000, "processes": 2, "seed": asked.seed, "most": 1000, "pause": 0.015}
            count, wrong = told_and_replayed(folder / str(kills), kills=kills, **settings)
            tried += count
            failures += [f"kills {kills}: {what}" for what in wrong]
    return _row(tried, failures, began)


def simulated(_recipe: dict, folder: Path, asked: argparse.Namespace) -> Row:
    """Goodput under kills within three points of what a simulation says that knows another run's costs."""
    began, wrong, kills, told = time.monotonic(), [], 0, {}
    for world, share in goodput.CASES:
        name = f"{world} processes, {share:.0%} all at once"
        (folder / name).mkdir()
        found = goodput.compare(folder / name, world, share, 60 * asked.minutes / len(goodput.CASES), asked.seed)
        kills += len(found.kills)
        figures = {"real": found.real, "at rate": found.at_rate, "spread": found.spread}
        told[name] = figures | {"at moments": found.at_moments, "kills": len(found.kills), "steps": found.steps}
        if asked.keep:
            (asked.keep / f"{name}.json").write_text(goodput.recorded(found))
        if not found.holds:
            wrong.append(f"{name}: {told[name]}")
    return _row(len(goodput.CASES), wrong, began) | {"kills": kills} | told


def _storage(work: Callable[[Path, argparse.Namespace], storage.Scoreboard]) -> Callable[..., Row]:
    def part(recipe: dict, folder: Path, asked: argparse.Namespace) -> Row:
        began = time.monotonic()
        score = work(folder, asked)
        return _row(score.tried, score.failures, began)

    return part


def _flips(world: World) -> Callable[[Path, argparse.Namespace], storage.Scoreboard]:
    def flips(folder: Path, asked: argparse.Namespace) -> storage.Scoreboard:
        writer = storage.writer_of(folder, world)
        for step in (1, 2):
            storage.commit(writer, step)
        return storage.flips(folder, 10_000, asked.seed)

    return flips


def _calls(world: World) -> Callable[[Path, argparse.Namespace], storage.Scoreboard]:
    return lambda folder, asked: storage.sweep(folder, seed=asked.seed, lasting=True, world=world)


PARTS: dict[str, Callable[..., Row]] = {
    "bit flips": _storage(_flips(1)),
    "bit flips, parts": _storage(_flips(3)),
    "bit flips, a mesh": _storage(_flips(MESH)),
    "system calls": _storage(_calls(1)),
    "system calls, parts": _storage(_calls(2)),
    "system calls, a mesh": _storage(_calls(MESH)),
    "power loss": _storage(lambda folder, asked: storage.power_losses(folder / "run", before=(), steps=(1, 2, 3))),
    "power loss, parts": _storage(lambda folder, asked: storage.power_losses(folder / "run", world=2)),
    "power loss, a mesh": _storage(
        lambda folder, asked: storage.power_losses(folder / "run", world=MESH, limit=1 << 10)
    ),
    "stalls": _storage(lambda folder, asked: stalls.sweep(folder)),
    "full disk": _storage(lambda folder, asked: storage.full_disk(folder, "size", 4 << 20)),
    "inodes": _storage(lambda folder, asked: storage.full_disk(folder, "nr_inodes", 64)),
    "kill sweep": kill_sweep,
    "kill sweep on meshes": kill_sweep_on_meshes,
    "hangs": hangs,
    "commands": told,
    "kills in stalls": kills_in_stalls,
    "random kills": random_kills,
    "kills on meshes": kills_on_meshes,
    "kills with tables": kills_with_tables,
    "kills on torchrec": kills_on_torchrec,
    "simulated goodput": simulated,
}
"""What is drilled, in this order."""


def _row(tried: int, failures: list[str], began: float) -> Row:
    return {"tried": tried, "held": tried - len(failures), "failures": failures, "seconds": time.monotonic() - began}


def _spread(seconds: list[float]) -> Row:
    """Median and 95th percentile of the seconds from a fault to the first new step."""
    if not seconds:
        return {}
    cuts = statistics.quantiles(seconds, n=20) if len(seconds) > 1 else [seconds[0]] * 19
    return {"recovery p50": cuts[9], "recovery p95": cuts[18]}


def _line(row: Row) -> str:
    shown = {name: value for name, value in row.items() if name not in ("drill", "failures")}
    words = (f"{name} {value:.2f}" if isinstance(value, float) else f"{name} {value}" for name, value in shown.items())
    return f"{row['drill']:<15} {'  '.join(words)}"


if __name__ == "__main__":
    sys.exit(main())
