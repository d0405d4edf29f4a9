"""Optimizers and schedules of a user's own in whole runs: found, checked, and the same bits after any stop."""

import json

import pytest
import torch

import drivetrain
from conftest import tensors, trace
from drivetrain.ledger.ledger import read
from drivetrain.ledger.records import AttemptRecord
from drivetrain.spec.exits import Exit, Failure
from drivetrain.spec.installed import installed_kinds
from drivetrain.spec.load import load

pytestmark = [pytest.mark.xdist_group("golden"), pytest.mark.timeout(300)]


def attempts(run):
    return [record for record in read(run / "ledger.jsonl") if isinstance(record, AttemptRecord)]


OPTIMIZERS = {
    "nadam": {"kind": "torch.optim:NAdam", "lr": 1e-2, "weight_decay": 0.01, "momentum_decay": 0.01},
    "asgd": {"kind": "torch.optim:ASGD", "lr": 1e-2, "t0": 3.0},
    "rprop": {"kind": "torch.optim:Rprop", "lr": 1e-2, "clip": 1.0},
    "rows": {"kind": "mine_kinds:Rows", "lr": 1e-1},
    "numbers": {"kind": "mine_kinds:Counting", "lr": 1e-1, "weight_decay": 0.1, "beta": 0.8},
}


@pytest.mark.parametrize("world", [1, 2])
@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_an_own_optimizer_stopped_and_gone_on_equals_never_stopped(place, kind, world):
    place.write(optimizer=OPTIMIZERS[kind])
    asked = f"launch.processes={world}"
    assert place.train("whole", asked) == Exit.DONE, place.err
    assert place.train("parts", asked, "--steps", 4) == Exit.STOPPED
    assert place.train("parts", asked, "--steps", 3) == Exit.STOPPED
    assert place.train("parts", asked) == Exit.DONE
    assert trace(place.folder / "parts") == trace(place.folder / "whole")


def test_numbers_of_state_and_groups_are_in_the_commit_by_what_they_are(place):
    place.write(optimizer=OPTIMIZERS["numbers"])
    assert place.train("run", "--steps", 5) == Exit.STOPPED
    found = {name.rpartition("/")[2]: tensor for name, tensor in tensors(place.folder / "run").items() if "#" in name}
    assert {"k#int", "d#float", "age#int", "scale#float", "odd#bool"} == found.keys()
    assert (found["k#int"].item(), found["age#int"].item(), found["odd#bool"].item()) == (5, 5, True)
    assert found["d#float"].item() == pytest.approx(1e-2 * 1.01**5)


def test_what_has_no_optimizer_takes_a_commit_with_numbers_of_one(place):
    place.write(optimizer=OPTIMIZERS["numbers"], init=None)
    assert place.train("run", "--steps", 5) == Exit.STOPPED
    assert place("evaluate", "run") == Exit.DONE, place.err
    assert place("export", "run", "--to", "exported") == Exit.DONE, place.err
    place.write(optimizer=OPTIMIZERS["nadam"], init={"from": str(place.folder / "run")})
    assert place.train("other", "--steps", 1) == Exit.STOPPED, place.err


def test_another_argument_is_another_run_and_an_argument_that_is_not_there_a_mistake(place):
    place.write(optimizer=OPTIMIZERS["nadam"])
    assert place("recipe", "check", "own.json") == 0
    digest = place.out.split("digest ")[1]
    assert place("recipe", "check", "own.json", "optimizer.momentum_decay=0.02") == 0
    assert place.out.split("digest ")[1] != digest
    for override, words in (
        ("optimizer.momentum_dekay=1", "unknown key 'momentum_dekay'; did you mean 'momentum_decay'?"),
        ("optimizer.momentum_decay=x", "momentum_decay: Input should be a valid number"),
        ("optimizer.layerwise=true", "layerwise is for drivetrain's own kinds"),
        ("optimizer.groups=[{match: nothing_at_all}]", None),
    ):
        code = place("recipe", "check", "own.json", override)
        assert (code, words is None or words in place.err) == (0 if words is None else Exit.BAD_RECIPE, True), place.err


def test_the_run_shows_its_recipe_as_it_was_given(place):
    place.write(optimizer=OPTIMIZERS["nadam"])
    shown = load(place.folder / "own.json").tree["optimizer"]
    assert {key: shown[key] for key in OPTIMIZERS["nadam"]} == OPTIMIZERS["nadam"]
    assert "own" not in shown
    assert load({**load(place.folder / "own.json").tree}).tree["optimizer"] == shown


