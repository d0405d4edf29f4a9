"""Functions that test processes execute, each as one rank among several: real gloo, the real forkserver."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

from drivetrain.runtime.place import Place
from drivetrain.spec.files import write_json


def joined(place, descriptors):
    import torch

    from drivetrain.runtime.group import Group

    listen = descriptors[1] if len(descriptors) > 1 else None
    return Group.join(Place(**place), torch.device("cpu"), listen_fd=listen, timeout=20)


def leave(job, place, outcome):
    write_json(Path(job["folder"]) / "logs" / f"outcome-{place['rank']}.json", outcome)
    return outcome["code"]


def end(code, cause="test"):
    return {"code": code, "class": "", "cause": cause, "hint": "", "where": {}}


def talk(job, place, descriptors):
    """Everything that ranks say to each other."""
    from drivetrain.loop.telemetry import spread
    from drivetrain.spec.exits import Failure

    group = joined(place, descriptors)
    rank, world = group.rank, group.world
    assert group.gather_json({"rank": rank, "text": "é" * rank}) == [{"rank": r, "text": "é" * r} for r in range(world)]
    assert group.broadcast_json(f"from {rank}") == "from 0"
    group.agree("nothing", 1)
    group.barrier()
    assert group.added([rank, -1, 2**62]) == [sum(range(world)), -world, (2**62 * world + 2**63) % 2**64 - 2**63]
    assert group.least([rank - 1.5, -rank]) == [-1.5, 1 - world]
    assert group.most(rank) == world - 1
    spreads = [(each.least, each.most, each.rank) for each in spread(group, [0.1 * rank, 7, min(rank, 1)])]
    assert spreads == [(0.0, 0.1 * (world - 1), world - 1), (7, 7, 0), (0, min(world - 1, 1), min(world - 1, 1))]
    try:
        group.agree("the number", rank if rank < 2 else 0)
        refused = ""
    except Failure as failure:
        refused = failure.outcome.line()
    listeners = listening(os.getpid())
    group.close()
    return leave(job, place, end(0, json.dumps({"refused": refused, "listeners": listeners})))


def add_up(job, place, descriptors):
    """Sums by the pulse, gathered and reduced: of numbers that differ by rank, of which many wrap around."""
    import numpy as np

    from drivetrain.runtime.pulse import Pulse

    group = joined(place, descriptors)
    random = np.random.default_rng(4)  # the same rows on each rank
    pulses = [Pulse(group, 5, most_gathered=most) for most in (0, group.world)]
    for _ in range(20):
        rows = random.integers(-(2**63), 2**63, (group.world, 5)).tolist()
        for pulse in pulses:
            pulse.send(rows[group.rank])
        sums = [(sum(column) + 2**63) % 2**64 - 2**63 for column in zip(*rows, strict=True)]
        assert [pulse.receive() for pulse in pulses] == [sums, sums]
    group.close()
    return leave(job, place, end(0))


def pulse_alone(job, place, descriptors):
    """The last rank ends without a word; the others hear of it by the pulse, made with `job["overrides"]`."""
    from drivetrain.runtime.pulse import Pulse

    group = joined(place, descriptors)
    pulse = Pulse(group, 5, *job["overrides"])
    pulse.send([0] * 5)
    pulse.receive()
    if group.rank == group.world - 1:
        os._exit(0)
    try:
        pulse.send([0] * 5)
        pulse.receive()
    except RuntimeError as error:
        return leave(job, place, group.translate(error).outcome.to_json())
    raise AssertionError("the sums of a rank that has ended")


def listening(pid):
    """Addresses on which a process listens, as /proc/net/tcp and tcp6 show them."""
    inodes = set()
    for entry in os.listdir(f"/proc/{pid}/fd"):
        try:
            target = os.readlink(f"/proc/{pid}/fd/{entry}")
        except OSError:
            continue
        if target.startswith("socket:["):
            inodes.add(target[8:-1])
    found = []
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in inodes:
                found.append(fields[1].partition(":")[0])
    return found


def die(job, place, descriptors):
    """Rank `job["overrides"][0]` ends in the way of `job["overrides"][1]`; the others wait for it in a collective."""
    victim, how = int(job["overrides"][0]), job["overrides"][1]
    group = joined(place, descriptors)
    group.barrier()
    Path(job["folder"], f"died-{group.rank}").write_text(str(time.time()))
    if group.rank == victim:
        if how.startswith("SIG"):
            os.kill(os.getpid(), getattr(signal, how))
            time.sleep(60)
        if how == "exit":
            os._exit(0)
        if how == "raise":
            raise ValueError("on purpose")
        return leave(job, place, end(int(how), "its own reason"))
    from drivetrain.spec.exits import Failure

    try:
        while True:
            group.barrier()
    except Failure as failure:
        return leave(job, place, failure.outcome.to_json())


def hang(job, place, descriptors):
    """Never ends by itself; tells its pid."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    Path(job["folder"], f"pid-{place['rank']}").write_text(str(os.getpid()))
    time.sleep(600)
    return 0


def stoppable(job, place, descriptors):
    """Ends with 75 once it is asked to."""
    from drivetrain.runtime.signals import StopRequests

    with StopRequests() as stops:
        Path(job["folder"], f"pid-{place['rank']}").write_text(str(os.getpid()))
        while stops.requested is None:
            time.sleep(0.01)
    return leave(job, place, end(75, stops.requested))


def bereave(job, place, descriptors):
    """The first time, rank 0 ends the server that all are forked from."""
    mark = Path(job["folder"], "bereaved")
    if not mark.exists():
        mark.touch()
        os.kill(os.getppid(), signal.SIGKILL)
        time.sleep(60)
    return leave(job, place, end(0))


def with_another_rate(job, place, descriptors):
    """Trains, on rank 1 with another learning rate than the others."""
    from drivetrain.worker import main

    if place["rank"] == 1:
        job["recipe"]["optimizer"]["lr"] *= 2
    return main(job, place, descriptors)


def supervise_hanging(folder):
    """A supervisor of two workers that never end, for a test that kills it."""
    from drivetrain.launch.job import Job
    from drivetrain.launch.supervisor import supervise

    supervise(
        Job(folder=folder, recipe={}, origins={}, processes=2), worker="ranks:hang", preload=("torch", "torch._dynamo")
    )


if __name__ == "__main__":
    supervise_hanging(sys.argv[1])


def together(job, place, descriptors):
    """What a task asks of all processes: a file that one of them makes, a sum, and a failure of the one that makes.

    `job["overrides"]` is how many processes a machine has."""
    from drivetrain.runtime.mesh import Mesh
    from drivetrain.runtime.together import added, once, standing
    from drivetrain.spec.exits import Failure
    from drivetrain.spec.mesh import MeshSizes

    group = joined(place, descriptors)
    (here,) = job["overrides"]
    file = Path(job["folder"]) / f"downloaded-{group.rank // here}"

    def download():
        if not file.exists():
            file.write_text(f"by {group.rank}")
        return file.read_text()

    def fails():
        raise ValueError("no network")

    with standing(Mesh(group, MeshSizes(shard=2, tensor=group.world // 2)), first_here=group.rank % here == 0):
        text, total = once(download), added(1.0 + group.rank // 2)
        try:
            once(fails)
            refused = ""
        except ValueError as error:
            refused = f"own: {error}"
        except Failure as failure:
            refused = failure.outcome.cause
    told = group.gather_json({"text": text, "total": total, "refused": refused})
    group.close()
    return leave(job, place, end(0, json.dumps(told)))
