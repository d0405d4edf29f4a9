"""Whether what runs on a device is right: bits after a stop and after a kill, sums over meshes, precision, waits."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import drivetrain
from accelerator import runs
from accelerator.check import Here, NotApplicableError, require
from accelerator.waits import waits_of
from drivetrain.ledger.derive import lineage
from drivetrain.ledger.ledger import read
from drivetrain.spec.exits import Exit, Failure

Figures = Mapping[str, Any]
CLOSE = {"fp32": 1e-4, "bf16": 2e-2, "fp16": 2e-2}
"""How far a loss may be from that of fp32 on one device, as a part of it: sums come in another order."""


def resumed(here: Here, mesh: Mapping[str, int]) -> Figures:
    """A run on a mesh, killed once and stopped once, beside one that was not; and its losses beside one process's."""
    world = math.prod(mesh.values())
    precision = "fp32" if here.reduced else "bf16"
    shape = runs.model(here)
    more: dict[str, Any] = {
        "launch": {"threads": 1, "processes": world},
        "task": {"kind": runs.DECODER, "model": shape},
    }
    if mesh:
        more["parallel"] = dict(mesh)
    made = runs.recipe(here, shape, precision=precision, **more)
    straight, halves = runs.train(made, here.folder / "straight"), here.folder / "halves"
    runs.train_killed(made | {"stop": {"at": [9]}}, halves, step=6, rank=world - 1)
    runs.train(made, halves)
    figures: dict[str, Any] = {"equal_tensors": runs.require_same_bits(straight, halves)}
    if world == 1:
        return figures
    wide = straight
    if precision != "fp32":
        wide = runs.train(made | {"precision": "fp32"}, here.folder / "wide")
    one = {"precision": "fp32", "parallel": {}, "launch": {"threads": 1}}
    alone = runs.train(made | one, here.folder / "alone")
    off = runs.furthest(runs.losses(alone), runs.losses(wide))
    require(off <= CLOSE["fp32"], f"losses are {off:.2g} from those of one process; {CLOSE['fp32']} is allowed")
    return figures | {"loss_off": off}


def same_twice(here: Here) -> Figures:
    """Two starts of one recipe."""
    made = runs.recipe(here, runs.model(here), precision="bf16")
    first, second = (runs.train(made, here.folder / name) for name in ("first", "second"))
    return {"equal_tensors": runs.require_same_bits(first, second)}


def exact(here: Here) -> Figures:
    """The same bits on one process and on several, in exact mode: none of its operations is without a deterministic
    kernel, or the run ends."""
    made = runs.recipe(here, runs.model(here), exact=True)
    alone = runs.train(made, here.folder / "alone")
    worlds = [world for world in (1, 2, 4) if world <= here.count][1:]
    if not worlds:
        runs.require_same_bits(alone, runs.train(made, here.folder / "again"))
        return {"compared": "two starts on one device"}
    equal = 0
    for world in worlds:
        many = runs.train(made | {"launch": {"processes": world}}, here.folder / f"on-{world}")
        equal = runs.require_same_bits(alone, many)
    return {"compared": f"1 with {worlds}", "equal_tensors": equal}


def vote(here: Here) -> Figures:
    """Where steps wait for the device: nowhere with optimizers that skip by themselves, once a step with others."""
    here.require_device("tests/run/test_devices.py looks for waits with the meta device in its place")
    if here.kind != "cuda":
        raise NotApplicableError(f"torch cannot tell what waits for {here.kind}")
    cases = {
        "adamw": {},
        "fp16": {"precision": "fp16"},
        "bf16 weights": {"precision": "bf16", "parameters": {"dtype": "bf16"}},
        "muon": {"optimizer": {"kind": "muon"}},
    }
    figures: dict[str, Any] = {}
    for name, changed in cases.items():
        made = runs.recipe(here, runs.model(here), **changed)
        with waits_of() as places:
            runs.train(made, here.folder / name)
        figures[name] = dict(places)
        allowed = {"engine/vote.py:vote_on_device"} if name == "muon" else set()
        require(set(places) <= allowed, f"{name}: steps wait for the device at {dict(places)}")
    return figures


def fp16(here: Here) -> Figures:
    """A loss scale that overflows at first: those steps are left out, it is halved, and training goes on."""
    changed = {"precision": "fp16", "scaling": {"start": 2.0**32, "window": 1000}, "budget": {"steps": 40}}
    run = runs.train(runs.recipe(here, runs.model(here), **changed), here.folder / "run")
    records, curve = runs.steps(run), runs.losses(run)
    left_out = [record.step for record in records if record.skipped]
    require(bool(left_out), "a loss scale of 2^32 made no gradient overflow")
    whys = {why for record in records for why in (record.skipped or {}).values()}
    require(whys == {"overflow"}, f"steps are left out as {whys}")
    scales = [record.scale for record in records]
    require(scales[-1] == 2.0**32 / 2 ** len(left_out), f"{len(left_out)} overflows, and the scale is {scales[-1]}")
    require(not records[-1].skipped, "steps are left out to the end")
    wide = runs.train(runs.recipe(here, runs.model(here)), here.folder / "wide")
    off = runs.furthest(runs.losses(wide)[:1], curve[:1])
    require(off <= CLOSE["fp16"], f"the first loss is {off:.2g} from that of fp32")
    require(all(map(math.isfinite, curve)), "a loss is not finite")
    return {"left_out": len(left_out), "scale": scales[-1], "first_loss_off": off}