@pytest.mark.parametrize(
    ("section", "kind", "code", "words"),
    [
        ("optimizer", "os:system", Exit.SECURITY, "a class that extends torch.optim.Optimizer"),
        ("optimizer", "mine_kinds:Plain", Exit.SECURITY, "is no optimizer"),
        ("optimizer", "mine_kinds:Waves", Exit.SECURITY, "is no optimizer"),
        ("optimizer", "torch.optim:Optimizer", Exit.BAD_RECIPE, "Optimizer has no step of its own"),
        ("optimizer", "mine_kinds:Nothing", Exit.BAD_RECIPE, "has no 'Nothing'"),
        ("schedule", "os:system", Exit.SECURITY, "or a function whose first parameters are samples, total"),
        ("schedule", "mine_kinds:helper", Exit.SECURITY, "is no schedule"),
        ("schedule", "mine_kinds:Plain", Exit.SECURITY, "is no schedule"),
        ("schedule", "nowhere:saw", Exit.BAD_RECIPE, "no module 'nowhere'"),
    ],
)
def test_what_is_no_such_thing_is_refused_with_its_place_and_never_called(place, section, kind, code, words):
    place.write(**{section: {"kind": kind, **({"lr": 0.1} if section == "optimizer" else {})}})
    for command in (("recipe", "check", "own.json"), ("train", "own.json", "--run", "run")):
        assert place(*command) == code
        assert words in place.err
        assert "own.json" in place.err
    assert not (place.folder / "run" / "checkpoints").exists()


@pytest.mark.parametrize(
    ("kind", "settings", "words"),
    [
        ("Deaf", {}, "takes no lr"),
        ("Closing", {}, "needs a closure"),
        ("Listing", {}, "keeps 'seen', a list"),
        ("Wrapping", {}, "changes in its attribute 'slow'"),
    ],
)
def test_an_optimizer_that_cannot_train_here_is_78_and_says_why(place, kind, settings, words):
    place.write(optimizer={"kind": f"mine_kinds:{kind}", "lr": 0.1, **settings})
    assert place.train("run", "--steps", 2) == Exit.BAD_RECIPE
    assert words in place.err


def test_an_own_schedule_is_a_function_or_a_class_and_comes_after_the_warm_up(place):
    place.write(schedule={"kind": "mine_kinds:saw", "warmup": {"steps": 2}, "period": 32})
    assert place.train("saw") == Exit.DONE, place.err
    rates = place.rates("saw")
    assert rates[1] == pytest.approx(1e-2 / 2 * (1 - 8 / 32))
    assert rates[3] == pytest.approx(1e-2 * (1 - 24 / 32))
    assert rates[4] == 1e-2
    place.write(schedule={"kind": "mine_kinds:Waves", "waves": 2})
    assert place.train("waves") == Exit.DONE
    assert place.rates("waves")[6] == pytest.approx(1e-2)
    (attempt,) = attempts(place.folder / "waves")
    assert "mine_kinds.py" in attempt.user_code.files


def test_a_factor_that_is_no_number_ends_the_run_with_its_place(place):
    place.write(schedule={"kind": "mine_kinds:not_finite"})
    assert place.train("run") == Exit.BAD_RECIPE
    assert "mine_kinds:not_finite gives nan at 56 samples" in place.err


@pytest.mark.parametrize(
    ("schedule", "words"),
    [
        ({"kind": "mine_kinds:saw", "every": {"steps": 2}}, "saw takes no scores"),
        ({"kind": "mine_kinds:told"}, "told reads scores, and schedule.every does not say"),
        ({"kind": "mine_kinds:huge"}, "gives 1000"),
    ],
)
def test_a_schedule_that_cannot_be_followed_is_78_and_says_why(place, schedule, words):
    place.write(schedule=schedule)
    assert place.train("run") == Exit.BAD_RECIPE
    assert words in place.err


PLATEAU = {
    "kind": "plateau",
    "metric": "dogs/loss",
    "every": {"steps": 2},
    "patience": 0,
    "factor": 0.5,
    "threshold": 9.0,
}
FOLLOWING = {"plateau": PLATEAU, "own": {"kind": "mine_kinds:Halving", "every": {"steps": 2}}}
FOLLOWING["function"] = {"kind": "mine_kinds:told", "every": {"steps": 2}}


