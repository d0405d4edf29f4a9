"""What runs on a Ray cluster: a driver that places the nodes of a job, and starts them again together."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from drivetrain.launch.attempts import LONGEST_PAUSE, PAUSE
from drivetrain.launch.submission import NodeWork
from drivetrain.launch.targets.container import AGAIN, WORTH_AGAIN, start_worker
from drivetrain.launch.targets.remote import unpacked
from drivetrain.spec.exits import Exit

PARCEL = "DRIVETRAIN_PARCEL"
"""The variable that carries the work."""
NEEDS = "DRIVETRAIN_NEEDS"
"""The variable with what each node needs of Ray's resources, as JSON."""
_PREFIX = re.compile(r"(?:\x1b\[\d+m)*\(node-(\d+) pid=[^)]*\)(?:\x1b\[\d+m)* ?(.*)")
_TICK = 0.5  # seconds
_PATIENCE = 60.0  # seconds that the other nodes have to end by themselves once one has failed


def prefix_of(line: str) -> tuple[int | None, str]:
    """The node that printed a line, which Ray puts before it, and the line; None for the driver's own."""
    match = _PREFIX.match(line)
    if match is None:
        return None, line
    return int(match.group(1)), match.group(2)


class NodeActor:
    """One machine's part, as an actor. Its methods run beside each other, so that it can be stopped."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._process: Any = None
        self._stopped = False

    def __repr__(self) -> str:
        """How Ray begins the lines that it prints."""
        return f"node-{self._number}"

    def address(self) -> tuple[str, int]:
        """Where the other nodes reach this one, and a port that is free there."""
        host = _ray("ray.util").get_node_ip_address()
        with socket.socket() as probe:
            probe.bind((host, 0))
            return host, probe.getsockname()[1]

    def run(self, text: str, variables: Mapping[str, str]) -> int:
        """Run `drivetrain worker` to its end; 69 where it was killed, 75 where it was stopped before it could hear."""
        if self._stopped:
            return Exit.STOPPED
        with tempfile.TemporaryDirectory(prefix="drivetrain-") as folder:
            self._process = start_worker(Path(folder), text, variables)
            code = self._process.wait()
        if code >= 0:
            return code
        return Exit.STOPPED if self._stopped else AGAIN

    def stop(self) -> None:
        """Ask for a commit and an end."""
        self._stopped = True
        if self._process is not None:
            self._process.terminate()


class Driver:
    """Attempts of one job. `asked` is whether it is to stop."""

    def __init__(self, text: str, needs: Mapping[str, float]) -> None:
        self._text = text
        self._work = NodeWork.from_json(json.loads(text))
        self._needs = dict(needs)
        self.asked = False

    def run(self) -> int:
        """The exit code of the last attempt. What is worth it is tried again, as often as the job may be."""
        code = int(AGAIN)
        for attempt in range(self._work.retries + 1):
            code = self._attempt(attempt)
            print(f"drivetrain: attempt {attempt} ended with {code}", flush=True)
            if self.asked or code not in WORTH_AGAIN:
                break
            self._pause(min(LONGEST_PAUSE, PAUSE * 2**attempt))
        return code

    def _pause(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while not self.asked and time.monotonic() < end:
            time.sleep(_TICK)

    def _attempt(self, number: int) -> int:
        """All nodes once, each on a machine of its own; waits until there are enough of them."""
        ray, groups = _ray("ray"), _ray("ray.util.placement_group")
        # Made anew for each attempt: on the machines that are there by then, and after a loss others than before.
        group = groups.placement_group([self._needs] * self._work.nodes, strategy="STRICT_SPREAD")
        ready = group.ready()
        try:
            while not ray.wait([ready], timeout=_TICK)[0]:
                if self.asked:
                    return Exit.STOPPED
            return _ended(self._wait(self._placed(group), number))
        except _ray("ray.exceptions").RayError as error:
            print(f"drivetrain: a machine was lost: {type(error).__name__}", flush=True)
            return AGAIN
        finally:
            groups.remove_placement_group(group)

    def _placed(self, group: Any) -> list[Any]:
        ray, placed = _ray("ray"), _ray("ray.util.scheduling_strategies").PlacementGroupSchedulingStrategy
        cpus, gpus = self._needs.get("CPU", 0), self._needs.get("GPU", 0)
        nodes = []
        for number in range(self._work.nodes):
            place = placed(group, placement_group_bundle_index=number)
            # Two calls at once: `stop` has to reach an actor whose `run` has not returned.
            actor = ray.remote(NodeActor).options(
                num_cpus=cpus, num_gpus=gpus, max_concurrency=2, scheduling_strategy=place
            )
            nodes.append(actor.remote(number))
        return nodes

    def _wait(self, nodes: Sequence[Any], attempt: int) -> list[int]:
        """The codes of all nodes; of those that do not end by themselves after another has failed, 69."""
        ray, lost = _ray("ray"), _ray("ray.exceptions").RayError
        host, port = ray.get(nodes[0].address.remote())
        told = {
            "DRIVETRAIN_NODES": str(len(nodes)),
            "DRIVETRAIN_ADDRESS": host,
            "DRIVETRAIN_PORT": str(port),
            "DRIVETRAIN_ATTEMPT": str(attempt),
        }
        running = []
        for number, node in enumerate(nodes):
            running.append(node.run.remote(self._text, {**told, "DRIVETRAIN_NODE": str(number)}))
        codes: list[int] = []
        stopped, patience = False, float("inf")
        while running and time.monotonic() < patience:
            if self.asked and not stopped:
                stopped = True
                ray.get([node.stop.remote() for node in nodes])
            done, running = ray.wait(running, timeout=_TICK)
            for one in done:
                try:
                    codes.append(ray.get(one))
                except lost:  # with its machine
                    codes.append(AGAIN)
            # From the first failure on: those that wait for the lost one notice it by themselves, or never.
            if any(codes):
                patience = min(patience, time.monotonic() + _PATIENCE)
        return codes + [int(AGAIN)] * len(running)


def _ended(codes: Sequence[int]) -> int:
    """What all nodes together end with: what must not be tried again outweighs what may, and that what is done."""
    failed = [code for code in codes if code]
    if not failed:
        return Exit.DONE
    return min(failed, key=lambda code: code in WORTH_AGAIN)


def _ray(module: str) -> Any:
    """A module of Ray's, which is there where this runs, and nowhere else."""
    return import_module(module)


def main() -> int:
    """Run the job of the environment on the cluster that this driver is in."""
    driver = Driver(unpacked(os.environ[PARCEL]), json.loads(os.environ[NEEDS]))

    def stop(*_: object) -> None:
        driver.asked = True

    # In this order: Ray's `init` sets handlers of its own.
    _ray("ray").init(address="auto")
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    return driver.run()


if __name__ == "__main__":
    sys.exit(main())
