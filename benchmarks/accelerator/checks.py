"""All checks, in the order in which they run: what is wrong is told before what is slow."""

from __future__ import annotations

from accelerator import correctness, memory, speed
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
        check = correctness.Resumed(mesh)
        says = "the same bits after kill -9 and after a stop; losses beside one process"
        found.append(Check(name, check, says, 600, 200, check.devices))
    return found


CHECKS = (
    *_meshes(),
    Check("bits twice", correctness.same_twice, "two starts come to the same bits", 300, 60),
    Check("bits exact", correctness.exact, "exact mode: the same bits on any number of devices", 600, 120),
    Check("bits host", correctness.host, "losses in fp32 beside the CPU's", 300, 60),
    Check("vote", correctness.vote, "no step waits for the device, but where it is declared", 600, 60),
    Check("fp16", correctness.fp16, "steps that overflow are left out, and the scale is halved", 300, 60),
    Check("bf16", correctness.bf16, "losses of bf16 passes and weights beside fp32", 300, 60),
    Check("compile", correctness.compiled, "compiled blocks beside plain ones, and resumed", 900, 300),
    Check("graphs", correctness.graphs, "a captured step beside the eager one", 60, 60),
    Check("offload", correctness.offload, "state in the host's memory", 60, 60),
    Check("tables", correctness.tables, "embedding tables and their row optimizers", 300, 120),
    Check("kernels", correctness.kernels, "a right kernel is used, a wrong one refused", 300, 60),
    Check("memory trace", memory.trace, "bytes that a plan says beside those of real steps, on the CPU", 300, 60),
    Check("memory allocator", memory.allocator, "a plan's peak beside the allocator's: within 5 %", 600, 60),
    Check("memory limit", memory.limit, "a plan says go and no-go around a limit, and so it is", 600, 60),
    Check("memory galore-7b", memory.galore, "7 B parameters by GaLore at its own shape", 900, 120),
    Check("speed 160m", speed.Speed("160m"), "MFU; beside a loop by hand and the HF Trainer; a profile", 1200, 120),
    Check("speed 1.2b", speed.Speed("1.2b"), "the same at 1.2 B parameters", 1800, 120),
)
