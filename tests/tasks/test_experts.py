"""A mixture of experts: who takes which token, what is dropped, what keeps experts busy alike, and the same bits."""

import json
from dataclasses import replace
from math import ceil, inf

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from conftest import run_under_supervisor, tensors
from drivetrain.data.batch_reader import MicroBatch
from drivetrain.engine.activations import recompute_activations
from drivetrain.engine.engine import Engine, MinimizeInputs
from drivetrain.engine.execution import Execution
from drivetrain.engine.placement import replicas
from drivetrain.ledger.derive import curve, lineage
from drivetrain.ledger.ledger import read
from drivetrain.optim.network_optimizer import build_network_optimizers
from drivetrain.optim.recipe import AdamW, Constant
from drivetrain.optim.schedules import Horizon
from drivetrain.plan.flops import flops_per_token, parameters
from drivetrain.runtime.group import Group
from drivetrain.spec.amount import Scale
from drivetrain.spec.batches import Batches
from drivetrain.spec.exits import Exit
from drivetrain.spec.load import load
from drivetrain.spec.tree import RecipeMistakes
from drivetrain.tasks.language_model import recipe
from drivetrain.tasks.language_model.experts import Experts, Router, by_expert, with_room
from drivetrain.tasks.language_model.grouped import grouped_product
from drivetrain.tasks.language_model.recipe import Balance, LanguageModel, Llama
from drivetrain.tasks.language_model.task import LanguageModelTask

CPU = torch.device("cpu")
SETTINGS = recipe.Experts(count=6, top_k=2, hidden=16, shared=1, balance=Balance(rate=0.01, loss=0.1))
MODEL = Llama(width=32, depth=2, heads=2, context=16, vocabulary=50, experts=SETTINGS)


def layer_of(settings, width=16):
    torch.manual_seed(0)
    layer = Experts(width, 8, settings, None)
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return layer


def one_by_one(layer, x):
    """Token by token, expert by expert, first choices before second ones."""
    settings, routed = layer.settings, layer.router(x)
    samples, positions, _ = x.shape
    room = inf if settings.capacity is None else ceil(settings.capacity * positions * settings.top_k / settings.count)
    rows = [[torch.zeros(x.shape[-1]) for _ in range(positions)] for _ in range(samples)]
    dropped = 0
    for sample in range(samples):
        used = [0] * settings.count
        for choice in range(settings.top_k):
            for place in range(positions):
                expert = int(routed.experts[sample, place, choice])
                used[expert] += 1
                if used[expert] > room:
                    dropped += 1
                    continue
                token = x[sample, place]
                inner = F.silu(layer.gate[expert] @ token) * (layer.up[expert] @ token)
                weight = routed.weights[sample, place, choice]
                rows[sample][place] = rows[sample][place] + weight * (layer.down[expert] @ inner)
    return torch.stack([torch.stack(row) for row in rows]), dropped


@pytest.mark.parametrize("capacity", [None, 0.5, 1.0, 8.0])
@pytest.mark.parametrize("scores", ["softmax", "sigmoid"])
@pytest.mark.parametrize("top_k", [1, 3])
def test_a_layer_does_what_each_token_does_by_itself(capacity, scores, top_k):
    layer = layer_of(recipe.Experts(count=5, top_k=top_k, capacity=capacity, scores=scores))
    x = torch.randn(3, 11, 16, requires_grad=True)
    wanted, dropped = one_by_one(layer, x)
    layer.router.counts.zero_()
    found, _ = layer(x)
    assert torch.allclose(found, wanted, atol=1e-5)
    assert layer.router.counts.tolist()[-1] == dropped
    assert int(layer.router.counts[:-1].sum()) == 33 * top_k
    assert (dropped > 0) == (capacity is not None and capacity < 8)
    asked = [x, *layer.parameters()]
    gradients = zip(
        torch.autograd.grad(found.square().sum(), asked), torch.autograd.grad(wanted.square().sum(), asked), strict=True
    )
    for one, other in gradients:
        assert float((one - other).norm()) <= 1e-5 * float(other.norm()) + 1e-7