@pytest.mark.parametrize("world", [1, 2])
@pytest.mark.parametrize("kind", FOLLOWING)
def test_a_rate_that_follows_scores_is_the_same_after_any_stop(place, kind, world):
    place.write(
        schedule=FOLLOWING[kind], optimizer={"kind": "adamw", "lr": 3.0}, evaluate={"every": None, "batch": 256}
    )
    asked = f"launch.processes={world}"
    assert place.train("whole", asked) == Exit.DONE, place.err
    for count in (3, 2, 3):
        assert place.train("parts", asked, "--steps", count) == Exit.STOPPED
    assert place.train("parts", asked) == Exit.DONE
    assert trace(place.folder / "parts") == trace(place.folder / "whole")
    rates = list(place.rates("whole").values())
    assert rates[0] == 3.0 > rates[-1], "it has fallen"
    assert rates == sorted(rates, reverse=True)


def test_other_evaluations_move_no_rate(place):
    place.write(schedule=PLATEAU)
    assert place.train("few") == Exit.DONE
    assert place.train("many", "evaluate.every={steps: 1}") == Exit.DONE
    assert place.rates("few") == place.rates("many")
    assert place("recipe", "check", "own.json", "evaluate.every={steps: 1}") == 0
    digest = place.out
    assert place("recipe", "check", "own.json", "evaluate.batch=4") == 0
    assert place.out != digest, "how scores are made decides bits here"


def test_a_plateau_of_a_set_that_is_not_there_is_a_mistake(place):
    place.write(schedule=PLATEAU | {"metric": "cats/loss"})
    assert place("recipe", "check", "own.json") == Exit.BAD_RECIPE
    assert "is SET/METRIC with a validation set of this recipe: dogs" in place.err
    place.write(schedule=PLATEAU | {"metric": "dogs/accuracy"})
    assert place.train("run") == Exit.BAD_RECIPE
    assert "schedule.metric: the task has no metric 'accuracy'" in place.err


def test_a_plateau_of_a_metric_that_nobody_makes_ends_and_names_those_there_are(place):
    place.write(schedule=PLATEAU | {"metric": "dogs/los"})
    assert place.train("run") == Exit.BAD_RECIPE
    assert "schedule.metric: the task has no metric 'los'. there are loss, perplexity" in place.err


def heard(folder):
    """What each process wrote down."""
    return sorted(path.read_text().splitlines() for path in folder.glob("heard-*"))


@pytest.mark.parametrize("world", [1, 2])
def test_a_callback_hears_what_the_ledger_is_told_on_the_leader(place, world):
    place.write(callbacks=[{"kind": "mine_kinds:Hearing", "path": str(place.folder / "heard")}])
    assert place.train("run", f"launch.processes={world}") == Exit.DONE, place.err
    (lines,) = heard(place.folder)
    assert lines[0] == "attempt 1 from 0"
    assert [line for line in lines if line.startswith("step")] == [f"step {step} ['loss']" for step in range(1, 13)]
    assert "evaluation 6 ['dogs'] ['model']" in lines
    assert [line for line in lines if "commit" in line] == [f"commit step-{step:08d}" for step in (5, 10, 12)]
    assert lines[-1] == "exit 0"


def test_a_callback_may_be_on_every_rank_and_a_function_may_be_one(place):
    own = [
        {"kind": "mine_kinds:HearingEverywhere", "path": str(place.folder / "heard")},
        {"kind": "mine_kinds:on_commit", "path": str(place.folder / "names")},
    ]
    place.write(callbacks=own)
    assert place.train("run", "launch.processes=2") == Exit.DONE, place.err
    one, other = heard(place.folder)
    assert [line for line in one if "step" in line.split()[0]] == [line for line in other if "step" in line.split()[0]]
    assert (place.folder / "names").read_text().split() == [f"step-{step:08d}" for step in (5, 10, 12)]


def test_callbacks_move_no_bit_and_make_no_other_run(place):
    place.write()
    assert place("recipe", "check", "own.json") == 0
    digest = place.out
    assert place.train("without") == Exit.DONE
    place.write(callbacks=[{"kind": "mine_kinds:Hearing", "path": str(place.folder / "heard")}])
    assert place("recipe", "check", "own.json") == 0
    assert place.out == digest
    assert place.train("with") == Exit.DONE
    assert trace(place.folder / "with") == trace(place.folder / "without")
    (attempt,) = [
        record for record in read(place.folder / "with" / "ledger.jsonl") if isinstance(record, AttemptRecord)
    ]
    assert attempt.user_code.files["mine_kinds.py"].affects == "nothing"
    assert attempt.claim.code is None


