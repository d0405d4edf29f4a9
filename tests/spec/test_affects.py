"""Digests: those of shipped recipes are frozen, and a field that is added later moves none of them."""

from dataclasses import dataclass, field, make_dataclass, replace
from typing import Annotated

import pytest

from drivetrain.loop.tuning import settings_digest
from drivetrain.spec.affects import bits_digest, differences
from drivetrain.spec.load import load, shipped_names
from drivetrain.spec.recipe import Recipe
from drivetrain.spec.registry import KINDS
from drivetrain.spec.settings import Settings, bits

FROZEN = {
    "criteo": "15d7260aa6c9",
    "ctr-demo": "245381972b48",
    "denoise": "69a7eac8b34a",
    "denoise-demo": "a1d0b9697c4a",
    "enhance": "ecc87b251e46",
    "enhance-demo": "929d9c12db9a",
    "glue": "eab9cce0678f",
    "glue-mnli": "f9c75dc28f24",
    "llama-130m": "797ded9e3e99",
    "llama-1b": "f6fb78aa1459",
    "llama-20m": "060477e08580",
    "llama-350m": "8197520d93e5",
    "llama-35m": "3afc7eca327c",
    "llama-60m": "ea7f91323a82",
    "llama-7b": "d5d279abe3d7",
    "llama-9m": "d1bd92e31066",
    "mmoe-demo": "768f2c9e027d",
    "moe-demo": "e04d32e1df88",
    "movielens": "379abce40593",
    "quickstart": "bf4e1cd98e69",
    "two-tower-demo": "3d1a145f6f86",
    "vocoder": "ba5fe44440b8",
    "vocoder-demo": "fabac337532d",
}
"""Run directories are named by these, and a resume is refused where one moves: a new recipe adds a line, no line
changes. A field that moved them is `bits(..., later=True)`."""


WITH = {
    "optimizer={kind: sgd}": "3690409b3797",
    "optimizer={kind: adam}": "bf9127f6472a",
    "optimizer={kind: adagrad}": "96d07acb5207",
    "optimizer={kind: adafactor}": "a6119d449b82",
    "optimizer={kind: rmsprop}": "b6ce3f4abb52",
    "optimizer={kind: muon}": "d7b9057dcbb8",
    "optimizer={kind: galore}": "39335d08fc56",
    "optimizer={kind: torchao_adamw8bit}": "51e343f61cee",
    "optimizer={kind: torchao_adamw4bit}": "b26b593182b9",
    "optimizer={kind: bitsandbytes_adamw8bit}": "d95fcc0c7b6f",
    "schedule={kind: constant}": "780386469f5e",
    "schedule={kind: linear}": "45881459f366",
    "schedule={kind: cosine_restarts, period: {steps: 9}}": "4a7a2f822b86",
    "schedule={kind: wsd, decay: {steps: 9}}": "0828749df17d",
    "schedule={kind: inverse_sqrt, warmup: {steps: 9}}": "84fea0dc186e",
    "schedule={kind: polynomial}": "a47beab732d5",
    "schedule={kind: exponential, rate: 0.5, every: {steps: 9}}": "a699e45fdfb9",
    "schedule={kind: plateau, metric: stdlib/loss, every: {steps: 9}}": "5eca771baa65",
    "schedule={kind: steps, milestones: [{at: {steps: 9}, factor: 0.5}]}": "5c6cd9e9d785",
    "data.train.sources=[{kind: tokens, path: a.bin}]": "37fa25b889cb",
    "data.train.sources=[{kind: documents, path: a}]": "10b1dad59a70",
    "average={decay: 0.9}": "df00b61ffdc4",
    "guard.replicas={steps: 9}": "bf4e1cd98e69",
    "guard.spike={action: skip}": "7095e6c6efc5",
    "statistics={every: {steps: 9}}": "bf4e1cd98e69",
    "precision=fp16": "da581fe64450",
    "exact=true batch.micro=2": "608e167b494c",
    "batch.ramp=[{from: {steps: 9}, size: 24}]": "83ccdee0a08c",
}
"""Of the quickstart with one thing changed: kinds and sections that no shipped recipe has are frozen, too."""