def bf16(here: Here) -> Figures:
    """Losses of bf16 passes, and of bf16 weights with masters in fp32, beside those of fp32."""
    made = runs.recipe(here, runs.model(here))
    wide = runs.losses(runs.train(made, here.folder / "wide"))
    figures = {}
    for name, weights in (("passes", {}), ("weights", {"parameters": {"dtype": "bf16"}})):
        found = runs.losses(runs.train(made | {"precision": "bf16"} | weights, here.folder / name))
        figures[f"{name}_off"] = runs.furthest(wide, found)
    worst = max(figures.values())
    require(worst <= CLOSE["bf16"], f"losses are {worst:.2g} from those of fp32; {CLOSE['bf16']} is allowed")
    return figures


def compiled(here: Here) -> Figures:
    """Compiled blocks beside plain ones; and a compiled run that was stopped beside one that was not."""
    made = runs.recipe(here, runs.model(here))
    plain = runs.losses(runs.train(made, here.folder / "plain"))
    made = made | {"compile": {"scope": "block"}}
    straight = runs.train(made, here.folder / "straight")
    off = runs.furthest(plain, runs.losses(straight))
    require(off <= CLOSE["fp32"], f"losses are {off:.2g} from those without a compiler")
    for stop in ([5], []):
        runs.train(made | {"stop": {"at": stop}}, here.folder / "halves")
    equal = runs.require_same_bits(straight, here.folder / "halves")
    graphs = [record for record in lineage(read(straight / "ledger.jsonl")) if record.kind == "compile"]
    return {"loss_off": off, "equal_tensors": equal, "graphs": len(graphs)}


def graphs(here: Here) -> Figures:
    """The seam is `Engine._pass_over`; docs/compiling.md says what is missing."""
    raise NotApplicableError("no capture has landed: the seam alone is there, docs/compiling.md")


def offload(here: Here) -> Figures:
    """Weights or optimizer state in the host's memory."""
    raise NotApplicableError("the engine keeps nothing in the host's memory: no recipe can ask for it")


def kernels(here: Here) -> Figures:
    """A fused norm in the place of RMSNorm is used, and one that is a percent off is refused before a step."""
    made = runs.recipe(here, runs.model(here), precision="bf16")
    name = "layers.*.attention_norm"
    run = runs.train(made | {"kernels": {name: {"kind": "accelerator.tasks:Norm"}}}, here.folder / "right")
    notes = [record.text for record in lineage(read(run / "ledger.jsonl")) if record.kind == "note"]
    (told,) = [text for text in notes if text.startswith("kernels: ")]
    wrong = made | {"precision": "fp32", "kernels": {name: {"kind": "accelerator.tasks:WrongNorm"}}}
    try:
        runs.train(wrong, here.folder / "wrong")
    except Failure as failure:
        require(failure.outcome.code is Exit.BAD_RECIPE, f"a wrong kernel ends with {failure.outcome.line()}")
        return {"told": told.removeprefix("kernels: ")}
    require(False, "a kernel that is a percent off was not refused")
    return {}


def tables(here: Here) -> Figures:
    """Embedding tables of ours, whose rows fused optimizers move: stopped and not, and beside the CPU's losses."""
    made = {"device": here.kind, "budget": {"steps": 8}, "evaluate": {}, "checkpoint": {}, "launch": {"threads": 1}}
    made |= {"schedule": {"kind": "constant"}, "stop": {}}  # the recipe's own are for a longer run
    overrides = [f"{key}={json.dumps(value)}" for key, value in made.items()]
    try:
        for name, more in (("straight", [[]]), ("halves", [[4], []])):
            for stop in more:
                drivetrain.train("ctr-demo", [*overrides, f"stop.at={stop}"], run=here.folder / name, progress=False)
    except Failure as failure:
        if "does not go with embedding tables" in failure.outcome.cause and not here.reduced:
            raise NotApplicableError(f"refused (78): {failure.outcome.cause}") from failure
        raise
    equal = runs.require_same_bits(here.folder / "straight", here.folder / "halves")
    if here.reduced:
        return {"equal_tensors": equal}
    drivetrain.train("ctr-demo", [*overrides, "device=cpu"], run=here.folder / "host", progress=False)
    off = runs.furthest(runs.losses(here.folder / "host"), runs.losses(here.folder / "straight"))
    require(off <= CLOSE["fp32"], f"losses are {off:.2g} from the CPU's")
    return {"equal_tensors": equal, "loss_off": off}


def host(here: Here) -> Figures:
    """The first steps in fp32 beside the same on the CPU."""
    here.require_device("this is the CPU")
    made = runs.recipe(here, runs.model(here), matmul="highest")
    own = runs.losses(runs.train(made, here.folder / "device"))
    off = runs.furthest(runs.losses(runs.train(made | {"device": "cpu"}, here.folder / "host")), own)
    require(off <= 1e-3, f"losses are {off:.2g} from the CPU's")
    return {"loss_off": off}
