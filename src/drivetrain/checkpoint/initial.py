"""Initial weights from another run or a file: strict, with a report, and with exactly the exceptions that were asked
for."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import torch
from torch import Tensor, nn

from drivetrain.checkpoint.boxes import Box, box_of, local_of
from drivetrain.checkpoint.commits import newest
from drivetrain.checkpoint.manifest import FOLDER, MANIFEST, Damaged, step_of
from drivetrain.checkpoint.published import Names, Published, read_published
from drivetrain.checkpoint.recipe import Init
from drivetrain.checkpoint.state import NETWORKS, named_tensors, require_same
from drivetrain.checkpoint.stored import StoredCommit
from drivetrain.runtime.group import Group
from drivetrain.spec.exits import Exit, Failure

_SHOWN = 4  # names in a message
_MASTERS = "masters"  # what commits call fp32 masters of bf16 weights, which another room makes


@dataclass(frozen=True)
class Report:
    """What became of every tensor, by NETWORK/NAME. `source` is the commit or file that they come from, `digest` the
    SHA-256 of the commit's manifest, or of the file; `bytes` are those of what was loaded."""

    source: str
    digest: str
    bytes: int
    loaded: tuple[str, ...]
    renamed: tuple[tuple[str, str], ...]
    fresh: tuple[str, ...]
    left_out: tuple[str, ...]

    def __str__(self) -> str:
        source = f"{self.source} (sha256 {self.digest[:12]})"
        parts = [f"{len(self.loaded)} tensors loaded, {self.bytes:,} bytes of {source}"]
        if self.renamed:
            names = _some([f"{old} -> {new}" for old, new in self.renamed])
            parts.append(f"{len(self.renamed)} of them renamed ({names})")
        if self.fresh:
            parts.append(f"{len(self.fresh)} stay as drawn ({_some(self.fresh)})")
        if self.left_out:
            parts.append(f"{len(self.left_out)} left out ({_some(self.left_out)})")
        return ", ".join(parts)


def load_initial(
    settings: Init,
    networks: Mapping[str, nn.Module],
    layouts: Mapping[str, Names | None] = MappingProxyType({}),
    group: Group | None = None,
    masters: Mapping[str, Tensor] = MappingProxyType({}),
    rows: Mapping[str, Box | None] = MappingProxyType({}),
) -> Report:
    """Copy weights into the networks as the recipe's `init` says; `layouts` read what was published, by network.
    Weights that are kept in bf16 are rounded from fp32 ones, which their `masters`, by NETWORK/NAME, get as they are.
    Of a commit that has such masters itself, these are the weights.
    `rows` are those that this rank holds of tables, by the same names; None: other ranks alone hold anything.

    The ranks of a group call it together; of a commit each reads what its networks hold. Raises Failure(66) where there
    is nothing at the path, 65 where it is damaged, 78 where a name or pattern means nothing here, 76 with every name
    where tensors do not fit, 77 for pickled weights; then nothing was changed.
    """
    chosen = _chosen(settings, networks)
    wanted = named_tensors(chosen)
    there = _there(settings, chosen, layouts, group or Group())
    given, renamed, left_out = _given(there.tensors, settings)
    # What is given counts before `fresh`: a pattern may be wide, and says what may be missing.
    fresh = [name for name in wanted if name not in given and _hits(settings.fresh, name)]
    expected = {name: _whole(tensor, rows.get(name)) for name, tensor in wanted.items() if name not in fresh}
    # Before anything is copied: a run that is refused has its weights as they were drawn.
    held = _held(given, rows)
    found = {name: there.tensors[old] for name, old in held.items()}
    require_same(_narrowed(expected, found), found, settings.from_)
    here = there.read({old: rows.get(name) or box_of(wanted[name]) for name, old in held.items()})
    with torch.no_grad():
        for name, old in held.items():
            # The master gets the numbers before they are rounded: rounded first, the weights would begin elsewhere than
            # the file says.
            for tensor in (local_of(wanted[name]), masters.get(name)):
                if tensor is not None:
                    tensor.copy_(here[old])
    return Report(
        source=there.source,
        digest=there.digest,
        bytes=sum(there.tensors[old].nbytes for old in given.values()),
        loaded=tuple(given),
        renamed=tuple(renamed),
        fresh=tuple(fresh),
        left_out=tuple(left_out),
    )


