"""The data of the examples, made here: sentences of a small grammar, and drawn digits. Nothing is downloaded.

The same arguments give the same data.
"""

import re
from functools import cache
from random import Random

import numpy as np
from torch.utils.data import Dataset

GRAMMAR = """
sentence: {one} {sees}. | {many} {see}. | {when}, {one} {sees}. | {one} {sees} {more}. | {many} {see} {more}.
more: {where} | {how} | and {one} {sees} | but {many} {see} | because {one} {sees}
when: when {one} {sees} | after {many} {see} | in the {season} | at {hour} | while {one} {sees}
one: the {adjective} {creature} | a {adjective} {creature} | {name} | the {creature} {where}
many: the {creature}s | {count} {adjective} {creature}s | {name} and {name} | most {creature}s {where}
sees: {sing}s | {take}s {thing} | {take}s {one} | never {sing}s | {say}s that {many} {sing} | is {adjective}
see: {sing} | {take} {thing} | {take} {many} | never {sing} | {say} that {one} {sing}s | are {adjective}
thing: the {object} | a {adjective} {object} | {count} {object}s | no {object} | the {object} {where}
where: near the {place} | under the {place} | beyond the {adjective} {place} | by the {place} of {name}
how: slowly | at once | without a word | again and again | with {thing} | like {one}
adjective: tall | small | quiet | red | golden | hungry | clever | tired | brave | pale | wild | gentle | strange
creature: dog | crow | baker | sailor | miller | farmer | king | hare | owl | tailor | weaver | cat | bear | ghost
object: lamp | boat | letter | stone | apple | coat | bell | key | candle | drum | basket | map | ring | spoon | ladder
place: river | mill | bridge | tower | orchard | harbour | market | hill | well | barn | gate | forest | shore
name: Ada | Boris | Clara | Denis | Edith | Felix | Greta | Hugo | Irma | Jonas | Klara | Leo | Mila | Nora | Otto
take: find | lose | pull | follow | hide | remember | paint | bring | want | forget | sell
sing: sing | sleep | wait | laugh | dream | work | listen | smile | return | dance
say: say | think | hope | hear | know
season: spring | summer | autumn | winter | morning | evening | night
hour: noon | dawn | dusk | midnight | sunrise
count: two | three | four | seven | twelve | many | few
"""
"""What each {word} may stand for, the likeliest first."""

OUTLINES = [
    [(0, -0.9), (-0.5, -0.5), (-0.5, 0.5), (0, 0.9), (0.5, 0.5), (0.5, -0.5), (0, -0.9)],
    [(-0.3, -0.6), (0.05, -0.9), (0.05, 0.9)],
    [(-0.5, -0.5), (-0.2, -0.9), (0.3, -0.85), (0.5, -0.4), (-0.5, 0.9), (0.55, 0.9)],
    [(-0.45, -0.8), (0.2, -0.9), (0.45, -0.5), (0, -0.1), (0.5, 0.4), (0.2, 0.9), (-0.5, 0.75)],
    [(0.3, 0.9), (0.3, -0.9), (-0.5, 0.3), (0.6, 0.3)],
    [(0.5, -0.9), (-0.4, -0.9), (-0.45, -0.1), (0.2, -0.15), (0.5, 0.3), (0.2, 0.85), (-0.5, 0.8)],
    [(0.4, -0.85), (-0.2, -0.5), (-0.5, 0.3), (-0.1, 0.9), (0.45, 0.6), (0.3, 0.1), (-0.45, 0.25)],
    [(-0.5, -0.85), (0.5, -0.85), (-0.1, 0.9)],
    [(0, -0.05), (-0.4, -0.5), (0, -0.9), (0.4, -0.5), (-0.45, 0.45), (0, 0.9), (0.45, 0.45), (0, -0.05)],
    [(0.45, -0.3), (-0.2, -0.05), (-0.45, -0.5), (0, -0.9), (0.45, -0.6), (0.4, 0.1), (0.1, 0.9)],
]
"""A pen's way for each digit: corners (x, y) from -1 to 1, y downwards."""
DOTS = 40
"""How many dots of ink a pen leaves on its way."""


@cache
def text(sentences: int, seed: int = 0) -> str:
    """So many sentences, each a line."""
    random = Random(seed)
    rules = [line.split(": ") for line in GRAMMAR.strip().splitlines()]
    ways = {name: choices.split(" | ") for name, choices in rules}
    weights = {name: [1 / (place + 1) for place in range(len(ways[name]))] for name in ways}

    def said(word: re.Match) -> str:
        (way,) = random.choices(ways[word[1]], weights[word[1]])
        return re.sub(r"{(\w+)}", said, way)

    lines = [re.sub("(sentence)", said, "sentence") for _ in range(sentences)]
    return "".join(line[0].upper() + line[1:] + "\n" for line in lines)


@cache
def digits(count: int, size: int = 28, seed: int = 0) -> np.ndarray:
    """Drawn digits, uint8 [count, size, size], white on black: each turned, stretched and moved a little."""
    random = np.random.default_rng(seed)
    ways = np.stack([_dotted(np.array(corners)) for corners in OUTLINES])
    pictures = np.empty((count, size, size), np.uint8)
    for start in range(0, count, 1024):
        part = pictures[start : start + 1024]
        dots = ways[random.integers(10, size=len(part))] + random.normal(0, 0.02, (len(part), DOTS, 2))
        part[:] = 255 * _ink(_moved(dots, random), random.uniform(0.07, 0.11, (len(part), 1, 1)), size)
    return pictures


class Digits(Dataset):
    """Drawn digits as samples, uint8 [1, size, size]."""

    def __init__(self, count: int, size: int = 28, seed: int = 0):
        self.pictures = digits(count, size, seed)

    def __len__(self) -> int:
        return len(self.pictures)

    def __getitem__(self, index: int) -> np.ndarray:
        return self.pictures[index, None]


def _dotted(corners: np.ndarray) -> np.ndarray:
    """Dots [DOTS, 2] at equal distances on the way over these corners [corners, 2]."""
    lengths = np.hypot(*np.diff(corners, axis=0).T)
    ends = np.concatenate([[0], np.cumsum(lengths)])
    places = np.linspace(0, ends[-1], DOTS)
    return np.stack([np.interp(places, ends, axis) for axis in corners.T], axis=1)


def _moved(dots: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Dots [count, DOTS, 2] turned, stretched and moved, each picture by its own amounts."""
    change = np.eye(2) * random.uniform(0.6, 0.8, (len(dots), 1, 2)) + random.normal(0, 0.1, (len(dots), 2, 2))
    return dots @ change + random.uniform(-0.15, 0.15, (len(dots), 1, 2))


def _ink(dots: np.ndarray, width: np.ndarray, size: int) -> np.ndarray:
    """How much ink [count, size, size] from 0 to 1 the dots leave: each a bell of this width, so rows times columns."""
    grid = np.linspace(-1, 1, size)
    columns, rows = (np.exp(-(((grid - dots[..., axis, None]) / width) ** 2)) for axis in (0, 1))
    return np.minimum(rows.transpose(0, 2, 1) @ columns, 1)
