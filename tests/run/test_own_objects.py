"""Objects, classes and functions that Python gives as kinds: as if they were written, or in this process alone."""

import json
import os
import sys
from functools import partial
from pathlib import Path

import pytest
import torch

import drivetrain
from conftest import trace
from drivetrain.spec.exits import Exit, Failure
from drivetrain.spec.load import load

pytestmark = [pytest.mark.xdist_group("golden"), pytest.mark.timeout(300)]


@pytest.fixture
def own(place, monkeypatch):
    """The module of a user's own, beside nothing: it is found where Python looks for modules."""
    place.add("points", "objects")
    monkeypatch.syspath_prepend(str(place.folder))
    import mine_objects

    yield mine_objects
    for name in ("mine_points", "mine_objects"):
        sys.modules.pop(name, None)


def recipe(own, **sections):
    return {
        "name": "own",
        "task": own.Sides(width=3),
        "data": {"train": {"sources": [own.Listed(48)]}, "validation": {"spots": own.Listed()}},
        "lanes": 4,
        "batch": {"size": 8, "micro": 2},
        "budget": {"steps": 12},
        "optimizer": {"kind": torch.optim.NAdam, "lr": 1e-2, "momentum_decay": 0.01},
        "schedule": partial(own.falling, least=0.2),
        "checkpoint": {"every": {"steps": 5}},
        "evaluate": {"every": {"steps": 6}},
        "launch": {"threads": 1},
        **sections,
    }


WRITTEN = {
    "task": {"kind": "mine_points:Sides", "width": 3},
    "data": {
        "train": {"sources": [{"kind": "mine_objects:Listed", "count": 48}]},
        "validation": {"spots": {"kind": "mine_objects:Listed", "count": 40}},
    },
    "optimizer": {"kind": "torch.optim:NAdam", "lr": 1e-2, "momentum_decay": 0.01},
    "schedule": {"kind": "mine_points:falling", "least": 0.2},
}


def train(made, *overrides, **options):
    return drivetrain.train(made, overrides, progress=False, **options)


def refused(made, *overrides, **options):
    with pytest.raises(Failure) as caught:
        train(made, *overrides, **options)
    assert caught.value.outcome.code is Exit.BAD_RECIPE
    return str(caught.value)


@pytest.mark.parametrize("world", [1, 2])
def test_an_object_whose_arguments_are_known_is_as_if_it_were_written(own, place, world):
    asked = f"launch.processes={world}"
    objects = train(recipe(own), asked)
    assert objects.objects == {}
    assert objects.run.name == f"own-{objects.run.name.rpartition('-')[2]}"
    place.write(**recipe(own, **WRITTEN))
    assert place.train("written", asked) == 0, place.err
    assert trace(objects.run) == trace(Path("written"))
    tree = json.loads((objects.run / "resolved.json").read_text())["recipe"]
    assert {name: tree["task"][name] for name in WRITTEN["task"]} == WRITTEN["task"]
    assert place("train", "own.json", asked) == 0, place.err
    assert os.listdir("runs") == [objects.run.name], "one recipe, one place"
    assert place("evaluate", objects.run) == 0, place.err


@pytest.mark.parametrize("world", [1, 2])
def test_an_object_stopped_and_given_again_equals_never_stopped(own, world):
    asked = f"launch.processes={world}"
    whole = train(recipe(own), asked, run="whole")
    assert train(recipe(own), asked, "stop.at=[4]", run="parts").stopped
    assert train(recipe(own), asked, "stop.at=[7]", run="parts").stopped
    assert not train(recipe(own), asked, run="parts").stopped
    assert trace(Path("parts")) == trace(whole.run)


def only_here(own, **sections):
    """What no recipe can name: a function of its own in the task, what was put on a table, a closure."""
    made = own.Wrapped(own.made, width=5)
    least = 0.3
    here = {
        "task": made,
        "data": {"train": {"sources": [own.Points(48)]}, "validation": {"spots": own.Points(24)}},
        "schedule": lambda samples, total: max(least, 1 - samples / total),
    }
    return recipe(own, **{**here, **sections})


def test_an_object_of_this_process_alone_goes_on_where_it_stopped_when_it_is_given_again(own):
    again = only_here(own)
    whole = train(again, run="whole")
    assert train(again, "stop.at=[4]", run="parts").stopped
    assert train(only_here(own), "stop.at=[7]", run="parts").stopped
    last = train(again, run="parts")
    assert trace(last.run) == trace(whole.run)
    assert last.networks()["model"][0].out_features == 5
    other = only_here(own, task=own.Wrapped(own.made, width=6))
    with pytest.raises(Failure) as caught:
        train(other, run="parts")
    assert caught.value.outcome.code is Exit.INCOMPATIBLE
    assert "task.width: 5 -> 6" in str(caught.value)


def test_commands_on_a_run_of_such_an_object_say_what_to_pass(own, place):
    train(only_here(own), run="run")
    for command in (
        ("train", "run"),
        ("evaluate", "run"),
        ("verify", "run"),
        ("export", "run", "--to", "exported"),
        ("predict", "run", "--data", "spots", "--to", "made.jsonl"),
        ("recipe", "check", "run"),
        ("train", "run", "--steps", "0"),
    ):
        assert place(*command) == Exit.BAD_RECIPE, (command, place.out, place.err)
        assert "call drivetrain.train(..., run=...) with the recipe and the object" in place.err, command
    for command in (("report", "run"), ("checkpoint", "list", "run"), ("recipe", "show", "run")):
        assert place(*command) == 0, place.err
    assert place("diff", "run") == 0, place.err