def _held(given: Mapping[str, str], rows: Mapping[str, Box | None]) -> dict[str, str]:
    """Of what is given, by name, that of which this rank holds something."""
    return {name: old for name, old in given.items() if name not in rows or rows[name] is not None}


def _given(
    there: Mapping[str, Tensor], settings: Init
) -> tuple[dict[str, str], list[tuple[str, str]], Collection[str]]:
    """As `_mapped`, of the network that `init.part` names: of others nothing is loaded."""
    given, renamed, left_out = _mapped(there, settings.map)
    if settings.part is not None:
        given = {name: old for name, old in given.items() if name.startswith(f"{settings.part}/")}
    return given, [pair for pair in renamed if pair[1] in given], left_out


def _whole(tensor: Tensor, rows: Box | None) -> Tensor:
    """A tensor, or without memory the table that it has some rows of."""
    return tensor if rows is None else torch.empty(rows.whole, dtype=tensor.dtype, device="meta")


def _narrowed(wanted: Mapping[str, Tensor], given: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """What is wanted, in fp32 where that is given for bf16: it is rounded."""
    found = dict(wanted)
    for name, tensor in wanted.items():
        if name in given and (tensor.dtype, given[name].dtype) == (torch.bfloat16, torch.float32):
            found[name] = torch.empty(tensor.shape, device="meta")
    return found


def freeze(
    settings: Init, networks: Mapping[str, nn.Module], rows: Mapping[str, Box | None] = MappingProxyType({})
) -> int:
    """Take the parameters that `init.freeze` names out of training; returns how many. `rows` as for `load_initial`.

    Raises Failure(78) where a pattern names none, or a table.
    """
    patterns: Sequence[str] = ()
    own: Sequence[str] = ()  # of those: parameters that were drawn here, and so have to train
    if settings.freeze is True:
        # A head that begins anew beside a frozen body is what the two together are for.
        patterns, own = (".",), settings.fresh
    elif settings.freeze is not False:
        patterns = settings.freeze
    frozen = 0
    used = set()
    for network, module in _chosen(settings, networks).items():
        for name, parameter in module.named_parameters():
            full = f"{network}/{name}"
            hits = _hits(patterns, full)
            used.update(hits)
            if hits and not _hits(own, full):
                parameter.requires_grad_(False)
                frozen += 1
    # Tables are no parameters, and a pattern that names one is no idle pattern: it has its own refusal.
    for name in rows:
        used.update(_hits(patterns, name))
    if settings.freeze is not True:  # else the network as a whole stays as it is
        _require_no_table(patterns, rows)
    if idle := [pattern for pattern in patterns if pattern not in used]:
        raise Failure(Exit.BAD_RECIPE, f"init.freeze: {idle[0]!r} names no parameter", "names are NETWORK/NAME")
    return frozen


def _hits(patterns: Sequence[str], name: str) -> list[str]:
    return [pattern for pattern in patterns if re.search(pattern, name)]


def _require_no_table(patterns: Sequence[str], rows: Mapping[str, Box | None]) -> None:
    for name, box in rows.items():
        hits = _hits(patterns, name)
        if hits and box is not None:
            cause = f"init.freeze: {hits[0]!r} names the table {name}, whose rows are moved by `embeddings`"
            raise Failure(Exit.BAD_RECIPE, cause, "give it a group there with lr 0, or freeze the whole network")


def _chosen(settings: Init, networks: Mapping[str, nn.Module]) -> dict[str, nn.Module]:
    chosen = {name: net for name, net in networks.items() if settings.part in (None, name)}
    if not chosen:
        raise Failure(Exit.BAD_RECIPE, f"init.part: no network {settings.part!r}", f"there are {sorted(networks)}")
    return chosen


class _There(NamedTuple):
    """What is at the place that `init.from` names: its name, its digest, and its tensors by NETWORK/NAME, on the meta
    device where they are still to be read, by `read`: which box of each."""

    source: str
    digest: str
    tensors: dict[str, Tensor]
    read: Callable[[Mapping[str, Box]], dict[str, Tensor]]

    @classmethod
    def of_commit(cls, stored: StoredCommit) -> _There:
        """The networks of a commit."""
        # By the names there: what weights in bf16 were rounded from, where that is kept, and the weights where not.
        own = _networks(stored.tensors)
        names = {f"{NETWORKS}/{name}": name for name in own}
        for name in own:
            if f"{_MASTERS}/{name}" in stored.tensors:
                del names[f"{NETWORKS}/{name}"]
                names[f"{_MASTERS}/{name}"] = name
        shapes = {name: stored.tensors[there] for there, name in names.items()}

        def read(boxes: Mapping[str, Box]) -> dict[str, Tensor]:
            found = stored.read(lambda there, _: boxes.get(names[there]) if there in names else None)
            return {names[there]: tensor for there, tensor in found.items()}

        return cls(stored.path.name, stored.metadata["sha256"], shapes, read)

    @classmethod
    def of_file(cls, path: Path, published: Published) -> _There:
        """What others have published."""
        return cls(path.name, published.digest, published.shapes, published.read)


def _there(settings: Init, networks: Collection[str], layouts: Mapping[str, Names | None], group: Group) -> _There:
    path = Path(settings.from_)
    try:
        # A run first: its folder may hold safetensors as well, such as an export, and its newest commit is meant.
        if (path / FOLDER).is_dir():
            found = newest(path, group, whole=False)
            if found is None or found.stored is None:
                raise Failure(Exit.INPUT_MISSING, f"init.from: {path} has no commit", "train it first, or name another")
            return _There.of_commit(found.stored)
        if path.is_dir() and (step_of(path.name) is not None or (path / MANIFEST).exists()):
            return _There.of_commit(StoredCommit.verified(path, group))
        if path.exists():
            return _There.of_file(path, read_published(path, networks, layouts))
    except (Damaged, ValueError) as error:
        raise Failure(Exit.BAD_DATA, f"init.from: {path} is damaged: {error}", "restore it from a copy") from error
    raise Failure(Exit.INPUT_MISSING, f"init.from: nothing at {path}", "name a run, a commit, or safetensors")


def _networks(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        kind, _, own = name.partition("/")
        if kind == NETWORKS:
            found[own] = tensor
    return found


def _mapped(
    there: Iterable[str], names: Mapping[str, str | None]
) -> tuple[dict[str, str], list[tuple[str, str]], list[str]]:
    """The tensors' names there by those here, (old, new) of the renamed ones, and the left out ones.

    The longest beginning that fits counts; it is looked for with the network in front, and without. Raises Failure(78)
    where one fits nothing, 76 where two tensors get one name.
    """
    given: dict[str, str] = {}
    renamed, left_out, used = [], [], set()
    for old in there:
        network, _, rest = old.partition("/")
        fits = [key for key in names if rest.startswith(key) or old.startswith(key)]
        new: str | None = old
        if fits:
            key = max(fits, key=len)
            used.add(key)
            new = _renamed(old, network, rest, key, names[key])
        if new is None:
            left_out.append(old)
            continue
        if new in given:
            raise Failure(Exit.INCOMPATIBLE, f"init.map gives two tensors the name {new}", "mend the map")
        given[new] = old
        if new != old:
            renamed.append((old, new))
    if idle := [key for key in names if key not in used]:
        some = _some(there)
        raise Failure(Exit.BAD_RECIPE, f"init.map: no name there begins with {idle[0]!r}", f"there are {some}")
    return given, renamed, left_out


def _renamed(old: str, network: str, rest: str, key: str, value: str | None) -> str | None:
    if value is None:
        return None
    if rest.startswith(key):
        new = value + rest.removeprefix(key)
        return new if "/" in value else f"{network}/{new}"
    return value + old.removeprefix(key)


def _some(names: Iterable[str]) -> str:
    listed = list(names)
    if len(listed) > _SHOWN:
        listed[_SHOWN:] = ["..."]
    return ", ".join(listed)
