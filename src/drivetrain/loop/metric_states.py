"""The states of torchmetrics' metrics, and of whatever is made like them: read, sent, merged.

They are known by what they have (`_defaults`, `_reductions`), so nothing is imported for them. They never talk to other
processes by themselves: lanes are merged here, in their order, whatever the number of processes.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

States = dict[str, dict[str, Any]]
"""By the part of a metric: how often it was updated (`updates`), and its tensors and lists by name (`held`)."""
_LENGTH = 8  # bytes that say how long a message's header is


def holds_states(metric: Any) -> bool:
    """Whether a metric is one of torchmetrics', a collection or wrapper of such, or made like them."""
    return isinstance(metric, nn.Module) and hasattr(metric, "compute") and bool(_parts(metric))


def made_ready(metric: nn.Module, device: torch.device) -> None:
    """Put a fresh metric on the device that batches come on, and keep it from talking to other processes."""
    for part in _parts(metric).values():
        part.sync_on_compute = part.dist_sync_on_step = part._to_sync = False
        part.distributed_available_fn = _never
    metric.to(device)


def was_updated(metric: nn.Module) -> bool:
    """Whether it has seen anything."""
    return any(_updates(part) for part in _parts(metric).values())


def states_of(metric: nn.Module) -> States:
    """What one lane's metric holds, on the CPU."""
    found: States = {}
    for name, part in _parts(metric).items():
        held = {state: _on_host(getattr(part, state)) for state in part._defaults}
        found[name] = {"updates": _updates(part), "held": held}
    return found


def put_merged(fresh: nn.Module, lanes: Sequence[States]) -> None:
    """Put what lanes hold, in their order, into a fresh metric on the CPU, as if it had seen all of it."""
    for name, part in _parts(fresh).items():
        # One that saw nothing holds defaults, which would move a mean and be one more row of what is stacked.
        seen = [lane[name] for lane in lanes if lane[name]["updates"]]
        if not seen:
            continue
        weights = [lane["updates"] for lane in seen]
        for state in part._defaults:
            setattr(part, state, _merged([lane["held"][state] for lane in seen], weights, part._reductions[state]))
        part._update_count = sum(weights)


def packed(states: Any) -> bytes:
    """JSON data with tensors in it as bytes. Raises TypeError where there is anything else."""
    tensors: list[Tensor] = []

    def hold(value: Any) -> dict[str, Any]:
        if not isinstance(value, Tensor):
            raise TypeError(f"a metric's state holds {type(value).__name__}, neither tensors nor JSON data")
        tensors.append(value)
        return {"dtype": str(value.dtype).removeprefix("torch."), "shape": list(value.shape)}

    header = json.dumps(states, default=hold).encode()
    return b"".join([len(header).to_bytes(_LENGTH, "little"), header, *map(_bytes, tensors)])


def unpacked(message: bytes) -> Any:
    """What was packed."""
    end = _LENGTH + int.from_bytes(message[:_LENGTH], "little")
    place = end

    def take(found: dict[str, Any]) -> Any:
        nonlocal place
        if found.keys() != {"dtype", "shape"}:
            return found
        whole = torch.empty(found["shape"], dtype=getattr(torch, found["dtype"]))
        start, place = place, place + whole.nbytes
        if whole.nbytes:
            whole = torch.frombuffer(bytearray(message[start:place]), dtype=whole.dtype).reshape(whole.shape)
        return whole

    # Inner objects come first, in the order in which they were written: that of the tensors behind the header.
    return json.loads(message[_LENGTH:end], object_hook=take)


def _bytes(tensor: Tensor) -> bytes:
    # A copy: what has one number may have any stride, and counts as contiguous.
    whole = tensor.clone(memory_format=torch.contiguous_format).reshape(-1)
    return whole.view(torch.uint8).numpy().tobytes() if len(whole) else b""


def _parts(metric: nn.Module) -> dict[str, Any]:
    """The metrics in a metric that hold states, itself included, by their names in it."""
    if isinstance(metric, nn.ModuleDict):
        list(metric.values())  # a collection updates one of those that hold the same, until somebody looks
    found: dict[str, Any] = {}
    for name, module in metric.named_modules():
        if hasattr(module, "_defaults") and hasattr(module, "_reductions"):
            found[name] = module
    return found


def _updates(part: Any) -> int:
    return getattr(part, "_update_count", 1)


def _never() -> bool:
    return False


def _on_host(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach().cpu()
    if isinstance(value, (list, tuple)):
        return [_on_host(part) for part in value]
    return value


def _merged(values: Sequence[Any], weights: Sequence[int], reduction: Any) -> Any:
    """One state of several lanes. A list stays one: that is what `compute` sees of a metric that is alone."""
    if isinstance(values[0], list):
        return [part for value in values for part in value]
    if len(values) == 1:
        return values[0]
    kind = getattr(reduction, "__name__", "")
    if kind == "dim_zero_cat":
        return torch.cat([torch.atleast_1d(value) for value in values])
    whole = torch.stack(list(values))
    if kind == "dim_zero_mean":  # of so many updates each
        shares = torch.tensor(weights, dtype=torch.float64) / sum(weights)
        return (whole.movedim(0, -1).double() @ shares).to(whole.dtype)
    return whole if reduction is None else reduction(whole)
