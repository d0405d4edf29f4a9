"""Networks as programs of `torch.export`, with what a service needs beside them: weights, and how features are made."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram
from torch.func import functional_call

from drivetrain.checkpoint.export import Exported
from drivetrain.engine.tables.keys import KEY
from drivetrain.engine.tables.module import Embeddings, Lookup, key_names, parameter_name, pooled, rows_of_keys
from drivetrain.runtime.mistakes import returned
from drivetrain.serving.arrays import Ragged
from drivetrain.serving.features import FeatureSpec
from drivetrain.serving.hashing import NAME
from drivetrain.serving.scorer import FORMAT, LOOKUP, Inputs, inputs_of
from drivetrain.tasks.ranking.features import OpenedLookup
from drivetrain.tasks.ranking.models import Inputs as ModelInputs
from drivetrain.tasks.ranking.models import Ranker
from drivetrain.tasks.ranking.recipe import Feature

Weights = Mapping[str, Tensor]
SORTED = "sorted"
"""The part of a program that has the keys of tables in order: sorted.keys_TABLE, and sorted.rows_TABLE."""
_OFFSETS = np.array([0, 1, 3, 5])
"""Lists of the samples that a program is traced with: so many samples, ids, and ids of the longest list. All of it is
dynamic, and no two numbers are alike: torch might take them for one."""


@dataclass(frozen=True)
class Program:
    """What is to be exported: what is said of samples, by name, by what a ranker's model is given of their features.

    `lookups` are those of its tables. Lists of features in `whole` are padded; others are bags, which come to their sum
    or mean.
    """

    features: Mapping[str, Feature]
    lookups: tuple[Lookup, ...]
    said: Callable[[ModelInputs], Mapping[str, Tensor]]
    whole: frozenset[str] = frozenset()
    folder: str = ""


@dataclass(frozen=True)
class Reading:
    """How features are made of columns: of the samples' own; and of tables beside them, each with the column that has
    its key. `nulls` are texts that stand for no value."""

    own: Mapping[str, FeatureSpec]
    beside: Mapping[str, OpenedLookup]
    by: Mapping[str, str]
    nulls: tuple[str, ...]


class Served(nn.Module):
    """A ranker's parts, by their names in it, as a function of a program's inputs."""

    def __init__(self, ranker: Ranker, program: Program) -> None:
        super().__init__()
        self.embeddings, self.model = ranker.embeddings, ranker.model
        self._program = program
        self.sorted = nn.Module()
        for table in _keyed(self.embeddings, program):
            for kind in ("keys", "rows"):
                self.sorted.register_buffer(f"{kind}_{table}", torch.empty(0, dtype=torch.int64))

    def forward(self, inputs: Inputs) -> dict[str, Tensor]:
        """What is said of each sample, by name."""
        ids, vectors = inputs["ids"], {}
        for lookup in self._program.lookups:
            name = lookup.feature
            rows = self._rows(lookup.table, ids[name])
            # By attribute: a call that is given weights has plain tensors in the parameters' places.
            table, weights = getattr(self.embeddings, parameter_name(lookup.table)), inputs["id_weights"].get(name)
            if name in inputs["offsets"]:
                total = F.embedding_bag(
                    rows,
                    table,
                    starts := inputs["offsets"][name],
                    mode="sum",
                    per_sample_weights=weights,
                    include_last_offset=True,
                )
                if lookup.pooling == "mean":  # by how many ids there are, weighted or not, as `pooled` has it
                    total = total / starts.diff().clamp(min=1).unsqueeze(1)
                vectors[name] = total
            else:
                vectors[name] = pooled(table, rows, weights, lookup.pooling)
        return dict(self._program.said(ModelInputs(vectors, inputs["numbers"], ids)))

    def _rows(self, table: str, ids: Tensor) -> Tensor:
        """The rows of ids, which are rows already where the table has no keys."""
        if self.embeddings.tables[table].keyed is None:
            return ids
        return rows_of_keys(ids, getattr(self.sorted, f"keys_{table}"), getattr(self.sorted, f"rows_{table}"))


class WithWeights(nn.Module):
    """A network as a function of its weights, too: a program has none of its own, and any file may hold them."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self._network = (network,)  # in a tuple, where its parameters are not found

    def forward(self, weights: Weights, inputs: Inputs) -> dict[str, Tensor]:
        """What the network gives of the inputs with these weights."""
        return functional_call(self._network[0], dict(weights), (inputs,))


