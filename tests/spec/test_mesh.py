"""How processes are laid out: plain arithmetic, and what is told before any process starts."""

from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drivetrain.spec.load import load
from drivetrain.spec.mesh import AXES, MeshSizes
from drivetrain.spec.tree import RecipeMistakes

sizes = st.builds(MeshSizes, **dict.fromkeys(AXES, st.integers(1, 4)))


@given(sizes)
def test_every_rank_has_a_place_of_its_own(mesh):
    places = [tuple(mesh.place(rank).items()) for rank in range(mesh.world)]
    assert len(set(places)) == mesh.world == prod(getattr(mesh, axis) for axis in AXES)
    # The innermost axis turns fastest: what talks most lies closest together.
    assert [dict(place)["tensor"] for place in places[: mesh.tensor]] == list(range(mesh.tensor))


@given(sizes)
def test_as_many_ranks_read_the_same_samples_as_the_other_axes_have(mesh):
    places = [mesh.place(rank) for rank in range(mesh.world)]
    shares = [(place["replicate"], place["shard"]) for place in places]
    assert {shares.count(share) for share in shares} == {mesh.world // mesh.data}
    assert len(set(shares)) == mesh.data


@given(sizes, st.data())
def test_the_ranks_at_some_places_are_those_that_stand_there(mesh, data):
    places = {}
    for axis in data.draw(st.sets(st.sampled_from(AXES))):
        places[axis] = data.draw(st.sets(st.integers(0, getattr(mesh, axis) - 1)))
    there = []
    for rank in range(mesh.world):
        if all(mesh.place(rank)[axis] in wanted for axis, wanted in places.items()):
            there.append(rank)
    assert mesh.ranks(places) == tuple(there)


def sized(processes: int, *asked: str) -> str:
    recipe = load("quickstart", [f"launch.processes={processes}", *asked]).recipe
    return str(recipe.parallel.sizes(processes))


@pytest.mark.parametrize(
    ("processes", "asked", "mesh"),
    [
        (1, (), "one process"),
        (4, (), "replicate 4"),
        (4, ("parallel.shard=auto",), "shard 4"),
        (8, ("parallel.replicate=2", "parallel.shard=auto"), "replicate 2 x shard 4"),
        (4, ("parallel.shard=2",), "replicate 2 x shard 2"),
        (4, ("parallel.tensor=auto",), "tensor 4"),
    ],
)
def test_auto_is_what_the_others_leave(processes, asked, mesh):
    assert sized(processes, *asked) == mesh


@pytest.mark.parametrize(
    ("processes", "asked", "words"),
    [
        (1, ("parallel.shard=4",), "shard 4 takes a multiple of 4 processes, and there are 1"),
        (6, ("parallel.replicate=2", "parallel.shard=2"), "replicate 2 x shard 2 takes 4 processes, and there are 6"),
        (4, ("parallel.shard=auto", "parallel.tensor=auto"), "shard and tensor are auto"),
        (3, ("parallel.shard=3",), "3 processes, which do not share 8 lanes; 1, 2, 4, 8 would"),
        (3, ("parallel.tensor=3",), "3 processes do not share model.heads 4; 1, 2, 4 would"),
        (2, ("parallel.tensor=2", "task.model.kv_heads=1"), "2 processes do not share model.kv_heads 1; 1 would"),
        (2, ("parallel.tensor=2", "task.model.context=129"), "do not share model.context 129"),
        (4, ("parallel.shard=4", "lanes=auto", "batch.size=6"), "4 processes, which do not share batch.size 6"),
        (8, ("parallel.pipeline=8", "batch.micro=1"), "8 stages (pipeline x virtual_stages) are more than the blocks"),
        (2, ("parallel.pipeline=2", "batch.micro=null"), "1 micro-batches a step for 2 processes in a pipeline"),
        (2, ("parallel={pipeline: 2, virtual_stages: 2}",), "virtual_stages 2: 1f1b has 1 on each process"),
        (2, ("parallel={pipeline: 2, pipeline_schedule: interleaved}",), "interleaved: give virtual_stages, 2 or more"),
        (2, ("parallel={pipeline: 2, pipeline_schedule: zbv, virtual_stages: 4}",), "zbv: give virtual_stages: 2"),
        (1, ("parallel={pipeline_schedule: zero_bubble, virtual_stages: 2}",), "is for stages on several processes"),
        (2, ("parallel={pipeline: 2, pipeline_schedule: zero_bubble}", "activations=selective"), "use recompute"),
        (
            2,
            ("parallel={pipeline: 2, pipeline_schedule: zero_bubble}", "task.logits_chunk=auto"),
            "the loss of logits in chunks in one",
        ),
        (
            2,
            ("parallel={pipeline: 2, pipeline_schedule: zbv, virtual_stages: 2}", "task.logits_chunk=8"),
            "the loss of logits in chunks in one",
        ),
        (
            2,
            ("parallel={pipeline: 2, pipeline_schedule: zero_bubble}", "compile={scope: block}"),
            "a compiled block in one",
        ),
        (2, ("parallel.pipeline=2", "data.train.buckets=4"), "messages of one shape"),
        (2, ("parallel.pipeline=2", "task.model.experts={count: 4}"), "parallel.pipeline is 2"),
        (
            2,
            ("parallel={pipeline: 2, pipeline_schedule: zero_bubble}", "batch={size: 40, micro: 8}"),
            "5 micro-batches a step for 2 processes in a pipeline do not go round",
        ),
        (2, ("parallel.pipeline=2", "exact=true"), "replicate alone"),
        (2, ("parallel.pipeline=2", "guard.recompute={steps: 10}"), "replicate alone"),
        (2, ("parallel.pipeline=2", "statistics={every: {steps: 10}}"), "replicate alone"),
        (2, ("parallel={tensor: 2, accumulate: parts}",), "tensor 2 shares no gradients out"),
        (2, ("parallel={accumulate: parts}",), "replicate 2 shares no gradients out"),
        (4, ("parallel={shard: 2, pipeline: 2, accumulate: parts}",), "at the end of their schedule"),
        (2, ("parallel={shard: 2, accumulate: parts}", "precision=bf16", "parameters.dtype=bf16"), "rounds each sum"),
        (2, ("parallel.context=2", "task.model.context=66"), "a multiple of 4 would do"),
        (8, ("parallel={context: 2, tensor: 4}", "task.model.context=132"), "a multiple of 8 would do"),
        (
            2,
            ("parallel.context=2", "task.model.experts={count: 4, capacity: 2}"),
            "places are dealt over whole samples",
        ),
        (2, ("parallel.context=2", "exact=true"), "replicate alone"),
        (2, ("parallel.context=2", "compile=true"), "use scope block"),
        (2, ("parallel.shard=2", "exact=true"), "replicate alone"),
        (2, ("parallel.shard=2", "compile=true"), "use scope block"),
        (2, ("parallel.tensor=2", "compile=true"), "use scope block"),
        (2, ("parallel.shard=2", "guard.recompute={steps: 10}"), "replicate alone"),
        (2, ("parallel.shard=2", "statistics={every: {steps: 10}}"), "replicate alone"),
        (2, ("parallel.shard=2", "optimizer.layerwise=true"), "replicate alone"),
        (2, ("parallel.shard=2", "optimizer={kind: galore, lr: 0.1, reduce: projected}"), "replicate alone"),
        (2, ("parallel.shard=2", "optimizer.kind=adafactor"), "adafactor takes means over whole tensors"),
        (2, ("parallel.tensor=2", "optimizer.kind=galore"), "moves parts of whole rows, and tensor 2 cuts columns"),
    ],
)
def test_what_does_not_go_together_is_told_with_what_would(processes, asked, words):
    with pytest.raises(RecipeMistakes) as caught:
        sized(processes, *asked)
    assert any(words in mistake.message for mistake in caught.value.mistakes), caught.value.mistakes
