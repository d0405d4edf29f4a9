import pytest
import torch
from torch import nn

from drivetrain.checkpoint.state import capture, restore
from drivetrain.optim.network_optimizer import build_network_optimizers
from drivetrain.optim.recipe import (
    SGD,
    Adafactor,
    Adagrad,
    Adam,
    AdamW,
    Constant,
    Cosine,
    GaLore,
    Linear,
    Muon,
    ParameterGroup,
    RMSprop,
    WeightDecaySchedule,
)
from drivetrain.optim.schedules import Horizon
from drivetrain.spec.amount import Amount, Scale
from drivetrain.spec.batches import Batches
from drivetrain.spec.exits import Exit, Failure
from drivetrain.spec.registry import KINDS

STEPS = 30
SETTINGS = {
    "adam": Adam(weight_decay=0.1, amsgrad=True),
    "adamw": AdamW(weight_decay=0.1),
    "sgd": SGD(weight_decay=0.1, momentum=0.9, nesterov=True),
    "adagrad": Adagrad(weight_decay=0.1, lr_decay=0.01, initial=0.1),
    "adafactor": Adafactor(weight_decay=0.1),
    "rmsprop": RMSprop(weight_decay=0.1, momentum=0.9, centered=True),
    "muon": Muon(lr=0.01),
    "galore": GaLore(lr=0.05, rank=3, gap=4, moments="rotate"),
}


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(11, 8)
        self.conv = nn.Conv1d(8, 8, 3, padding=1)
        self.body = nn.Linear(8, 6)
        self.norm = nn.LayerNorm(6)
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.head = nn.Linear(6, 11)

    def forward(self, tokens):
        x = self.conv(self.embed(tokens).mT).mT
        return self.head(self.norm(self.body(x).tanh()) * self.scale)


def build(settings, schedule=None, seed=0):
    torch.manual_seed(seed)
    networks = {"m": Network()}
    schedule = schedule or Cosine(warmup=Amount(steps=5))
    return networks, build_network_optimizers(networks, settings, schedule, Horizon(STEPS, Scale(Batches(1))))["m"]


def move(network, optimizer, step):
    tokens = torch.randint(0, 11, (4, 5), generator=torch.Generator().manual_seed(step))
    optimizer.zero_grad()
    nn.functional.cross_entropy(network(tokens).flatten(0, 1), tokens.flatten()).backward()
    optimizer.step()


def train(networks, network_optimizer, first, last):
    for step in range(first, last):
        network_optimizer.advance(step + 1)
        move(networks["m"], network_optimizer.optimizer, step)


def state(networks, network_optimizer):
    return {name: t.clone() for name, t in capture(networks, {"m": network_optimizer.optimizer}).items()}


def test_every_kind_is_tried_here_or_in_test_lowbit():
    others = {kind for kind in KINDS["optimizer"] if kind.startswith(("torchao_", "bitsandbytes_"))}
    assert SETTINGS.keys() | others == KINDS["optimizer"].keys()