def test_what_a_callback_raises_ends_the_run_with_its_name(place):
    place.write(callbacks=[{"kind": "mine_kinds:Breaking"}])
    assert place.train("run") == Exit.INTERNAL
    assert "of the callback's own" in place.err


@pytest.mark.parametrize("how", ["mode", "weight", "buffer", "frozen"])
def test_a_callback_that_changes_a_network_is_78(place, how):
    place.write(callbacks=[{"kind": "mine_kinds:Meddling", "how": how}])
    assert place.train("run") == Exit.BAD_RECIPE
    assert "Meddling.on_step has changed a network" in place.err


def test_what_a_callback_does_to_its_record_is_in_no_ledger_and_moves_no_rate(place):
    place.write(schedule=PLATEAU)
    assert place.train("without") == Exit.DONE
    place.write(schedule=PLATEAU, callbacks=[{"kind": "mine_kinds:Scribbling"}])
    assert place.train("with") == Exit.DONE
    assert trace(place.folder / "with") == trace(place.folder / "without")


@pytest.mark.parametrize("code", [0, 3, 75])
def test_user_code_that_ends_the_process_has_neither_stopped_nor_finished_the_run(place, code):
    place.write(callbacks=[{"kind": "mine_kinds:Leaving", "code": code}])
    assert place.train("run") == Exit.INTERNAL
    assert f"SystemExit: {code}" in place.err


def test_an_event_that_is_none_is_a_mistake_and_an_attribute_is_no_event(place):
    place.write(callbacks=[{"kind": "mine_kinds:Misspelled"}])
    assert place("recipe", "check", "own.json") == Exit.BAD_RECIPE
    assert "there is no event 'on_comit'; did you mean 'on_commit'?" in place.err
    place.write(callbacks=[{"kind": "mine_kinds:Attributed"}])
    assert place.train("run", "--steps", 1) == Exit.STOPPED, place.err


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("mine_kinds:helper", "is no callback"),
        ("mine_kinds:Plain", "a class with a method such as on_step"),
        ("os:system", ""),
    ],
)
def test_what_hears_nothing_is_no_callback(place, kind, words):
    place.write(callbacks=[{"kind": kind}])
    for command in (("recipe", "check", "own.json"), ("train", "own.json", "--run", "run")):
        assert place(*command) == Exit.SECURITY
        assert words in place.err


def test_there_is_an_event_for_each_kind_of_record_that_an_attempt_writes():
    from drivetrain.ledger.records import KINDS, AttemptPart
    from drivetrain.spec.custom import EVENTS

    assert {f"on_{kind}" for kind, cls in KINDS.items() if issubclass(cls, AttemptPart)} == set(EVENTS)


def test_an_own_sink_gets_each_row_once_over_all_attempts(place):
    place.write(watch={"sinks": [{"kind": "mine_kinds:Writing", "path": "rows"}]})
    assert place.train("run", "--steps", 5) == Exit.STOPPED
    assert place.train("run") == Exit.DONE
    lines = (place.folder / "rows").read_text().splitlines()
    made = [line for line in lines if line.startswith("step")]
    assert made == [f"step {step}" for step in range(1, 13)]
    assert lines.count("open run") == lines.count("close") == 2
    place.write(watch={"sinks": [{"kind": "mine_kinds:Waves", "waves": 2}]})
    assert place.train("other") == Exit.SECURITY
    assert "a sink is a class that has send" in place.err
    place.write(watch={"sinks": [{"kind": "mine_kinds:Writing", "paht": "rows"}]})
    assert place("recipe", "check", "own.json") == Exit.BAD_RECIPE
    assert "did you mean 'path'" in place.err


PACKAGE = {
    "tasks": ("Spiral", "spiral", {}),
    "optimizers": ("Counting", "counting", {"optimizer": {"kind": "counting", "lr": 0.1}}),
    "schedules": ("saw", "saw", {"schedule": {"kind": "saw", "period": 16}}),
    "callbacks": ("Hearing", "hearing", {"callbacks": [{"kind": "hearing", "path": "/dev/null"}]}),
    "sinks": ("Writing", "writing", {"watch": {"sinks": [{"kind": "writing", "path": "rows"}]}}),
}


