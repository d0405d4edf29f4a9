"""Which settings are tried, and which are worth having."""

from hypothesis import given
from hypothesis import strategies as st

from drivetrain.plan.search import Bounds, Setting, front, meshes, nearest, settings
from drivetrain.spec.mesh import MeshSizes

POINTS = st.dictionaries(st.integers(), st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1)


@given(POINTS)
def test_the_front_is_what_nothing_beats(points):
    found = front(points)

    def beaten(one):
        return any(
            other != one and all(a <= b for a, b in zip(points[other], points[one], strict=True))
            for other in points
            if points[other] != points[one]
        )

    assert found
    assert not any(beaten(one) for one in found)
    assert {points[one] for one in points if not beaten(one)} == {points[one] for one in found}


def test_meshes_share_out_the_batch_and_split_what_can_be_split():
    found = list(meshes(Bounds(processes=8, batch=8, lanes=None, split=[4])))
    assert {(each.replicate, each.shard, each.tensor) for each in found} == {
        *((8 // shard, shard, 1) for shard in (1, 2, 4, 8)),
        *((4 // shard, shard, 2) for shard in (1, 2, 4)),
        *((2 // shard, shard, 4) for shard in (1, 2)),
    }
    assert {each.tensor for each in meshes(Bounds(8, 8, None, []))} == {1}
    assert {each.data for each in meshes(Bounds(8, 8, 4, [8]))} == {1, 2, 4}


def test_every_setting_is_there_once():
    found = settings(Bounds(processes=4, batch=8, lanes=None, split=[2]))
    assert len(found) == len(set(found))
    assert all(8 % (setting.micro * setting.sizes.data) == 0 for setting in found)


def test_the_nearest_settings_change_little_first():
    wanted = Setting(MeshSizes(shard=2), 4, "keep")
    found = nearest(wanted, Bounds(processes=2, batch=8, lanes=None, split=[2]))
    assert found[0] == Setting(MeshSizes(shard=2), 4, "selective")
    assert wanted not in found
    assert found[-1].sizes.tensor == 2


def test_places_along_a_context_stay_as_many_and_are_named():
    found = settings(Bounds(processes=8, batch=8, lanes=None, split=[2], pipeline=2, context=2))
    assert {(setting.sizes.pipeline, setting.sizes.context, setting.sizes.world) for setting in found} == {(2, 2, 8)}
    setting = Setting(MeshSizes(shard=2, context=2), 1, "keep")
    assert setting.overrides[0] == "parallel={replicate: 1, shard: 2, tensor: 1, context: 2}"
