"""The batch: size = samples of a micro-batch x accumulation x processes that read samples of their own."""

from __future__ import annotations

from dataclasses import dataclass

from drivetrain.spec.importing.deepspeed.layout import TENSOR
from drivetrain.spec.importing.findings import Gap
from drivetrain.spec.importing.rules import ABSENT, Key, Keys

_SIZE: Key = ("train_batch_size",)
_MICRO: Key = ("train_micro_batch_size_per_gpu",)
_ACCUMULATION: Key = ("gradient_accumulation_steps",)
_FITS = 2**10 * 9 * 5 * 7 * 11 * 13  # a multiple of all numbers of lanes that somebody may want


@dataclass(frozen=True)
class _Batch:
    """What the file says, None where it does not; `copies` are the processes that read samples of their own."""

    size: int | None
    micro: int | None
    accumulation: int | None
    copies: int | None

    @property
    def steps(self) -> int:
        """Micro-batches of a step, where nothing else is said."""
        return self.accumulation or 1


def take_batch(keys: Keys, group: int) -> None:
    """`batch.size` and `batch.micro`; what DeepSpeed computes is computed here if the number of processes is known."""
    before = len(keys.findings.mistakes)
    found = _Batch(keys.whole(_SIZE), keys.whole(_MICRO), keys.whole(_ACCUMULATION), _copies(keys))
    if len(keys.findings.mistakes) > before:
        return
    _check(keys, found)
    if keys.value(_ACCUMULATION) is not ABSENT:
        keys.spare(_ACCUMULATION, "follows from batch.size, batch.micro and the number of processes")
    _take_size(keys, found, group)
    _take_micro(keys, found)


def _copies(keys: Keys) -> int | None:
    processes = keys.findings.source.processes
    if processes is None:
        return None
    for key in (TENSOR, ("sequence_parallel_size",)):
        shared = keys.whole(key, 0) or 1
        if processes % shared:
            keys.mistake(key, f"{shared} does not divide {processes} processes")
            return None
        processes //= shared
    return processes


def _check(keys: Keys, found: _Batch) -> None:
    """Mistakes where no number of processes, or not the one that is known, makes the numbers fit."""
    if found.size is None:
        return
    given = {_MICRO[0]: found.micro, _ACCUMULATION[0]: found.accumulation}
    factors = {name: number for name, number in given.items() if number is not None}
    shares = (found.micro or 1) * found.steps
    named = [f"{name} {number}" for name, number in factors.items()]
    if found.copies is not None:
        shares *= found.copies
        named.append(f"{found.copies} processes")
    product = " x ".join(named)
    if found.size % shares:
        keys.mistake(_SIZE, f"{found.size} is no multiple of {product}")
    elif found.size != shares and found.copies is not None and len(factors) == len(given):
        keys.mistake(_SIZE, f"{found.size} is not {product} = {shares}")


def _take_size(keys: Keys, found: _Batch, group: int) -> None:
    if found.size is not None:
        keys.take(_SIZE, "batch.size", found.size)
        return
    share = (found.micro or 1) * found.steps
    stand_in = share * (keys.findings.source.processes or group) * _FITS
    open_ = any(keys.is_auto(key) for key in (_SIZE, _MICRO, _ACCUMULATION))
    if keys.is_auto(_SIZE):
        what = "the HF Trainer's --per_device_train_batch_size x --gradient_accumulation_steps x processes"
        keys.leave(_SIZE, "batch.size", what, stand_in)
    elif found.micro is None or open_:
        what = "samples per optimizer step, over all processes"
        keys.findings.gaps.append(Gap(("batch", "size"), what, stand_in))
    elif found.copies is None:
        what = f"{found.micro} x {found.steps} x processes (samples per forward pass x passes x processes)"
        keys.findings.gaps.append(Gap(("batch", "size"), what, stand_in, by=()))
    else:
        note = f"{found.micro} x {found.steps} x {found.copies} processes"
        keys.take(_SIZE, "batch.size", share * found.copies, note)


def _take_micro(keys: Keys, found: _Batch) -> None:
    if found.micro is not None:
        keys.take(_MICRO, "batch.micro", found.micro)
    elif keys.is_auto(_MICRO):
        keys.leave(_MICRO, "batch.micro", "the HF Trainer's --per_device_train_batch_size", 1)
    elif found.steps == 1 and not keys.is_auto(_ACCUMULATION):
        keys.take(_MICRO, "batch.micro", None, "a process's whole share at once")
    elif found.size is not None and found.copies is not None and not keys.is_auto(_ACCUMULATION):
        note = f"{found.size} / {found.steps} / {found.copies} processes"
        keys.take(_MICRO, "batch.micro", found.size // found.steps // found.copies, note)
    else:
        passes = found.accumulation or "the number of passes"
        what = f"samples per forward pass: batch.size / {passes} / processes"
        keys.findings.gaps.append(Gap(("batch", "micro"), what, 1, by=()))