def tensors_for_programs(ranker: nn.Module) -> dict[str, Tensor]:
    """Buffers that no commit has: they are what the model makes them to be."""
    kept = ranker.state_dict()
    return {name: buffer for name, buffer in ranker.named_buffers() if name not in kept}


def is_of_program(name: str) -> bool:
    """Whether a tensor of an export, by its name, is none of the network's."""
    return name.startswith((LOOKUP, f"{SORTED}."))


def exported(ranker: Ranker, tensors: Weights, program: Program, reading: Reading) -> Exported:
    """A folder of an export: graph, weights, how features are made, and what scores by them.

    `tensors` are the network's of a commit, by name. Raises Failure(70) where torch cannot trace the model.
    """
    network = Served(ranker, program).eval()
    keys = _key_tensors(ranker.embeddings, program, tensors)
    given = tensors_for_programs(ranker) | dict(tensors) | _in_order(ranker.embeddings, program, tensors)
    weights = {name: given[name] for name in sorted(given) if name not in keys}
    graph = _traced(network, weights, program)
    # Traced once to see what it looks at, and again without the rest: a program takes exactly the weights that it is
    # given.
    unused = _unused(graph, weights)
    if unused:  # those of another tower, say
        weights = {name: tensor for name, tensor in weights.items() if name not in unused}
        graph = _traced(network, weights, program)
    types = _types(weights)
    outputs = graph.call_spec.out_spec
    assert outputs is not None, "it gives a dict"
    own = {name: reading.own[name].to_json() for name in sorted(program.features) if name in reading.own}
    embedded = {each.feature: {"table": each.table, "pooling": each.pooling} for each in program.lookups}
    used = {feature.lookup for feature in program.features.values()}
    sides = {name: side for name, side in reading.beside.items() if name in used}
    by = {name: reading.by[name] for name in sides}
    # In it is all that a service needs beside tensors: it has no recipe, and no package of ours but `serving`.
    spec = {
        "format": FORMAT,
        "hash": {"function": NAME, "seed": 0},
        "features": own,
        "lookups": by,
        "embedded": embedded,
        "padded": sorted(program.whole),
        "nulls": list(reading.nulls),
        "outputs": outputs.context,
        "training": sorted(keys),
    }
    weights |= keys
    for name, side in sides.items():
        weights |= _tensors_beside(name, side, program)
    parts = {"model.pt2": _saved(graph), **_sources()}
    return Exported(weights, spec, settings="features", files=parts, folder=program.folder, types=types)


def _keyed(embeddings: Embeddings, program: Program) -> list[str]:
    """The tables of a program whose rows belong to keys."""
    return sorted({each.table for each in program.lookups if embeddings.tables[each.table].keyed is not None})


def _key_tensors(embeddings: Embeddings, program: Program, tensors: Weights) -> dict[str, Tensor]:
    """What a run that begins at an export wants to know of keys, and no program."""
    found = {}
    for table in _keyed(embeddings, program):
        for name in key_names(table):
            found[f"embeddings.{name}"] = tensors[f"embeddings.{name}"]
    return found


def _in_order(embeddings: Embeddings, program: Program, tensors: Weights) -> dict[str, Tensor]:
    """The keys of tables, ascending, and the row of each: sorted once, and not by each process or call that scores."""
    found = {}
    for table in _keyed(embeddings, program):
        keys, rows = tensors[f"embeddings.keys_{table}"][:, KEY].sort()
        found |= {f"{SORTED}.keys_{table}": keys, f"{SORTED}.rows_{table}": rows}
    return found