@pytest.fixture
def package(place, monkeypatch):
    """Another package, installed where Python finds it, that adds one kind of each."""
    text = "".join(f"[drivetrain.{group}]\n{name} = mine_kinds:{cls}\n" for group, (cls, name, _) in PACKAGE.items())
    folder = place.folder / "adds_kinds-1.5.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: adds-kinds\nVersion: 1.5\n")
    (folder / "entry_points.txt").write_text(text)
    monkeypatch.syspath_prepend(str(place.folder))
    installed_kinds.cache_clear()
    yield place
    installed_kinds.cache_clear()


@pytest.mark.parametrize("group", [group for group, (_, _, sections) in PACKAGE.items() if sections])
def test_an_installed_package_adds_a_kind_by_an_entry_point(package, group):
    cls, name, sections = PACKAGE[group]
    package.write(**sections)
    assert package.train("run", "--steps", 2) == Exit.STOPPED, package.err
    resolved = json.dumps(json.loads((package.folder / "run" / "resolved.json").read_text())["recipe"])
    assert f'"kind": "mine_kinds:{cls}"' in resolved, "a run names what it is made of, whoever adds it"
    assert package("recipe", "kinds", group[:-1]) == 0
    assert [line.split()[1:4] for line in package.out.splitlines() if f" {name} " in line] == [
        [name, "adds-kinds", "1.5"]
    ]


def test_a_kind_that_two_packages_add_is_refused(package):
    folder = package.folder / "other-2.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: other\nVersion: 2.0\n")
    (folder / "entry_points.txt").write_text("[drivetrain.optimizers]\ncounting = elsewhere:Counting\n")
    package.write(optimizer={"kind": "counting", "lr": 0.1})
    assert package("recipe", "check", "own.json") == Exit.BAD_RECIPE
    assert "both add the optimizer 'counting'" in package.err


def test_kinds_are_listed_for_programs_and_an_unknown_section_is_64(place):
    assert place("recipe", "kinds", "--json") == 0
    found = json.loads(place.out)
    assert {kind["name"] for kind in found["schedule"]} >= {"plateau", "cosine", "package.module:Name"}
    assert place("recipe", "kinds", "optimiser") == Exit.BAD_COMMAND
    assert "did you mean 'optimizer'" in place.err


def test_a_result_is_read_again_and_gives_networks(place):
    place.write()
    told = drivetrain.train(place.folder / "own.json", run="run", progress=False)
    again = drivetrain.Result.load("run")
    assert (again.run.name, again.step, again.losses, again.metrics) == ("run", 12, told.losses, told.metrics)
    assert not told.stopped
    assert not again.stopped
    networks = again.networks()
    assert not networks["model"].training
    held = tensors(place.folder / "run")
    for name, tensor in networks["model"].state_dict().items():
        assert torch.equal(tensor, held.get(f"networks/model/{name}", tensor))
    assert drivetrain.report("run")["steps"] == 12
    with pytest.raises(Failure) as caught:
        drivetrain.report("elsewhere")
    assert caught.value.outcome.code is Exit.INPUT_MISSING


@pytest.mark.parametrize(
    ("section", "settings", "words"),
    [
        ("schedule", {"kind": "mine_kinds:Abstract"}, "is an abstract class: it lacks factor"),
        ("schedule", {"kind": "mine_kinds:Positional", "period": 3}, "takes 'period' by position only"),
        (
            "schedule",
            {"kind": "mine_kinds:Narrow"},
            "factor(self, samples: int) -> float is called with (samples, total)",
        ),
        ("callbacks", [{"kind": "mine_kinds:Unaware"}], "on_step(self) is called with (record)"),
    ],
)
def test_a_class_that_nobody_could_call_is_78_before_anything_is_built(place, section, settings, words):
    place.write(**{section: settings})
    for command in (("recipe", "check", "own.json"), ("train", "own.json", "--run", "run")):
        assert place(*command) == Exit.BAD_RECIPE
        assert words in place.err
        assert "own.json" in place.err


def test_a_constructor_that_raises_is_78_with_its_place(place):
    place.write(schedule={"kind": "mine_kinds:Failing"})
    assert place.train("run") == Exit.BAD_RECIPE
    assert "mine_kinds:Failing: its constructor raises LookupError: there is no such period, at " in place.err
    assert 'raise LookupError("there is no such period")' in place.err


