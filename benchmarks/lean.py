"""What a language model's memory-lean parts take, beside the plain ones: `python benchmarks/lean.py {head,documents}`.

head: the output layer and the loss, forward and backward, by vocabulary: all logits at once, in chunks
(`task.logits_chunk`), and torch's own chunks (from 2.13 on). documents: a step of the shipped decoder on documents kept
apart: one mask for all, document by document, and one padded document a sample. The parts take turns in one process of
one thread; times are the processor's, ratios those of neighbours; peaks are resident memory beyond what was there
before (VmHWM; needs Linux).
"""

from __future__ import annotations

import argparse
import ctypes
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from drivetrain.data.packing import IGNORED
from drivetrain.tasks.language_model import llama
from drivetrain.tasks.language_model.linear_cross_entropy import linear_cross_entropy
from drivetrain.tasks.language_model.recipe import Llama as Settings

MB = 1_000_000
LIBC = ctypes.CDLL(None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=["head", "documents"])
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--tokens", type=int, default=2048, help="in a micro-batch; documents: 4 samples of a quarter")
    parser.add_argument("--vocabularies", type=int, nargs="+", default=[32_000, 128_000])
    parser.add_argument("--chunks", type=int, nargs="+", default=[])
    asked = parser.parse_args()
    torch.set_num_threads(1)
    if asked.part == "documents":
        documents(asked.tokens, asked.width, asked.rounds)
        return
    for vocabulary in asked.vocabularies:
        for dtype in (torch.float32, torch.bfloat16):
            title = f"vocabulary {vocabulary:,}, {asked.tokens} tokens, width {asked.width}, {dtype}"
            compare(title, heads(vocabulary, asked.width, asked.tokens, dtype, asked.chunks), asked.rounds)


def heads(
    vocabulary: int, width: int, tokens: int, dtype: torch.dtype, chunks: list[int]
) -> dict[str, Callable[[], Tensor]]:
    """Losses of the same numbers; with bf16 under autocast."""
    x = torch.randn(tokens, width, requires_grad=True)
    weight = torch.randn(vocabulary, width).mul_(0.02).requires_grad_()
    targets = torch.randint(vocabulary, (tokens,))

    def cast(loss: Callable[[], Tensor]) -> Tensor:
        x.grad = weight.grad = None
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype == torch.bfloat16):
            value = loss()
        value.backward()
        return value.detach()

    def plain() -> Tensor:
        return F.cross_entropy(F.linear(x, weight).float(), targets, reduction="sum")

    found: dict[str, Callable[[], Tensor]] = {"plain": partial(cast, plain)}
    for chunk in ("auto", *chunks):
        found[f"chunk {chunk}"] = partial(cast, partial(linear_cross_entropy, x, weight, targets, chunk))
    # Torch's own does not heed autocast.
    if dtype == torch.float32 and hasattr(F, "linear_cross_entropy"):
        options = torch.nn.LinearCrossEntropyOptions()
        own = partial(F.linear_cross_entropy, x, weight, targets, reduction="sum", options=options)
        found["torch's own"] = partial(cast, own)
    return found


def documents(tokens: int, width: int, rounds: int) -> None:
    context = tokens // 4
    settings = Settings(width=width, depth=2, heads=8, context=context, vocabulary=1024)
    model, rng = llama.Llama(settings).train(), np.random.default_rng(0)
    for mean in (context // 8, context // 2):
        lengths: list[int] = []
        while sum(lengths) < tokens:
            lengths.append(int(np.clip(rng.exponential(mean), 1, context)))
        packed = _batch(np.repeat(np.arange(len(lengths)), lengths)[:tokens].reshape(4, context))
        padded = _batch(np.where(np.arange(context) < np.array(lengths)[:, None], 0, -1))
        there = sum(map(min, lengths, [context] * len(lengths)))
        parts = {
            "masked": partial(_step, model, packed, llama.within),
            "by document": partial(_step, model, packed, llama.blocks_of),
            f"padded ({len(lengths)} samples)": partial(_step, model, padded, llama.within),
        }
        compare(f"{there} tokens in {len(lengths)} documents, 4 x {context} packed, width {width}", parts, rounds)


def _batch(owners: np.ndarray) -> Mapping[str, Tensor]:
    found = torch.from_numpy(owners)
    tokens = torch.randint(1024, found.shape)
    return {"tokens": tokens, "documents": found, "targets": tokens.where(found >= 0, IGNORED)}


def _step(model: llama.Llama, batch: Mapping[str, Tensor], apart: Callable[[Tensor], object]) -> Tensor:
    model.zero_grad()
    llama._apart = apart  # type: ignore[assignment] - which of the two is the machine's choice otherwise
    logits = model(batch["tokens"], batch["documents"])
    value = F.cross_entropy(logits.flatten(0, 1), batch["targets"].flatten(), reduction="sum")
    value.backward()
    return value.detach()


def compare(title: str, parts: Mapping[str, Callable[[], Tensor]], rounds: int) -> None:
    """Print seconds, their ratio to the first part's, peaks and values."""
    seconds: dict[str, list[float]] = {name: [] for name in parts}
    peaks: dict[str, float] = {}
    values: dict[str, float] = {}
    for _ in range(rounds + 1):
        for name, part in parts.items():
            LIBC.malloc_trim(0)
            before = _resident("VmRSS")
            Path("/proc/self/clear_refs").write_text("5")
            began = time.process_time()
            values[name] = float(part())
            seconds[name].append(time.process_time() - began)
            peaks[name] = _resident("VmHWM") - before
    first = seconds[next(iter(parts))][1:]
    print(title)
    for name, each in seconds.items():
        ratios = sorted(own / other for own, other in zip(each[1:], first, strict=True))
        tenth = len(ratios) // 10
        spread = f"{ratios[tenth]:.2f} to {ratios[-1 - tenth]:.2f}"
        told = f"{median(each[1:]):.3f} s, {median(ratios):.2f} ({spread}), peak {peaks[name] / MB:.0f} MB"
        print(f"  {name:<24} {told}, value {values[name]:.3f}")


def _resident(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * 1024
    raise LookupError(field)


if __name__ == "__main__":
    main()