@pytest.mark.parametrize("kind", SETTINGS)
def test_thirty_steps_are_fifteen_then_a_resume_then_fifteen(kind):
    whole, first, second = (build(SETTINGS[kind], seed=seed) for seed in (0, 0, 9))
    train(*whole, 0, STEPS)
    train(*first, 0, STEPS // 2)
    restore(state(*first), second[0], {"m": second[1].optimizer})
    train(*second, STEPS // 2, STEPS)
    expected, found = state(*whole), state(*second)
    assert expected.keys() == found.keys()
    assert all(torch.equal(expected[name], found[name]) for name in expected)
    assert all(not torch.equal(t, state(*first)[n]) for n, t in found.items() if n.startswith("networks"))


@pytest.mark.parametrize("kind", SETTINGS)
def test_restored_state_is_all_that_was_captured(kind):
    first, second = build(SETTINGS[kind]), build(SETTINGS[kind], seed=9)
    train(*first, 0, 3)
    restore(state(*first), second[0], {"m": second[1].optimizer})
    given, taken = state(*first), state(*second)
    assert given.keys() == taken.keys()
    assert all(torch.equal(given[name], taken[name]) and given[name].dtype == taken[name].dtype for name in given)


@pytest.mark.parametrize("kind", [kind for kind in SETTINGS if kind not in ("muon", "galore")])
def test_steps_are_those_of_torch(kind):
    classes = {
        "adam": lambda groups: torch.optim.Adam(groups, lr=1e-3, amsgrad=True, fused=True),
        "adamw": lambda groups: torch.optim.AdamW(groups, lr=1e-3, fused=True),
        "sgd": lambda groups: torch.optim.SGD(groups, lr=1e-2, momentum=0.9, nesterov=True, fused=True),
        "adagrad": lambda groups: torch.optim.Adagrad(
            groups, lr=1e-2, lr_decay=0.01, initial_accumulator_value=0.1, fused=True
        ),
        "adafactor": lambda groups: torch.optim.Adafactor(groups, lr=1e-2),
        "rmsprop": lambda groups: torch.optim.RMSprop(groups, lr=1e-2, momentum=0.9, centered=True),
    }
    ours, theirs = build(SETTINGS[kind], Constant()), build(SETTINGS[kind])[0]
    flat = [p for p in theirs["m"].parameters() if p.ndim < 2]
    matrices = [p for p in theirs["m"].parameters() if p.ndim >= 2]
    optimizer = classes[kind]([{"params": flat, "weight_decay": 0.0}, {"params": matrices, "weight_decay": 0.1}])
    for step in range(3):
        ours[1].advance(step + 1)
        move(ours[0]["m"], ours[1].optimizer, step)
        move(theirs["m"], optimizer, step)
    assert all(torch.equal(p, q) for p, q in zip(ours[0]["m"].parameters(), theirs["m"].parameters(), strict=True))


def test_muon_is_torchs_muon_on_hidden_matrices_and_torchs_adamw_on_the_rest():
    settings = Muon(lr=0.02, adamw_lr=0.001, weight_decay=0.1, adjust="original")
    (nets, network_optimizer), (others, _) = build(settings, Constant()), build(settings)
    named = dict(others["m"].named_parameters())
    hidden = [named.pop("body.weight")]
    muon = torch.optim.Muon(hidden, lr=0.02, weight_decay=0.1, adjust_lr_fn="original")
    rest = [
        {"params": [p for p in named.values() if p.ndim < 2], "weight_decay": 0.0},
        {"params": [p for p in named.values() if p.ndim >= 2], "weight_decay": 0.1},
    ]
    adamw = torch.optim.AdamW(rest, lr=0.001, betas=(0.9, 0.95))
    for step in range(3):
        network_optimizer.advance(step + 1)
        move(nets["m"], network_optimizer.optimizer, step)
        muon.zero_grad()
        move(others["m"], adamw, step)
        muon.step()
    assert all(torch.equal(p, q) for p, q in zip(nets["m"].parameters(), others["m"].parameters(), strict=True))


def matrices(network, settings):
    optimizer = build_network_optimizers({"m": network}, settings, Constant(), Horizon(9, Scale(Batches(1))))[
        "m"
    ].optimizer
    return {name for group in optimizer.param_groups if group["matrix"] for name in group["names"]}


def test_muon_takes_no_embedding_no_head_and_what_is_tied_to_one():
    network = Network()
    network.multihead = nn.MultiheadAttention(8, 2)
    network.lm_head = nn.Linear(8, 11)
    network.table = nn.Embedding(3, 8)
    network.first = nn.Linear(8, 9, bias=False)
    network.classifier = nn.Linear(8, 9, bias=False)
    network.classifier.weight = network.first.weight
    hidden = {"body.weight", "multihead.in_proj_weight", "multihead.out_proj.weight"}
    assert matrices(network, Muon()) == hidden
    assert matrices(network, Muon(adamw="^body|head")) == {"first.weight"}


@pytest.mark.parametrize(("pattern", "words"), [(".", "muon takes no weight of m"), ("(", "optimizer.adamw")])
def test_muon_without_a_matrix_is_refused(pattern, words):
    with pytest.raises(Failure, match=words) as caught:
        build(Muon(adamw=pattern))
    assert caught.value.outcome.code == Exit.BAD_RECIPE


def test_muon_evaluates_a_closure_once_and_may_have_matrices_only():
    network = nn.Linear(3, 2, bias=False)
    optimizer = build_network_optimizers({"m": network}, Muon(), Constant(), Horizon(9, Scale(Batches(1))))[
        "m"
    ].optimizer
    calls = []

    def closure():
        calls.append(1)
        loss = network(torch.ones(3)).square().sum()
        loss.backward()
        return loss

    assert optimizer.step(closure) > 0
    assert len(calls) == 1


def test_only_fused_optimizers_skip_by_themselves():
    skipping = {kind for kind, settings in SETTINGS.items() if build(settings)[1].skips_by_itself}
    assert skipping == {"adam", "adamw", "sgd", "adagrad"}


def test_a_group_may_have_a_schedule_and_decays_follow_theirs():
    settings = AdamW(
        lr=1.0,
        weight_decay=0.5,
        groups=(
            ParameterGroup(match="embed", lr=2.0, schedule=Linear(length=Amount(steps=10))),
            ParameterGroup(match="head", weight_decay=0.2),
        ),
        weight_decay_schedule=WeightDecaySchedule(kind="linear", start=1.0, end=0.0),
    )
    _, network_optimizer = build(settings, Constant(warmup=Amount(steps=10)))
    expected = {  # learning rate and weight decay, at the start, in the first quarter, at the half, at the end
        "embed.weight": [(2.0, 0.5), (1.0, 0.5 * 5 / 6), (0.0, 0.25), (0.0, 0.0)],
        "head.weight": [(0.0, 0.2), (0.5, 0.2 * 5 / 6), (1.0, 0.1), (1.0, 0.0)],
        "body.weight": [(0.0, 0.5), (0.5, 0.5 * 5 / 6), (1.0, 0.25), (1.0, 0.0)],
        "body.bias": [(0.0, 0.0), (0.5, 0.0), (1.0, 0.0), (1.0, 0.0)],
    }
    for index, position in enumerate((0, 5, 15, 30)):
        network_optimizer.advance(position)
        found = {n: (g["lr"], g["weight_decay"]) for g in network_optimizer.optimizer.param_groups for n in g["names"]}
        for name, values in expected.items():
            assert found[name] == pytest.approx(values[index]), (name, position)


def test_rates_and_decays_at_a_position_do_not_depend_on_how_it_was_reached():
    settings = Muon(weight_decay_schedule=WeightDecaySchedule(kind="cosine"))
    (_, walked), (_, fresh) = build(settings), build(settings)
    for position in range(1, 18):
        walked.advance(position)
    fresh.advance(17)
    rates = [[(g["lr"], g["weight_decay"]) for g in u.optimizer.param_groups] for u in (walked, fresh)]
    assert rates[0] == rates[1]


@pytest.mark.parametrize("shape", [(8, 6), (6,), (6, 2), (1, 6, 8)])
def test_state_whose_shape_is_no_part_of_its_parameters_is_76(shape):
    networks, network_optimizer = build(SETTINGS["adafactor"])
    train(networks, network_optimizer, 0, 1)
    kept = state(networks, network_optimizer)
    assert kept["optimizers/m/body.weight/row_var"].shape == (6, 1)
    assert kept["optimizers/m/conv.weight/col_var"].shape == (8, 1, 3)
    kept["optimizers/m/body.weight/row_var"] = torch.zeros(shape)
    with pytest.raises(Failure, match=r"body\.weight/row_var") as caught:
        restore(kept, networks, {"m": network_optimizer.optimizer})
    assert caught.value.outcome.code == Exit.INCOMPATIBLE
