from hypothesis import given
from hypothesis import strategies as st

from drivetrain.runtime.mix import mix

paths = st.lists(st.integers(0, 2**40), max_size=4)


@given(st.integers(0, 2**64), paths)
def test_a_seed_is_a_function_of_its_path(seed, path):
    assert mix(seed, *path) == mix(seed, *path)
    assert 0 <= mix(seed, *path) < 2**63


@given(st.integers(0, 1000), paths, paths)
def test_other_paths_have_other_seeds(seed, one, other):
    assert (one == other) == (mix(seed, *one) == mix(seed, *other))


def test_seeds_never_change_between_versions():
    assert mix(42, 1, 2, 3) == GOLDEN


GOLDEN = 2947416099122797352
