"""Networks that train against each other: who moves when, and from stage to stage."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.functional import softplus

import drivetrain
from adversarial import made, recipe, train
from conftest import run_under_supervisor, tensors, trace
from drills.fault import Fault
from drills.runs import drill, reference
from drivetrain.checkpoint.commits import newest
from drivetrain.data.dataset import MapSource
from drivetrain.data.order import Order
from drivetrain.engine.recipe import Network
from drivetrain.launch.inbox import post
from drivetrain.ledger.derive import lineage, samples_used
from drivetrain.ledger.ledger import read
from drivetrain.run.build import build_networks, build_task
from drivetrain.run.proof import prove
from drivetrain.spec.commands import parse
from drivetrain.spec.exits import Exit, Failure
from drivetrain.spec.load import load

pytestmark = pytest.mark.usefixtures("importable", "forked")


@given(st.integers(1, 20), st.integers(1, 9), st.integers(1, 9), st.integers(0, 50))
def test_moves_are_spread_evenly_from_the_start_on(start, one, other, after):
    turns = Network(start=start, turns=(min(one, other), max(one, other)))
    assert turns.first >= start
    assert not any(turns.moves(step) for step in range(2, turns.first))
    first = turns.first + after + 1
    assert sum(turns.moves(step) for step in range(first, first + turns.turns[1])) == turns.turns[0]
    assert [step for step in range(1, start + 3) if turns.joined(step)] == sorted({1, *range(start, start + 3)})


def test_two_to_one_with_a_start_a_schedule_and_a_micro_batch_of_its_own_is_the_schedule_by_hand(tmp_path):
    run = train(recipe(), tmp_path / "run").run
    loaded = load(recipe()).recipe
    nets = build_networks(build_task(loaded), loaded, torch.device("cpu"))
    average = {name: p.detach().clone() for name, p in nets["generator"].named_parameters()}
    norms = by_hand(nets, average, MapSource(loaded.data.train.sources[0], loaded.seed))
    found = tensors(run)
    for name, net in nets.items():
        for parameter, tensor in net.named_parameters():
            assert torch.allclose(found[f"networks/{name}/{parameter}"], tensor, atol=1e-6)
    for name, tensor in average.items():
        assert torch.allclose(found[f"averages/generator/{name}"], tensor, atol=1e-6)
    assert not any(name.startswith("averages/discriminator") for name in found)
    steps = made(run)
    assert [step["norm"] for step in steps] == [pytest.approx(norm, rel=1e-5) for norm in norms]
    assert newest(run).state.values["moves"] == {"generator": 7, "discriminator": 10}
    assert [step["step"] for step in steps if "generator" in step["norm"]] == [1, 2, 4, 6, 8, 10, 12]
    assert [step["step"] for step in steps if "discriminator.loss" in step["losses"]] == [1, *range(4, 13)]
    assert [step["lr"]["discriminator"] for step in steps[:3]] == [0, 0, 0]


def by_hand(nets, average, source):
    """Twelve steps in plain torch; the gradient norms of each."""
    g, d = nets["generator"], nets["discriminator"]
    decayed = [{"params": [p for p in g.parameters() if p.ndim > 1], "weight_decay": 0.01}]
    decayed += [{"params": [p for p in g.parameters() if p.ndim < 2], "weight_decay": 0.0}]
    move_g, move_d = torch.optim.AdamW(decayed), torch.optim.SGD(d.parameters(), momentum=0.9)
    norms = [{} for _ in range(12)]
    for step, norm in enumerate(norms, 1):
        batch = samples_of(source, step)
        moves_g, moves_d = step == 1 or step % 2 == 0, step == 1 or step >= 4
        progress_g, progress_d = step - 1, step - 3  # steps since its schedule began, of 11 and of 9
        rise, share = min(1, progress_g / 2), max(0.0, (progress_g - 2) / 9)
        rate_g = 2e-3 * rise * (1 + math.cos(math.pi * share)) / 2
        rise, share = min(1, progress_d / 3), max(0.0, (progress_d - 3) / 6)
        rate_d = 1e-2 * rise * (1 - 0.9 * share) if progress_d > 0 else 0.0
        fakes = g(batch[:, 3:]).detach()
        if moves_g:
            move_g.zero_grad()
            for part in batch.split(8):
                made = g(part[:, 3:])
                loss = (made - part[:, 1:3]).square().mean()
                loss = loss + softplus(-d(made)).mean() if moves_d else loss
                (loss * len(part) / 16).backward()
            norm["generator"] = advance(move_g, g, rate_g, 0.5)
        if moves_d:
            move_d.zero_grad()
            for part, fake in zip(batch.split(5), fakes.split(5), strict=True):  # any cut comes to the same sum
                loss = (softplus(-d(part[:, 1:3])) + softplus(d(fake))).mean()
                (loss * len(part) / 16).backward()
            norm["discriminator"] = advance(move_d, d, rate_d, 1.0)
        if moves_g:
            for name, parameter in g.named_parameters():
                average[name].lerp_(parameter.detach(), 1 - min(0.9, (1 + step) / (10 + step)))
    return norms


def advance(optimizer, network, rate, clip):
    for group in optimizer.param_groups:
        group["lr"] = rate
    norm = torch.nn.utils.clip_grad_norm_(network.parameters(), clip)
    optimizer.step()
    return float(norm)


def samples_of(source, step):
    at = np.arange((step - 1) * 16, step * 16)
    return torch.stack(list(source.read(Order(512, 0, True).ids(at[0], at[-1] + 1), at)))


@pytest.mark.parametrize("processes", [1, 2])
def test_thirty_and_thirty_steps_are_sixty_bit_for_bit(tmp_path, processes):
    wanted = recipe(budget={"steps": 60}, task={"kind": "adversarial:Gan", "dropout": 0.2, "statistics": True})
    wanted["launch"]["processes"] = processes
    assert run_under_supervisor(wanted, tmp_path / "straight").code == Exit.DONE
    for steps in (30, None):
        run_under_supervisor(wanted, tmp_path / "stopped", most_steps=steps)
    assert trace(tmp_path / "stopped") == trace(tmp_path / "straight")


def test_two_processes_then_one_use_the_same_samples(tmp_path):
    wanted = recipe()
    assert train(wanted, tmp_path / "one").step == 12
    for processes, steps in ((2, 7), (1, None)):
        run_under_supervisor(wanted, tmp_path / "both", f"launch.processes={processes}", most_steps=steps)
    used = [samples_used(lineage(read(tmp_path / name / "ledger.jsonl"))) for name in ("one", "both")]
    assert used[0] == used[1]
    one, both = tensors(tmp_path / "one"), tensors(tmp_path / "both")
    assert all(torch.allclose(one[name], both[name], atol=1e-5) for name in one)


def test_exact_mode_knows_micro_batches_of_single_networks(tmp_path):
    """Pieces of a lane's micro-batch do not depend on which other lanes a process has."""
    wanted = recipe(exact=True, batch={"size": 16, "micro": 4}, budget={"samples": 187})
    wanted["task"] = {"kind": "adversarial:Gan", "dropout": 0.2}
    for processes in (1, 2):
        assert run_under_supervisor(wanted, tmp_path / f"{processes}", f"launch.processes={processes}").code == 0
    assert trace(tmp_path / "1") == trace(tmp_path / "2")