def test_what_gives_no_factor_is_78_and_numbers_of_numpy_and_torch_are_numbers(place):
    place.write(schedule={"kind": "mine_kinds:Factorless"})
    assert place.train("run") == Exit.BAD_RECIPE
    assert "mine_kinds:Factorless gives None at 8 samples" in place.err
    for kind in ("float32", "tensor"):
        place.write(schedule={"kind": "mine_kinds:Numpy", "arguments": {"kind": kind}})
        assert place.train(kind, "--steps", 1) == Exit.STOPPED, place.err
        assert place.rates(kind)[1] == 5e-3


@pytest.mark.parametrize(("kind", "words"), [("Muon", "2D"), ("SparseAdam", "does not support dense gradients")])
def test_an_optimizer_of_a_package_that_does_not_take_these_weights_is_78(place, kind, words):
    place.write(optimizer={"kind": f"torch.optim:{kind}", "lr": 0.1})
    assert place.train("run", "--steps", 2) == Exit.BAD_RECIPE
    assert words in place.err


def test_arguments_that_are_called_as_our_keys_have_a_place_of_their_own(place):
    given = {"warmup": 0.25, "every": 0.125, "kind": "x", "arguments": 0.125}
    place.write(schedule={"kind": "mine_kinds:Keyed", "warmup": {"steps": 2}, "arguments": given})
    assert place("recipe", "check", "own.json", "--json") == 0, place.err
    digest = json.loads(place.out)["digest"]
    tree = load(place.folder / "own.json").tree
    assert tree["schedule"]["arguments"] == given
    assert tree["schedule"]["warmup"] == {"steps": 2}
    assert load(tree).tree == tree
    assert place("recipe", "check", "own.json", "schedule.arguments.warmup=0.5", "--json") == 0
    assert json.loads(place.out)["digest"] != digest
    assert place.train("run", "--steps", 3) == Exit.STOPPED, place.err
    assert place.rates("run")[3] == 5e-3
    assert place.train("run", "--steps", 1) == Exit.STOPPED, place.err
    assert place.train("run", "schedule.arguments.warmup=0.5") == Exit.INCOMPATIBLE
    assert "schedule.arguments.warmup: 0.25 -> 0.5" in place.err


def test_where_an_argument_stands_decides_nothing_and_twice_is_a_mistake(place):
    digests = set()
    for settings in ({"period": 16}, {"arguments": {"period": 16}}):
        place.write(schedule={"kind": "mine_kinds:saw", **settings})
        assert place("recipe", "check", "own.json", "--json") == 0, place.err
        digests.add(json.loads(place.out)["digest"])
    assert len(digests) == 1
    for given, words in (
        ({"period": 16, "arguments": {"period": 16}}, "schedule.arguments.period: is given twice"),
        ({"arguments": 3}, "schedule.arguments: is a mapping of the constructor's arguments (got 3)"),
        ({"arguments": {"peroid": 3}}, "unknown key 'peroid'; did you mean 'period'?"),
        ({"arguments": {"total": 3}}, "'total' is nothing that a recipe gives: a schedule gets it"),
    ):
        place.write(schedule={"kind": "mine_kinds:saw", **given})
        assert place("recipe", "check", "own.json") == Exit.BAD_RECIPE
        assert words in place.err


def test_an_optimizer_may_name_attributes_that_follow_from_its_state(place):
    place.write(optimizer={"kind": "mine_kinds:Caching", "lr": 0.1})
    assert place.train("whole") == Exit.DONE, place.err
    assert place.train("parts", "--steps", 5) == Exit.STOPPED
    assert place.train("parts") == Exit.DONE
    assert trace(place.folder / "parts") == trace(place.folder / "whole")


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("Exiting", "mine_kinds.Exiting-0 lacks the end of this run (SystemExit: 3, at "),
        ("Unclosed", "Unclosed-0 has every row of this run, and fails at its end: OSError: the pipe is gone"),
    ],
)
def test_what_a_sink_does_at_its_end_is_told_as_what_it_is(place, kind, words):
    place.write(watch={"sinks": [{"kind": f"mine_kinds:{kind}"}]})
    assert place.train("run", "--steps", 2) == Exit.STOPPED
    assert words in place.err


def test_a_callback_that_hangs_is_named_by_its_phase(place):
    place.write(callbacks=[{"kind": "mine_kinds:Sleeping"}], launch={"threads": 1, "hang_after": 2, "restarts": 0})
    assert place.train("run") == Exit.HANG
    assert "rank 0 at step 4 (callback)" in place.err
