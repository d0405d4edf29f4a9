from hypothesis import given
from hypothesis import strategies as st

from drivetrain.spec.amount import Amount, Scale
from drivetrain.spec.batches import Batches, Change
from drivetrain.spec.load import load

ramps = st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), max_size=4).map(
    lambda parts: tuple(Change(sum(n for n, _ in parts[: k + 1]), size) for k, (_, size) in enumerate(parts))
)


@given(st.integers(1, 9), ramps, st.integers(1, 60))
def test_steps_follow_each_other_without_gap_and_have_the_size_of_their_stage(size, ramp, step):
    batches = Batches(size, ramp)
    wanted = next((change.size for change in reversed(ramp) if change.after < step), size)
    start, stop = batches.span(step)
    assert stop - start == wanted
    assert start == (batches.span(step - 1)[1] if step > 1 else 0)
    assert batches.samples(step) == stop
    assert batches.changes_after(step) == any(change.after == step for change in ramp)


@given(st.integers(1, 9), ramps, st.integers(1, 300))
def test_as_many_steps_as_it_takes(size, ramp, total):
    batches = Batches(size, ramp)
    steps = batches.steps(total)
    assert batches.samples(steps - 1) < total <= batches.samples(steps)


@given(st.integers(1, 9), ramps, st.integers(1, 20), st.integers(1, 60))
def test_multiples_of_steps_are_counted_in_steps_whatever_their_size(size, ramp, every, step):
    batches = Batches(size, ramp)
    scale = Scale(batches, 16, 100)
    assert Amount(steps=every).multiples(step, batches.samples(step), scale) == step // every
    assert Amount(steps=every).samples_at(scale) == batches.samples(every)


@given(st.integers(1, 9), ramps, st.integers(0, 40), st.integers(1, 40))
def test_batches_since_a_step_are_those_of_the_steps_after_it(size, ramp, steps, step):
    batches = Batches(size, ramp)
    begin = batches.samples(steps)
    assert batches.since(steps).span(step) == tuple(place - begin for place in batches.span(steps + step))


def scale_of(recipe):
    return Scale(Batches(recipe.batch.size), recipe.task.tokens_per_sample)


def test_galore_trainer_1_a_billion_tokens_of_the_published_recipe_are_7630_steps():
    # there: 1,953,125
    recipe = load("llama-60m", ["budget={tokens: 1B}"]).recipe
    assert scale_of(recipe).batches.steps(recipe.budget.samples_at(scale_of(recipe))) == 7630