def test_a_network_that_has_not_started_is_tried_in_the_first_step_and_not_changed(tmp_path):
    stopped = train(recipe(stop={"at": [3]}), tmp_path / "run").run
    loaded = load(recipe()).recipe
    drawn = build_networks(build_task(loaded), loaded, torch.device("cpu"))["discriminator"]
    found = tensors(stopped)
    for name, parameter in drawn.named_parameters():
        assert torch.equal(found[f"networks/discriminator/{name}"], parameter)
        assert found[f"optimizers/discriminator/{name}/momentum_buffer"].abs().sum() > 0


def test_precisions_by_network(tmp_path):
    wanted = recipe(networks={"generator": {"precision": "fp16"}, "discriminator": {"precision": "fp32"}})
    run = train(wanted, tmp_path / "run").run
    plain = train(recipe(networks={}), tmp_path / "plain").run
    one, other = made(run)[0]["losses"], made(plain)[0]["losses"]
    assert one["generator.loss"] != other["generator.loss"]
    assert one["generator.loss"] == pytest.approx(other["generator.loss"], rel=1e-2)
    assert {step["scale"] for step in made(run)} == {65536.0}
    assert "scaler/scale" in tensors(run)


@pytest.mark.parametrize(
    ("networks", "words"),
    [
        ({"critic": {"start": 2}}, "none called 'critic'"),
        ({"discriminator": {"start": 13}}, "discriminator moves first after 192 samples, and the budget is 192"),
        ({"discriminator": {"micro": 9}}, "networks.discriminator.micro: 9 is more than batch.micro 8"),
        ({"generator": {"turns": [2, 1]}}, "more moves than steps"),
        ({"generator": {"freeze": True}, "discriminator": {"freeze": True}}, "no network has a parameter that trains"),
    ],
)
def test_what_single_networks_cannot_have_is_78(tmp_path, networks, words):
    with pytest.raises(Failure, match=words.replace(".", r"\.")) as caught:
        train(recipe(networks=networks), tmp_path / "run")
    assert caught.value.outcome.code == Exit.BAD_RECIPE


def test_the_average_of_one_network_is_scored_in_its_place(tmp_path):
    data = recipe()["data"] | {"validation": {"ring": {"kind": "adversarial:Ring", "size": 24}}}
    run = train(recipe(data=data), tmp_path / "run").run
    told = made(run, "evaluation")[0]["metrics"]
    assert drivetrain.evaluate(run).metrics == told == drivetrain.evaluate(run, weights="averaged").metrics
    assert drivetrain.evaluate(run, weights="trained").metrics != told