@pytest.mark.parametrize(("change", "digest"), WITH.items())
def test_the_digest_of_kinds_that_no_shipped_recipe_has_is_what_it_was(change, digest):
    overrides = change.split(" ") if change.startswith("exact") else [change]
    assert bits_digest(load("quickstart", overrides).recipe) == digest


def test_each_kind_of_optimizer_and_schedule_has_a_frozen_digest():
    frozen = " ".join(WITH)
    shipped = {"adamw", "cosine"}
    for section in ("optimizer", "schedule"):
        assert {kind for kind in KINDS[section] if f"{section}={{kind: {kind}" not in frozen} <= shipped


def test_the_digest_of_every_shipped_recipe_is_what_it_was():
    assert {name: bits_digest(load(name).recipe) for name in shipped_names()} == FROZEN


def test_the_digest_of_what_may_be_set_is_what_it_was():
    """Where it moves, what a run was told with `set` ends at its next start."""
    assert settings_digest(load("quickstart").recipe) == "0319a1e1f5a2"


@dataclass(frozen=True, kw_only=True)
class Part(Settings):
    """A section that is added to recipes."""

    size: Annotated[int, bits("how large")] = 1
    names: Annotated[tuple[str, ...], bits("whose", later=True)] = ()


def recipe_with(**added):
    """The quickstart's recipe, of a class that has these fields too: NAME=(hint, field)."""
    cls = make_dataclass("Newer", [(name, *what) for name, what in added.items()], bases=(Recipe,), frozen=True)
    return cls(**vars(load("quickstart").recipe))


@pytest.fixture
def newer():
    """A recipe with a number, a list and a section that were added later."""
    later = bits("added", later=True)
    return recipe_with(
        ratio=(Annotated[float, later], field(default=1.0, kw_only=True)),
        chosen=(Annotated[tuple[str, ...], later], field(default_factory=tuple, kw_only=True)),
        part=(Annotated[Part, later], field(default_factory=Part, kw_only=True)),
    )


def test_a_later_field_moves_no_digest_while_it_has_its_default(newer):
    assert bits_digest(newer) == FROZEN["quickstart"]
    assert settings_digest(newer) == settings_digest(load("quickstart").recipe)


@pytest.mark.parametrize(
    "change", [{"ratio": 2.0}, {"chosen": ("a",)}, {"part": Part(size=2)}, {"part": Part(names=("a",))}]
)
def test_a_later_field_with_another_value_moves_the_digest_and_is_told_as_a_difference(newer, change):
    changed = replace(newer, **change)
    assert bits_digest(changed) != bits_digest(newer)
    found = differences(newer, changed)
    assert {(one.affects, one.path.startswith(next(iter(change)))) for one in found} == {("bits", True)}


def test_a_later_field_is_told_with_its_default_where_it_is_set(newer):
    assert str(differences(newer, replace(newer, ratio=2.0))[0]) == "ratio: 1.0 -> 2.0"


def test_a_later_field_of_a_section_at_its_default_is_left_out_where_the_section_is_not(newer):
    one, other = replace(newer, part=Part(size=2)), replace(newer, part=Part(size=2, names=("a",)))
    assert bits_digest(one) != bits_digest(other)
    without = recipe_with(
        part=(Annotated[OlderPart, bits("added", later=True)], field(default_factory=OlderPart, kw_only=True))
    )
    assert bits_digest(one) == bits_digest(replace(without, part=OlderPart(size=2)))


@dataclass(frozen=True, kw_only=True)
class OlderPart(Settings):
    """`Part` before `names` was added to it."""

    size: Annotated[int, bits("how large")] = 1


def test_a_field_that_is_not_declared_later_moves_the_digest():
    plain = recipe_with(ratio=(Annotated[float, bits("added")], field(default=1.0, kw_only=True)))
    assert bits_digest(plain) != FROZEN["quickstart"]


@pytest.mark.parametrize("change", ["guard.quarantine=[9]", "data.validation={v: {kind: text, path: x}}"])
def test_what_is_filled_or_emptied_is_told_by_its_parts_alone(change):
    path, _, _ = change.partition("=")
    empty = load("quickstart", ["data.validation={}"]).recipe
    filled = load("quickstart", ["data.validation={}", change]).recipe
    for changes in (differences(empty, filled), differences(filled, empty)):
        paths = [one.path for one in changes]
        assert path not in paths
        assert any(part.startswith(path) for part in paths)
