"""All checks, in the order in which they run: what is wrong is told before what is slow."""

from __future__ import annotations

from math import prod

from accelerator.check import Check

_MESHES = (
    {},
    {"replicate": 2},
    {"shard": 2},
    {"tensor": 2},
    {"pipeline": 2},
    {"replicate": 2, "shard": 2},
    {"shard": 2, "tensor": 2},
    {"pipeline": 2, "shard": 2},
    {"pipeline": 2, "tensor": 2},
    {"shard": 8},
    {"replicate": 2, "shard": 2, "tensor": 2},
    {"pipeline": 2, "shard": 2, "tensor": 2},
)


def _meshes() -> list[Check]:
    found = []
    for mesh in _MESHES:
        name = "mesh " + (" ".join(f"{axis} {size}" for axis, size in mesh.items()) or "one process")
        says = "the same bits after kill -9 and after a stop; losses beside one process"
        where = "accelerator.correctness:resumed"
        found.append(Check(name, where, says, 600, 400, prod(mesh.values()), {"mesh": mesh}))
    return found


def _right(name: str, function: str, says: str, seconds: int = 300, reduced: int = 240) -> Check:
    return Check(name, f"accelerator.correctness:{function}", says, seconds, reduced)


def _memory(name: str, function: str, says: str, seconds: int = 600, reduced: int = 240) -> Check:
    return Check(f"memory {name}", f"accelerator.memory:{function}", says, seconds, reduced)


def _speed(size: str, says: str, seconds: int) -> Check:
    return Check(f"speed {size}", "accelerator.speed:speed", says, seconds, 240, arguments={"size": size})


CHECKS = (
    *_meshes(),
    _right("bits twice", "same_twice", "two starts come to the same bits"),
    _right("bits exact", "exact", "exact mode: the same bits on any number of devices", 600, 240),
    _right("bits host", "host", "losses in fp32 beside the CPU's"),
    _right("vote", "vote", "no step waits for the device, but where it is declared", 600),
    _right("fp16", "fp16", "steps that overflow are left out, and the scale is halved"),
    _right("bf16", "bf16", "losses of bf16 passes and weights beside fp32"),
    _right("compile", "compiled", "compiled blocks beside plain ones, and resumed", 900, 300),
    _right("graphs", "graphs", "a captured step beside the eager one"),
    _right("offload", "offload", "state in the host's memory"),
    _right("tables", "tables", "embedding tables and their row optimizers", 300, 240),
    _right("kernels", "kernels", "a right kernel is used, a wrong one refused"),
    _memory("trace", "trace", "bytes that a plan says beside those of real steps, on the CPU"),
    _memory("allocator", "allocator", "a plan's peak beside the allocator's: within 5 %"),
    _memory("limit", "limit", "a plan says go and no-go around a limit, and so it is"),
    _memory("galore-7b", "galore", "7 B parameters by GaLore at its own shape", 900, 240),
    _speed("160m", "MFU; beside a loop by hand and the HF Trainer; a profile", 1200),
    _speed("1.2b", "the same at 1.2 B parameters", 1800),
)
