"""A target of the user's own: a settings class by its import path."""

import sys

import pytest

from drivetrain.launch.targets.config import build, settings_from
from drivetrain.spec.exits import Exit, Failure

MODULE = '''
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal
from drivetrain.launch.targets.recipe import ResourceSpec
from drivetrain.spec.settings import nothing

@dataclass(frozen=True, kw_only=True)
class Pigeons(ResourceSpec):
    """Jobs by pigeon."""
    factory: ClassVar[str] = "own_target_of_this_test:Loft"
    kind: Annotated[str, nothing("its path")]
    birds: Annotated[int, nothing("how many")] = 1

class Loft:
    def __init__(self, settings):
        self.settings = settings
'''


@pytest.fixture(autouse=True)
def module(tmp_path, monkeypatch):
    (tmp_path / "own_target_of_this_test.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield
    sys.modules.pop("own_target_of_this_test", None)


def test_a_target_of_ones_own_is_built_from_its_checked_settings():
    settings = settings_from("loft", {"kind": "own_target_of_this_test:Pigeons", "birds": 3, "nodes": 2})
    assert (settings.birds, settings.nodes) == (3, 2)
    assert build(settings).settings is settings
    with pytest.raises(Failure, match="birds") as caught:
        settings_from("loft", {"kind": "own_target_of_this_test:Pigeons", "birds": "many"})
    assert caught.value.outcome.code is Exit.BAD_RECIPE


@pytest.mark.parametrize("path", ["os:system", "own_target_of_this_test:Loft"])
def test_what_is_no_settings_class_is_refused(path):
    with pytest.raises(Failure, match="is no target") as caught:
        settings_from("loft", {"kind": path})
    assert caught.value.outcome.code is Exit.SECURITY