@given(st.data())
def test_every_choice_has_its_place_and_every_place_its_choice(data):
    samples, positions, count = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 9)), data.draw(st.integers(2, 6))
    each = data.draw(st.integers(1, count))
    experts = torch.rand(samples, positions, count).argsort(-1)[..., :each]
    capacity = data.draw(st.sampled_from([None, 0.3, 1.0, 2.0]))
    way = by_expert(experts, count) if capacity is None else with_room(experts, count, capacity)
    flat, places = experts.flatten(), way.places.flatten()
    there = torch.ones_like(flat, dtype=torch.bool) if way.absent is None else ~way.absent.flatten()
    assert torch.equal(way.choices[places[there]], there.nonzero().squeeze(1))
    assert torch.equal(way.tokens, way.choices // each)
    empty = torch.zeros(len(way.tokens), dtype=torch.bool) if way.empty is None else way.empty
    assert int((~empty).sum()) == int(there.sum())
    if way.ends is None:
        owners = torch.arange(count).repeat_interleave(len(way.tokens) // count)
    else:
        owners = torch.bucketize(torch.arange(len(way.tokens)), way.ends, right=True)
    assert torch.equal(owners[~empty], flat[way.choices[~empty]])


def test_of_equal_scores_the_first_experts_win_and_the_bias_decides_only_who():
    router = Router(8, SETTINGS)
    torch.nn.init.zeros_(router.weight)
    routed = router(torch.randn(2, 5, 8))
    assert routed.experts.unique().tolist() == [0, 1]
    router.bias[4] = 1e-3
    routed = router(torch.randn(2, 5, 8))
    assert routed.experts[0, 0].tolist() == [4, 0]
    assert routed.weights.unique().tolist() == [0.5]


def test_the_balance_is_one_where_all_have_as_much_and_a_sum_over_samples():
    router = Router(6, recipe.Experts(count=6, top_k=1))
    with torch.no_grad():
        router.weight.copy_(torch.eye(6) * 50)
    even = torch.eye(6).unsqueeze(0)
    assert router(even).balance.item() == pytest.approx(1)
    assert router(even[:, :1].expand(1, 6, 6)).balance.item() == pytest.approx(6)  # all to one
    x = torch.randn(4, 7, 6)
    assert router(x).balance.item() == pytest.approx(sum(router(each.unsqueeze(0)).balance.item() for each in x))


def test_scores_are_made_in_float32_whatever_autocast_says():
    layer = layer_of(recipe.Experts(count=5))
    x = torch.randn(2, 9, 16)
    plain = layer.router(x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        routed, (made, _) = layer.router(x), layer(x)
    assert torch.equal(routed.weights, plain.weights)
    assert made.dtype == torch.bfloat16
    assert torch.allclose(made.float(), layer(x)[0], atol=0.3, rtol=0.05)


def test_grouped_products_fit_their_operations_contract():
    rows, weights = torch.randn(12, 8, requires_grad=True), torch.randn(3, 16, 8, requires_grad=True)
    ends = torch.tensor([5, 5, 12], dtype=torch.int32)
    checks = ("test_schema", "test_autograd_registration", "test_faketensor")
    torch.library.opcheck(grouped_product, (rows, weights, ends), test_utils=checks)


@pytest.mark.parametrize(
    ("settings", "chunk"),
    [({}, 24), ({"experts": SETTINGS}, None), ({"experts": replace(SETTINGS, capacity=1.0)}, None)],
    ids=["chunks", "experts", "room"],
)
def test_the_decoder_compiles_as_one_graph_and_once(settings, chunk):
    """No graph is made at a position or a step of its own. Without the compiler's kernels, which take long to make."""
    import torch._dynamo
    from torch._dynamo.testing import CompileCounterWithBackend

    torch._dynamo.reset()
    model = Llama(width=32, depth=1, heads=4, kv_heads=2, context=16, vocabulary=50, dropout=0.1, **settings)
    task = LanguageModelTask(LanguageModel(model=model, logits_chunk=chunk))
    network, counter = task.networks()["model"].train(), CompileCounterWithBackend("eager")
    compiled = torch.compile(network, backend=counter, fullgraph=True)
    for step in range(3):
        torch.manual_seed(step)
        batch = {"tokens": torch.randint(50, (3, 16)), "targets": torch.randint(50, (3, 16))}
        found = []
        for called in (network, compiled):
            torch.manual_seed(step)
            network.zero_grad()
            total = sum(term.value for term in task.loss({"model": called}, batch).values())
            total.backward()
            found.append([total.detach(), *[parameter.grad for parameter in network.parameters()]])
        for one, other in zip(*found, strict=True):
            assert torch.allclose(one, other, rtol=1e-5, atol=1e-6)
    assert counter.frame_count == 1


def engine_of(activations="keep", skips=True):
    torch.manual_seed(0)
    task = LanguageModelTask(LanguageModel(model=MODEL))
    networks = {"model": task.networks()["model"].train()}
    recompute_activations("model", networks["model"], activations, ["layers.*"], CPU)
    horizon = Horizon(800, Scale(Batches(4)))
    built = build_network_optimizers(networks, AdamW(lr=1e-2), Constant(), horizon)
    return task, Engine(networks, built, Execution(replicas(Group()), CPU, "fp32", 7, skips=skips))


def micros_of(size=2):
    windows, found = torch.from_numpy(np.random.default_rng(0).integers(0, 50, (4, 17))), []
    for start in range(0, 4, size):
        part = windows[start : start + size]
        batch = {"tokens": part[:, :-1], "targets": part[:, 1:]}
        found.append(MicroBatch(batch, size, start, start, 0, np.arange(start, start + size)))
    return found


def stepped(task, engine, poisoned=False, **given):
    def loss(nets, batch):
        losses = task.loss(nets, batch)
        if poisoned:
            losses["loss"] = losses["loss"]._replace(value=losses["loss"].value * float("nan"))
        return losses

    engine.buffers.begin()
    counts = {"samples": 4, "tokens": 64}
    return engine.minimize(
        ("model",), loss, MinimizeInputs(1, 0, given.pop("micros", micros_of()), counts, **given)
    ).read()


def biases(engine):
    return torch.stack([layer.mlp.router.bias.clone() for layer in engine.networks["model"].layers])


def test_a_step_moves_the_bias_by_the_load_of_all_its_samples():
    task, engine = engine_of()
    told = stepped(task, engine)
    assert told.losses.keys() == {"loss", "balance"}
    assert told.losses["balance"] >= 1
    counts = engine.counts.take()
    for number, bias in enumerate(biases(engine)):
        given = torch.tensor(counts[f"model.layers.{number}.mlp.router.given"], dtype=torch.float32)
        assert int(given.sum()) == 64 * 2
        assert torch.allclose(bias, 0.01 * (given.mean() - given).sign())
    assert engine.counts.take() == {}


@pytest.mark.parametrize("activations", ["selective", "recompute"])
def test_layers_that_are_computed_again_count_once_and_come_to_the_same_bits(activations):
    found = []
    for chosen in ("keep", activations):
        task, engine = engine_of(chosen)
        told = stepped(task, engine)
        found.append((told, engine.counts.take(), biases(engine), list(engine.networks["model"].parameters())))
    (plain, counts, bias, weights), (again, *others) = found
    assert again == plain
    assert others[0] == counts
    assert torch.equal(others[1], bias)
    assert all(map(torch.equal, others[2], weights))


def test_passes_without_weight_and_evaluations_count_nothing():
    task, engine = engine_of()
    stepped(task, engine, spares=micros_of())
    with engine.evaluating() as nets:
        task.loss(nets, micros_of()[0].batch)
    counts = engine.counts.take()
    assert {sum(each) for name, each in counts.items() if name.endswith("given")} == {128}
    one, other = engine_of(), engine_of()
    stepped(*one, micros=micros_of(4))
    stepped(*other, micros=micros_of(1))
    assert torch.equal(biases(one[1]), biases(other[1])), "micro-batches are free"


@pytest.mark.parametrize("skips", [True, False])
def test_where_a_step_is_left_out_nothing_moves(skips):
    task, engine = engine_of(skips=skips)
    stepped(task, engine)
    before = biases(engine)
    assert before.abs().max() > 0
    assert stepped(task, engine, poisoned=True).why == "not finite"
    assert torch.equal(biases(engine), before)
    stepped(task, engine)
    assert not torch.equal(biases(engine), before)


def test_parameters_and_flops_count_what_there_is_and_what_a_token_passes():
    for experts in (SETTINGS, replace(SETTINGS, dense=1, shared=0)):
        model = replace(MODEL, experts=experts)
        network = LanguageModelTask(LanguageModel(model=model)).networks()["model"]
        assert sum(parameter.numel() for parameter in network.parameters()) == parameters(model.shape)
    taken = replace(MODEL, experts=replace(SETTINGS, count=100))
    routers = 2 * 94 * 32  # scores of so many more experts in two layers
    assert flops_per_token(taken.shape) - flops_per_token(MODEL.shape) == 6 * routers


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("{count: 4, top_k: 5}", "top_k 5 of 4 experts"),
        ("{count: 4, hidden: 12}", "experts.hidden 12 is not a multiple of 8"),
        ("{count: 4, dense: 1}", "experts.dense 1 leaves none of 1 layers to experts"),
    ],
)
def test_experts_that_cannot_be_are_mistakes(tiny, given, message):
    with pytest.raises(RecipeMistakes, match=message):
        load(tiny, [f"task.model.experts={given}"])


def test_experts_on_stages_and_shares_of_experts_that_are_no_rows_are_mistakes(tiny):
    asked = ["task.model.experts={count: 4, hidden: 24}", "launch.processes=2"]
    with pytest.raises(RecipeMistakes, match="stages pass a single tensor on"):
        load(tiny, [*asked, "parallel={pipeline: 2}"])
    with pytest.raises(RecipeMistakes, match=r"2 processes do not share .*hidden / 8 = 3; 1, 3 would"):
        load(tiny, [*asked, "parallel={tensor: 2}"])


@pytest.fixture
def mixture(tiny):
    tiny["task"]["model"] |= {"width": 16, "dropout": 0.0}
    tiny["task"]["model"]["experts"] = {"count": 4, "hidden": 16, "capacity": 1.0, "balance": {"loss": 0.01}}
    tiny["telemetry"] = {"every": {"steps": 6}}
    return tiny


def records(run):
    return list(lineage(read(run / "ledger.jsonl")))


@pytest.mark.xdist_group("meshes")
@pytest.mark.timeout(400)
def test_runs_have_the_same_bits_on_any_number_of_processes_and_after_a_stop(mixture, tmp_path, forked):
    exact = ["exact=true", "batch.micro=1"]
    assert run_under_supervisor(mixture, tmp_path / "one", *exact).code is Exit.DONE
    assert (
        run_under_supervisor(mixture, tmp_path / "two", *exact, "launch.processes=2", most_steps=5).code is Exit.STOPPED
    )
    assert run_under_supervisor(mixture, tmp_path / "two", *exact).code is Exit.DONE
    one, two = tensors(tmp_path / "one"), tensors(tmp_path / "two")
    assert one.keys() == two.keys()
    assert all(torch.equal(one[name], two[name]) for name in one)
    bias = "networks/model/layers.0.mlp.router.bias"
    assert one[bias].abs().max() > 0
    assert (
        run_under_supervisor(mixture, tmp_path / "shards", "launch.processes=2", "parallel={shard: 2}").code
        is Exit.DONE
    )
    losses = [dict(curve(records(tmp_path / run), "loss")) for run in ("one", "shards")]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
    assert torch.equal(tensors(tmp_path / "shards")[bias], one[bias])
    (commit, *_) = sorted((tmp_path / "shards" / "checkpoints").iterdir(), reverse=True)
    boxes = json.loads((commit / "boxes-00001.json").read_text())
    for matrix in ("gate", "up", "down"):  # half of the experts lie on each of two processes
        box = boxes[f"networks/model/layers.0.mlp.{matrix}"]
        assert (box["whole"], box["shape"]) == ([4, 16, 16], [2, 16, 16])
    told = [record for record in records(tmp_path / "one") if record["kind"] == "telemetry"]
    samples = 8 * 6
    for record in told:
        assert sum(record["counted"]["model.layers.0.mlp.router.given"]) == samples * 16 * 2
        assert record["counted"]["model.layers.0.mlp.router.dropped"][0] > 0


@pytest.mark.xdist_group("meshes")
@pytest.mark.timeout(400)
def test_tokens_of_parts_of_samples_are_balanced_as_those_of_whole_ones(mixture, tmp_path, forked):
    del mixture["task"]["model"]["experts"]["capacity"]
    for run, asked in (("one", ()), ("parts", ("launch.processes=2", "parallel={context: 2}"))):
        assert run_under_supervisor(mixture, tmp_path / run, *asked, "budget.steps=6").code is Exit.DONE
    for what in ("loss", "balance"):
        one, parts = [dict(curve(records(tmp_path / run), what)) for run in ("one", "parts")]
        assert parts == pytest.approx(one, rel=1e-5), what
    bias = "networks/model/layers.0.mlp.router.bias"
    assert torch.equal(tensors(tmp_path / "parts")[bias], tensors(tmp_path / "one")[bias])
    counted = [record["counted"] for record in records(tmp_path / "parts") if record["kind"] == "telemetry"]
    assert sum(counted[0]["model.layers.0.mlp.router.given"]) == 8 * 6 * 16 * 2