def test_without_a_folder_such_an_object_is_refused_and_so_it_is_with_several_processes_or_workers(own):
    said = refused(only_here(own))
    assert "Wrapped is an object that no recipe can name, and nothing else names the run" in said
    said = refused(only_here(own), "launch.processes=2", run="run")
    assert "Wrapped is an object of this process, which 2 processes (launch.processes) do not have" in said
    assert "\n" not in said
    said = refused(only_here(own), "data.train.workers=1", run="run")
    assert "processes that read samples (data.train.workers: 1) do not have" in said
    assert not Path("run").exists()


def test_a_task_that_was_changed_after_it_was_made_is_refused_or_used_itself(own):
    changed = own.Sides(width=3)
    changed.width = 7
    said = refused(recipe(own, task=changed))
    assert "mine_points:Sides has width = 7, and 3 where it is made of its arguments" in said
    result = train(recipe(own, task=changed), "stop.at=[1]", run="run")
    assert result.networks()["model"][0].out_features == 7


def test_callbacks_and_sinks_are_the_objects_themselves_and_need_no_folder(own):
    heard, sent = own.Collecting(), own.Gathering()
    result = train(recipe(own, callbacks=[heard], watch={"sinks": [sent]}))
    assert heard.steps == list(range(1, 13))
    assert sent.kinds.count("step") == 12
    assert trace(result.run) == trace(train(recipe(own), run="without").run)


def test_metrics_are_made_anew_for_each_lane_of_the_object_that_is_given(own):
    right = own.Right(scale=100.0)
    result = train(recipe(own, task=own.Told(), evaluate={"metrics": {"right": right}, "batch": 3}, exact=True))
    assert 0 < result.metrics["spots"]["right"] <= 100
    assert right.count == 0
    sections = {"kind": "plateau", "metric": "spots/right", "mode": "max", "every": {"steps": 6}}
    made = recipe(own, task=own.Told(), evaluate={"metrics": {"right": right}}, schedule=sections)
    assert "Right is an object that no recipe can name" in refused(made)


def test_classes_and_functions_are_kinds_and_their_arguments_stand_beside_them(own):
    task = {"kind": own.Sides, "width": 3}
    made = recipe(own, task=task, schedule={"kind": own.falling, "least": 0.2, "warmup": {"steps": 2}})
    assert load_of(made)["task"]["kind"] == "mine_points:Sides"
    assert load_of(made)["schedule"]["kind"] == "mine_points:falling"
    assert train(made, "stop.at=[1]").stopped


def load_of(made):
    from drivetrain.spec.objects import Given

    return load(Given(lasting=True).plain(made)).tree


class Silent:
    """Has no method that hears of anything."""


def iter_of(count):
    yield from range(count)


@pytest.mark.parametrize(
    ("sections", "words"),
    [
        ({"optimizer": torch.optim.SGD([torch.zeros(1)], lr=1.0)}, "give its class"),
        ({"optimizer": torch.optim.NAdam}, "'lr' is missing"),
        ({"task": object()}, "task: is no task, but an object"),
        ({"callbacks": [Silent()]}, "callbacks[0]: is no callback, but a Silent"),
        ({"data": {"train": {"sources": [iter_of(40)]}}}, "a generator that has begun: give the function"),
        ({"data": {"train": {"sources": [torch.utils.data.DataLoader([1])]}}}, "a DataLoader, which makes batches"),
        ({"callbacks": [lambda record: None]}, "_lambda_ is no callback"),
        ({"batch": {"size": torch.optim.SGD}}, "is no plain data, but the class SGD"),
    ],
)
def test_what_is_no_kind_is_a_mistake(own, sections, words):
    assert words in refused(recipe(own, **sections), run="run")


def test_arguments_of_a_partial_are_known_by_their_places_too(own):
    def streamed(source):
        return load_of(recipe(own, data={"train": {"sources": [source]}}, budget={"steps": 2}))

    by_name = streamed({"kind": "mine_objects:point_stream", "count": 40})
    assert streamed(partial(own.point_stream, 40)) == streamed(partial(own.point_stream, count=40)) == by_name


def test_an_object_that_is_a_stream_is_a_source_and_goes_on(own):
    def trained(run, *overrides):
        return train(recipe(own, data={"train": {"sources": [own.Numbered(96)]}}), *overrides, run=run)

    assert trained("stopped", "stop.at=[5]").step == 5
    stopped, whole = trained("stopped"), trained("whole")
    assert stopped.step == whole.step == 12
    assert stopped.losses == whole.losses


def test_a_stream_that_is_an_object_goes_on_where_it_stopped_and_is_read_from_its_beginning_each_time(own):
    points = own.Points(90)
    stream = own.Listing([points[number] for number in range(90)])
    made = only_here(own, data={"train": {"sources": [stream]}, "validation": {"spots": own.Points(24)}})
    whole = train(made, run="whole")
    assert train(made, "stop.at=[10]", run="parts").stopped
    last = train(made, run="parts")
    assert trace(last.run) == trace(whole.run)
    assert stream.at == 0


def test_a_stream_that_can_be_read_only_once_is_refused(own):
    data = {"train": {"sources": [iter([1, 2])]}, "validation": {"spots": own.Points(24)}}
    words = "data.train.sources[0]: is no source, but an iterator, which is over after one pass"
    assert words in refused(only_here(own, data=data), run="run")
