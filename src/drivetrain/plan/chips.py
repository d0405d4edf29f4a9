"""What devices have beside their arithmetic: memory, and links to each other. Written from datasheets; no torch."""

from __future__ import annotations

import re
from typing import NamedTuple

from drivetrain.spec.exits import Exit, Failure


class Chip(NamedTuple):
    """A device's memory in bytes (decimal, as datasheets have it), what its link carries in one direction (bytes/s),
    and where that stands. `name` finds its arithmetic in `plan.flops.peak`."""

    name: str
    memory: float
    link: float
    source: str


CHIPS = {
    "GB200": Chip("GB200", 186e9, 900e9, "GB200 NVL72 datasheet, a 72nd"),
    "B200": Chip("B200", 180e9, 900e9, "HGX B200 datasheet, an eighth"),
    "H200": Chip("H200", 141e9, 450e9, "H200 datasheet"),
    "H100": Chip("H100", 80e9, 450e9, "H100 datasheet, SXM"),
    "A100-80": Chip("A100", 80e9, 300e9, "A100 datasheet, 80 GB SXM"),
    "A100-40": Chip("A100", 40e9, 300e9, "A100 datasheet, 40 GB SXM"),
    "L40S": Chip("L40S", 48e9, 32e9, "L40S datasheet, PCIe 4 x16"),
    "L4": Chip("L4", 24e9, 32e9, "L4 datasheet, PCIe 4 x16"),
    "A10G": Chip("A10G", 24e9, 32e9, "A10G datasheet, PCIe 4 x16"),
    "MI300X": Chip("MI300X", 192e9, 448e9, "MI300X datasheet, 7 links of 64 GB/s"),
}
"""By what `--chip` calls them."""

_UNITS = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(i?)B?", re.IGNORECASE)


def known(name: str | None) -> str | None:
    """What the table calls a device, in whatever case it is written; None where it does not have it."""
    found = [one for one in CHIPS if name is not None and one.lower() == name.lower()]
    return found[0] if found else None


def chip(name: str) -> Chip:
    """The chip of this name. Raises Failure(64) for one that is not in the table."""
    if found := known(name):
        return CHIPS[found]
    raise Failure(Exit.BAD_COMMAND, f"--chip {name}: it is not in the table", f"there are {', '.join(CHIPS)}")


def memory_size(text: str) -> int:
    """Bytes of `80GB` (units of 1000), `80GiB` or a target's `80G` (of 1024). Raises Failure(64) for anything else."""
    match = _SIZE.fullmatch(text.strip())
    if match is None or not float(match[1]):
        raise Failure(Exit.BAD_COMMAND, f"{text!r} is no amount of memory", "give it as 80GB, 79.6GiB or 512MB")
    number, unit, binary = match.groups()
    # As the targets of jobs have it: a unit without B is one of 1024.
    base = 1024 if binary or (unit and not text.strip().upper().endswith("B")) else 1000
    return int(float(number) * base ** _UNITS[unit.upper()])