def _traced(network: Served, weights: Weights, program: Program) -> ExportedProgram:
    inputs = _example(program)
    # From 0 on: a service may be asked about nothing, and torch would make a special case of 1.
    samples, sizes = Dim("samples", min=0), {}
    for name in inputs["ids"]:
        sizes[name] = Dim(f"ids_{name}", min=0)
    shapes: dict[str, dict[str, Any]] = {part: {} for part in inputs}
    for part, tensors in inputs.items():
        for name, tensor in tensors.items():
            shapes[part][name] = {0: samples}
            if part == "offsets":
                shapes[part][name] = {0: samples + 1}
            elif name in inputs["offsets"]:
                shapes[part][name] = {0: sizes[name]}
            elif tensor.ndim > 1 and part != "numbers":
                shapes[part][name] = {0: samples, 1: sizes[name]}
    dynamic = dict.fromkeys(weights), shapes
    given = {name: _like(tensor) for name, tensor in weights.items()}
    try:
        with torch.no_grad():
            graph = torch.export.export(WithWeights(network), (given, inputs), dynamic_shapes=dynamic, strict=False)
    except Exception as error:
        told = str(error).strip().partition("\n")[0]
        cause = f"torch.export cannot make a program of the model: {told}"
        hint = "take what depends on values, or on how many samples there are, out of its forward"
        raise returned(network.model.forward, cause, hint) from error
    graph.example_inputs = None  # they are pickled, and here they are all weights
    for node in graph.graph.nodes:
        node.meta.pop("stack_trace", None)  # names of files on this machine
    return graph


def _types(weights: Weights) -> dict[str, torch.dtype]:
    """Of weights that are kept in bf16 fp32, in which programs compute."""
    return {name: torch.float32 for name, tensor in weights.items() if tensor.dtype == torch.bfloat16}


def _like(tensor: Tensor) -> Tensor:
    """What a program is traced with in place of a weight. Nobody looks at its numbers."""
    return torch.empty(tensor.shape) if tensor.dtype == torch.bfloat16 else tensor


def _example(program: Program) -> Inputs:
    """A batch of a program's inputs."""
    count, ids = len(_OFFSETS) - 1, int(_OFFSETS[-1])
    arrays: dict[str, np.ndarray | Ragged] = {}
    for name, feature in program.features.items():
        if feature.is_number:
            shape = (count,) if feature.width == 1 else (count, feature.width)
            arrays[f"numbers.{name}"] = np.ones(shape, np.float32)
        elif feature.length is None:
            arrays[f"ids.{name}"] = np.zeros(count, np.int64)
        else:
            arrays[f"ids.{name}"] = Ragged(np.zeros(ids, np.int64), _OFFSETS)
            if feature.weights is not None:
                arrays[f"id_weights.{name}"] = Ragged(np.ones(ids, np.float32), _OFFSETS)
    return inputs_of(arrays, program.whole)


def _unused(graph: ExportedProgram, weights: Weights) -> set[str]:
    """The weights that a program does not look at. They are its first inputs, in this order."""
    nodes = {node.name: node for node in graph.graph.nodes}
    return {
        name for name, given in zip(weights, graph.graph_signature.user_inputs, strict=False) if not nodes[given].users
    }


def _saved(graph: ExportedProgram) -> bytes:
    archive = io.BytesIO()
    torch.export.save(graph, archive)
    return archive.getvalue()


def _tensors_beside(name: str, side: OpenedLookup, program: Program) -> dict[str, Tensor]:
    """A table beside the samples as tensors, as far as the program's features are in it."""
    found = {"keys": side.table.keys.view(np.int64)}
    for key, array in side.table.arrays.items():
        if key.partition(".")[2] not in program.features:
            continue
        if isinstance(array, Ragged):
            found |= {f"{key}/values": array.values, f"{key}/offsets": array.offsets}
        else:
            found[key] = array
    return {f"{LOOKUP}{name}.{key}": torch.from_numpy(np.ascontiguousarray(array)) for key, array in found.items()}


def _sources() -> dict[str, bytes]:
    """The modules that score, as the files that they are."""
    folder = sorted(files("drivetrain.serving").iterdir(), key=lambda each: each.name)
    return {f"serving/{each.name}": each.read_bytes() for each in folder if each.name.endswith(".py")}
