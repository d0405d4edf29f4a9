"""What undisturbed runs come to, made once for all tests of a module."""

import json

import pytest

from drills.runs import reference


@pytest.fixture(scope="module")
def references(tmp_path_factory):
    """Traces of undisturbed runs, by recipe and what is asked for. Where the data lie decides no bit."""
    known = {}

    def find(recipe, *overrides):
        asked = json.dumps(recipe | {"data": None}), overrides
        if asked not in known:
            known[asked] = reference(recipe, tmp_path_factory.mktemp("reference") / "run", *overrides)
        return known[asked]

    return find