def test_a_schedule_that_was_set_while_it_trains_still_begins_with_the_first_turn(tmp_path):
    """And `verify` finds nothing wrong with a run in which networks take turns."""
    run = tmp_path / "run"
    train(recipe(stop={"at": [5]}), run)
    post(run, parse(["set", "schedule.discriminator.warmup.steps=6"]))
    train(recipe(stop={"at": [5]}), run)
    rates = [step["lr"]["discriminator"] / 1e-2 for step in made(run)]
    assert rates[:7] == pytest.approx([0, 0, 0, 1 / 3, 2 / 3, 3 / 3, 4 / 6])
    assert prove(run)


def test_micro_batches_that_are_cut_are_computed_again_piece_by_piece(tmp_path):
    wanted = recipe(launch={"threads": 1, "processes": 2})
    train(wanted, tmp_path / "plain")
    train(wanted, tmp_path / "checked", "guard.recompute.steps=2")
    assert trace(tmp_path / "checked") == trace(tmp_path / "plain")


# Stage to stage.


def stage_two(first, **changes):
    """The generator of a run, frozen, and a discriminator that trains against it."""
    base = recipe(
        task={"kind": "adversarial:Gan", "statistics": True},
        networks={},
        init=[{"from": str(first), "part": "generator", "freeze": True}],
        optimizer={"kind": "adamw", "lr": 1e-2},
        schedule={"kind": "constant"},
    )
    return base | changes


@pytest.fixture
def first(tmp_path):
    wanted = recipe(task={"kind": "adversarial:Gan", "statistics": True})
    return train(wanted, tmp_path / "first", "networks.discriminator.start=2").run


def test_a_stage_takes_over_frozen_weights_and_reports_them(first, tmp_path):
    run = train(stage_two(first), tmp_path / "second").run
    before, after = tensors(first), tensors(run)
    kept = [name for name in before if name.startswith("networks/generator/")]
    assert any("running_mean" in name for name in kept)
    assert all(torch.equal(before[name], after[name]) for name in kept)
    assert not any(name.startswith("optimizers/generator") for name in after)
    assert not torch.equal(before["networks/discriminator/0.weight"], after["networks/discriminator/0.weight"])
    (report,) = [record for record in read(run / "ledger.jsonl") if record["kind"] == "initial"]
    assert (report["from"], report["source"]) == (str(first), "step-00000012")
    assert report["digest"] == newest(first).metadata["sha256"]
    assert sorted(f"networks/{name}" for name in report["loaded"]) == sorted(kept)
    assert report["bytes"] == sum(before[name].nbytes for name in kept)
    assert report["frozen"] == 6
    (note,) = [record["text"] for record in read(run / "ledger.jsonl") if record["kind"] == "note"]
    assert "9 tensors loaded" in note
    assert "6 parameters do not train" in note


def test_several_places_give_initial_weights_each_to_its_network(first, tmp_path):
    other = train(recipe(seed=5, budget={"steps": 4}, networks={}), tmp_path / "other").run
    wanted = stage_two(first, stop={"at": [1]}, optimizer={"lr": 0.0})
    wanted["init"] = [{"from": str(first), "part": "generator"}, {"from": str(other), "part": "discriminator"}]
    found = tensors(train(wanted, tmp_path / "second").run)
    for network, place in (("generator", first), ("discriminator", other)):
        weights = {
            name: t for name, t in tensors(place).items() if name.startswith(f"networks/{network}") and t.ndim > 1
        }
        assert len(weights) == 2
        assert all(torch.equal(found[name], tensor) for name, tensor in weights.items())


def test_initial_weights_that_do_not_fit_are_76_by_name_and_nothing_is_trained(first, tmp_path):
    wanted = stage_two(first, task={"kind": "adversarial:Gan"})  # no running statistics here
    with pytest.raises(Failure, match=r"unexpected generator/1\.running_mean|missing generator/2\.weight") as caught:
        train(wanted, tmp_path / "second")
    assert caught.value.outcome.code == Exit.INCOMPATIBLE
    assert newest(tmp_path / "second") is None


@pytest.mark.parametrize("phase", ["optimizer", "write", "publish"])
def test_killed_while_it_trains_it_goes_on_with_both_networks_of_one_step(tmp_path, phase):
    """`optimizer`: between the generator's move and the discriminator's."""
    wanted = recipe(launch={"threads": 1, "restarts": 3})
    straight = reference(wanted, tmp_path / "straight")
    fault = Fault("kill", 0, phase, 10, after=1 if phase == "optimizer" else 0)
    found = drill(wanted, tmp_path / "run", fault)
    assert found.starts == 2
    assert found.trace == straight
