"""GaLore beside references of twenty lines; the numbers of the tests' names are those of galore-torch's defects."""

import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from drivetrain.checkpoint.state import capture, restore
from drivetrain.optim.bases import AdamW8bit
from drivetrain.optim.galore import made_at
from drivetrain.optim.network_optimizer import build_network_optimizers
from drivetrain.optim.projecting import Projecting
from drivetrain.optim.quantized import BLOCK, levels
from drivetrain.optim.recipe import (
    AdamW,
    Constant,
    GaLore,
    GaLoreGroup,
    ProjectedAdafactor,
    ProjectedAdamW,
    ProjectedAdamW8bit,
    ProjectedSGD,
)
from drivetrain.optim.schedules import Horizon
from drivetrain.optim.subspace import OVERSAMPLING, exact, subspace
from drivetrain.spec.amount import Scale
from drivetrain.spec.batches import Batches
from drivetrain.spec.exits import Exit, Failure
from engines import build, mean_loss, micros, minimize, weights

PROJECTIONS = ("std", "reverse_std", "left", "right", "full")
BASES = {
    "adamw": ProjectedAdamW(),
    "adamw in 8 bits": ProjectedAdamW8bit(),
    "adafactor": ProjectedAdafactor(),
    "adafactor with momentum": ProjectedAdafactor(momentum=0.9),
    "sgd": ProjectedSGD(),
    "sgd with momentum": ProjectedSGD(momentum=0.9),
}
SHAPES = [(6, 10), (10, 6), (8, 8)]
LR, DECAY, GAP = 0.03, 0.1, 4


@pytest.fixture(autouse=True)
def _small_tensors_in_8_bits_too(monkeypatch):
    monkeypatch.setattr(AdamW8bit, "LEAST", 1)


def optimizer_of(network, settings, position=1):
    network_optimizer = build_network_optimizers({"m": network}, settings, Constant(), Horizon(100, Scale(Batches(1))))[
        "m"
    ]
    network_optimizer.advance(position)
    return network_optimizer.optimizer


def matrix(shape, dtype=torch.float64):
    torch.manual_seed(0)
    return nn.Linear(shape[1], shape[0], bias=False, dtype=dtype)


def gradients(shape, steps, dtype=torch.float64):
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(shape, dtype=dtype, generator=generator) for _ in range(steps)]


def train(network, optimizer, grads):
    (weight,) = network.parameters()
    for grad in grads:
        weight.grad = grad.to(weight.dtype)
        optimizer.step()
    return weight.detach()


def bases_by_svd(grad, rank, projection):
    """Left and right singular vectors; on the smaller side the largest entry of each is positive."""
    u, _, vh = torch.linalg.svd(grad, full_matrices=False)
    u, v = u[:, :rank], vh[:rank].mT
    near = u if grad.shape[0] <= grad.shape[1] else v
    signs = torch.stack([column[column.abs().argmax()].sign() for column in near.unbind(1)])
    tall = grad.shape[0] >= grad.shape[1]
    left = {"std": not tall, "reverse_std": tall, "left": True, "right": False, "full": True}[projection]
    right = {"std": tall, "reverse_std": not tall, "left": False, "right": True, "full": True}[projection]
    eye = torch.eye
    return (
        u * signs if left else eye(grad.shape[0], dtype=grad.dtype),
        v * signs if right else eye(grad.shape[1], dtype=grad.dtype),
    )


def in_8_bits(values, signed):
    """Each number becomes the nearest of its block's 256."""
    blocks = values.flatten().split(BLOCK)
    table = levels(signed, values.device).double()
    rounded = [table[(b[:, None] / b.abs().max() - table).abs().argmin(1)] * b.abs().max() for b in blocks]
    return torch.cat(rounded).view(values.shape)


def reference(weight, grads, base, projection, rank, scale):
    """GaLore as its paper and its published code have it."""
    m = v = row = col = 0.0
    for count, grad in enumerate(grads):
        if count % GAP == 0:
            a, b = bases_by_svd(grad, rank, projection)
        r, t = a.mT @ grad @ b, count + 1
        if base.kind in ("adamw", "adamw8bit"):
            (b1, b2), m = base.betas, base.betas[0] * m + (1 - base.betas[0]) * r
            v = b2 * v + (1 - b2) * r**2
            n = LR * math.sqrt(1 - b2**t) / (1 - b1**t) * m / (v.sqrt() + base.eps)
            weight = (weight - scale * (a @ n @ b.mT)) * (1 - LR * DECAY)
            if base.kind == "adamw8bit":
                m, v = in_8_bits(m, signed=True), in_8_bits(v, signed=False)
        elif base.kind == "adafactor":
            b2, squares = 1 - t**base.beta2_decay, r**2 + base.eps
            row = b2 * row + (1 - b2) * squares.mean(1)
            col = b2 * col + (1 - b2) * squares.mean(0)
            u = r / (torch.outer(row, col) / row.mean()).sqrt()
            u = LR * u / max(1.0, float(u.square().mean().sqrt()) / base.threshold)
            m = base.momentum * m + (1 - base.momentum) * u
            weight = weight * (1 - LR * DECAY) - scale * (a @ m @ b.mT)
        else:
            m = base.momentum * m + r
            weight = weight * (1 - LR * DECAY) - scale * LR * (a @ m @ b.mT)
    return weight


@pytest.mark.parametrize("projection", PROJECTIONS)
@pytest.mark.parametrize("base", BASES)
def test_ten_steps_over_two_refreshes_are_the_references(base, projection):
    for shape, rank in itertools.product(SHAPES, (3, 6, 8, 50)):  # below, at and above the smaller side
        network, grads = matrix(shape), gradients(shape, 10)
        settings = GaLore(
            base=BASES[base], projection=projection, rank=rank, gap=GAP, scale=0.5, lr=LR, weight_decay=DECAY,
            refresh="exact", stagger=False,
        )  # fmt: skip
        start = network.weight.detach().clone()
        expected = reference(start, grads, BASES[base], projection, rank, 0.5)
        found = train(network, optimizer_of(network, settings), grads)
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
        assert not torch.allclose(found, start, atol=1e-3)


@pytest.mark.parametrize("kind", ["adamw", "adafactor", "sgd with momentum"])
def test_what_is_not_projected_moves_by_the_same_base(kind):
    """A projection with nothing left out, onto a basis of unit vectors, is none."""
    base, plain = BASES[kind], nn.LayerNorm(7, dtype=torch.float64)
    network = nn.Sequential(nn.Linear(3, 2, bias=False, dtype=torch.float64), plain)
    settings = GaLore(base=base, lr=LR, scale=1.0, match="0.weight")
    optimizer = optimizer_of(network, settings)
    grads = gradients((1, 7), 4)
    expected = plain.weight.detach()[None].clone()
    state, m, v = expected, 0.0, 0.0
    for t, grad in enumerate(grads, 1):
        plain.weight.grad = grad[0]
        optimizer.step()
        if kind == "adamw":
            m, v = 0.9 * m + 0.1 * grad, 0.999 * v + 0.001 * grad**2
            state = state - LR * math.sqrt(1 - 0.999**t) / (1 - 0.9**t) * m / (v.sqrt() + 1e-6)
        elif kind == "adafactor":
            b2 = 1 - t**-0.8
            v = b2 * v + (1 - b2) * (grad**2 + 1e-30)
            u = grad / v.sqrt()
            state = state - LR * u / max(1.0, float(u.square().mean().sqrt()))
        else:
            m = 0.9 * m + grad
            state = state - LR * m
    torch.testing.assert_close(plain.weight.detach()[None], state, rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("projection", PROJECTIONS)
@pytest.mark.parametrize("rank", [4, 12, 99])
def test_projecting_and_back_is_the_orthogonal_projection(projection, rank):
    """By plain gradient descent with lr = scale = 1: what is subtracted is P G Q."""
    for shape in [(12, 20), (20, 12), (12, 12)]:
        network, (grad,) = matrix(shape), gradients(shape, 1)
        start = network.weight.detach().clone()
        settings = GaLore(base=ProjectedSGD(), lr=1.0, scale=1.0, rank=rank, projection=projection, refresh="exact")
        moved = start - train(network, optimizer_of(network, settings), [grad])
        left, right = bases_by_svd(grad, rank, projection)
        torch.testing.assert_close(moved, left @ left.mT @ grad @ right @ right.mT, rtol=1e-5, atol=1e-5)


def storages(optimizer):
    """Bytes of every storage that a tensor of the state lies in."""
    tensors = [tensor for state in optimizer.state.values() for tensor in state.values()]
    return sum({t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}.values())


@pytest.mark.parametrize("refresh", ["subspace", "exact", "randomized"])
@pytest.mark.parametrize("shape", [(40, 96), (96, 40), (64, 64)])
def test_d_state_is_mr_and_twice_nr_numbers_and_pins_no_factors(shape, refresh):
    network, rank = matrix(shape, torch.float32), 16
    optimizer = optimizer_of(network, GaLore(rank=rank, gap=2, refresh=refresh))
    train(network, optimizer, gradients(shape, 5))
    m, n = sorted(shape)
    assert storages(optimizer) == 4 * (m * rank + 2 * n * rank + 1)  # 1: the count of steps


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rank", [16, 40, 99])
@pytest.mark.parametrize("projection", PROJECTIONS)
def test_state_of_every_projection_is_its_formula(projection, rank, dtype):
    for m, n in [(40, 96), (96, 40), (64, 64)]:
        network, r = matrix((m, n), dtype), min(rank, m, n)
        optimizer = optimizer_of(network, GaLore(projection=projection, rank=rank, gap=2))
        train(network, optimizer, gradients((m, n), 3))
        left, right = m * r + 2 * n * r, n * r + 2 * m * r  # a basis, and two moments of what it leaves
        near, far = (left, right) if m < n else (right, left)
        numbers = {"std": near, "reverse_std": far, "left": left, "right": right, "full": (m + n) * r + 2 * r**2}
        assert storages(optimizer) == dtype.itemsize * numbers[projection] + 4  # 4: the count of steps


@pytest.mark.parametrize("shape", [(40, 96), (96, 40)])
def test_state_in_8_bits_is_a_basis_and_a_byte_for_each_moment(shape):
    """4 mr + 2 nr bytes in fp32, and 4 for each 256 numbers of a moment."""
    network, rank = matrix(shape, torch.float32), 16
    optimizer = optimizer_of(network, GaLore(rank=rank, gap=2, base=ProjectedAdamW8bit()))
    train(network, optimizer, gradients(shape, 5))
    m, n = sorted(shape)
    assert storages(optimizer) == 4 * m * rank + 2 * n * rank + 2 * 4 * math.ceil(n * rank / BLOCK) + 4


def llama_7b():
    """Shapes of a Llama with seven billion parameters: width 4096, 32 layers, MLPs of 11008, 32000 tokens, untied."""
    with torch.device("meta"):
        layers = []
        for _ in range(32):
            attention = nn.ModuleList([nn.Linear(4096, 4096, bias=False) for _ in range(4)])
            mlp = [nn.Linear(4096, 11008, bias=False) for _ in range(2)] + [nn.Linear(11008, 4096, bias=False)]
            layers.append(nn.ModuleList([attention, *mlp, nn.RMSNorm(4096), nn.RMSNorm(4096)]))
        parts = {"embed": nn.Embedding(32000, 4096), "layers": nn.ModuleList(layers), "norm": nn.RMSNorm(4096)}
        return nn.ModuleDict(parts | {"lm_head": nn.Linear(4096, 32000, bias=False)}).to(torch.bfloat16)


def test_the_published_savings_at_seven_billion_parameters():
    """65.5 % of AdamW's state; 82.5 % of that in bf16 with 8 bits, which is one byte a number, bases included."""
    network = llama_7b()
    optimizer = optimizer_of(network, GaLore(rank=1024))
    boxes = [optimizer.state_boxes(parameter).items() for parameter in network.parameters()]
    numbers = sum(box.size for slots in boxes for name, box in slots if name != "step")
    parameters = sum(parameter.numel() for parameter in network.parameters())
    assert parameters == 6_738_415_616
    assert numbers == 4_702_347_264
    assert 1 - numbers / (2 * parameters) == pytest.approx(0.655, abs=0.005)
    assert 1 - numbers / (2 * 2 * parameters) == pytest.approx(0.825, abs=0.005)


def test_the_savings_of_8_bit_moments_at_seven_billion_parameters():
    """Bases stay in bf16, and each 256 numbers have a scale: the paper's 82.5 % would be one byte for all of them."""
    network, settings = llama_7b(), GaLore(rank=1024, base=ProjectedAdamW8bit())
    optimizer = optimizer_of(network, settings)
    sizes = {name: dtype.itemsize for name, dtype in AdamW8bit.dtypes.items()}
    slots = [slot for parameter in network.parameters() for slot in optimizer.state_boxes(parameter).items()]
    found = sum(box.size * sizes.get(name, 2) for name, box in slots if name != "step")
    parameters = sum(parameter.numel() for parameter in network.parameters())
    assert 1 - found / (2 * 2 * parameters) == pytest.approx(0.7885, abs=0.0005)


class Convolutional(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.conv = nn.Conv2d(6, 8, 3, dtype=torch.float64)


@pytest.mark.parametrize("projection", PROJECTIONS)
def test_a_and_b_weights_of_more_dimensions_move_as_their_unfolding_does(projection):
    """galore-torch: a TypeError, or a RuntimeError of t(); and its base sees none of the gradients."""
    settings = {"projection": projection, "rank": 4, "gap": 3, "lr": LR, "weight_decay": DECAY}
    network, flat = Convolutional(), matrix((8, 54))
    with torch.no_grad():
        flat.weight.copy_(network.conv.weight.flatten(1))
    grads = gradients((8, 54), 8)
    optimizer = optimizer_of(network, GaLore(match=r"conv\.weight", **settings))
    for grad in grads:
        network.conv.weight.grad = grad.view(8, 6, 3, 3)
        optimizer.step()
    expected = train(flat, optimizer_of(flat, GaLore(**settings)), grads)
    torch.testing.assert_close(network.conv.weight.detach().flatten(1), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("refresh", ["subspace", "randomized", "exact"])
def test_c_reverse_std_takes_a_rank_above_the_smaller_side(refresh):
    network = matrix((64, 256), torch.float32)
    optimizer = optimizer_of(network, GaLore(projection="reverse_std", rank=128, gap=2, refresh=refresh))
    train(network, optimizer, gradients((64, 256), 4))
    assert optimizer.state[network.weight]["right"].shape == (256, 64)


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("moments", ["keep", "rotate", "reset"])
def test_e_and_5_strict_loaders_resume_to_the_same_bits(tmp_path, base, moments):
    """Through torch's own save and load, without pickled objects, and through a commit's tensors."""
    settings = GaLore(base=BASES[base], rank=12, gap=3, moments=moments, seed=5)
    grads = gradients((24, 32), 10, torch.float32)
    first, second, third = (matrix((24, 32), torch.float32) for _ in range(3))
    optimizer = optimizer_of(first, settings)
    train(first, optimizer, grads[:5])
    torch.save(optimizer.state_dict(), tmp_path / "optimizer.pt")
    kept = capture({"m": first}, {"m": optimizer})
    kept = {name: torch.stack([tensor, tensor])[1] for name, tensor in kept.items()}  # a part of a file
    expected = train(first, optimizer, grads[5:]).clone()

    loaded = optimizer_of(second, settings)
    loaded.load_state_dict(torch.load(tmp_path / "optimizer.pt", weights_only=True))
    second.load_state_dict({"weight": kept["networks/m/weight"]})
    assert storages(loaded) == storages(optimizer)
    assert torch.equal(train(second, loaded, grads[5:]), expected)

    restored = optimizer_of(third, settings)
    restore(kept, {"m": third}, {"m": restored})
    assert storages(restored) == storages(optimizer)
    assert torch.equal(train(third, restored, grads[5:]), expected)


def test_state_of_another_rank_is_76():
    network, other = matrix((24, 32)), matrix((24, 32))
    optimizer = optimizer_of(network, GaLore(rank=4))
    train(network, optimizer, gradients((24, 32), 1))
    kept = capture({"m": network}, {"m": optimizer})
    with pytest.raises(Failure, match="fits no parameter") as caught:
        restore(kept, {"m": other}, {"m": optimizer_of(other, GaLore(rank=8))})
    assert caught.value.outcome.code == Exit.INCOMPATIBLE


@pytest.mark.parametrize("projection", PROJECTIONS)
@pytest.mark.parametrize("base", BASES)
def test_f_bf16_weights_are_projected_in_fp32(base, projection):
    """On the CPU, where bf16 has no SVD. The basis is orthonormal to bf16's precision; weights follow fp32's."""
    settings = GaLore(base=BASES[base], projection=projection, rank=8, gap=3, lr=0.01, refresh="exact")
    half, single = matrix((24, 32), torch.bfloat16), matrix((24, 32), torch.float32)
    with torch.no_grad():
        single.weight.copy_(half.weight)
    grads = [grad.bfloat16() for grad in gradients((24, 32), 6)]
    optimizer = optimizer_of(half, settings)
    found, expected = train(half, optimizer, grads), train(single, optimizer_of(single, settings), grads)
    kept = {name: tensor.dtype for name, tensor in optimizer.state[half.weight].items() if name != "step"}
    own = AdamW8bit.dtypes if base == "adamw in 8 bits" else {}
    assert kept == {name: own.get(name, torch.bfloat16) for name in kept}
    torch.testing.assert_close(found.float(), expected, rtol=0.03, atol=0.01)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_gradients_that_are_not_finite_reach_no_factorisation(bad):
    network = matrix((24, 32))
    optimizer = optimizer_of(network, GaLore(rank=4))
    grad = gradients((24, 32), 1)[0]
    grad[3, 5] = bad
    with pytest.raises(Failure, match="not finite") as caught:
        train(network, optimizer, [grad])
    assert caught.value.outcome.code == Exit.DIVERGED


def test_the_engine_leaves_such_a_step_out_before_the_optimizer_sees_it():
    engine = build(GaLore(rank=2, lr=0.1))
    start = weights(engine)
    moved = minimize(engine, lambda nets, batch: mean_loss(nets, batch) * math.nan, micros(4))
    assert moved.read().why == "not finite"
    assert torch.equal(weights(engine), start)
    assert not engine.optimizers["model"].state
    minimize(engine, mean_loss, micros(4), step=2)
    assert not torch.equal(weights(engine), start)


@pytest.mark.parametrize("refresh", ["subspace", "randomized", "exact"])
@pytest.mark.parametrize("projection", PROJECTIONS)
def test_a_gradient_of_zeros_moves_nothing_and_leaves_a_basis(projection, refresh):
    network = matrix((24, 32), torch.float32)
    optimizer = optimizer_of(network, GaLore(rank=4, projection=projection, refresh=refresh))
    start = network.weight.detach().clone()
    assert torch.equal(train(network, optimizer, [torch.zeros(24, 32)]), start)
    state = optimizer.state[network.weight]
    for side in state.keys() & {"left", "right"}:
        torch.testing.assert_close(state[side].mT @ state[side], torch.eye(4))


# Refreshes


@given(gap=st.integers(1, 30), matrices=st.integers(1, 70), steps=st.integers(1, 90))
def test_refreshes_take_turns(gap, matrices, steps):
    """The first step makes all bases; then each is as old as the gap at most, and their share of a step is even."""
    offsets = [place * gap // matrices for place in range(matrices)]
    made = [[made_at(count, gap, offset) for offset in offsets] for count in range(steps)]
    assert made[0] == [0] * matrices
    for count, row in enumerate(made):
        assert all(0 <= count - at < gap for at in row)
        if count:
            assert sum(at == count for at in row) <= -(-matrices // gap)
            assert all(now in (before, count) for now, before in zip(row, made[count - 1], strict=True))


def several(count):
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(16, 12, bias=False) for _ in range(count)))


def all_move(network, optimizer, grad):
    """A step in which all matrices have the same gradient; their bases afterwards."""
    for weight in network.parameters():
        weight.grad = grad.float()
    optimizer.step()
    return [optimizer.state[weight]["left"].clone() for weight in network.parameters()]


@pytest.mark.parametrize(("stagger", "expected"), [(True, [4, 1, 1, 1, 1, 1]), (False, [4, 0, 0, 0, 4, 0])])
def test_after_the_first_step_no_step_makes_all_bases(stagger, expected):
    network, made, last = several(4), [], [torch.zeros(12, 3)] * 4
    optimizer = optimizer_of(network, GaLore(rank=3, gap=4, stagger=stagger))
    for grad in gradients((12, 16), 6):
        bases = all_move(network, optimizer, grad)
        made.append(sum(not torch.equal(now, before) for now, before in zip(bases, last, strict=True)))
        last = bases
    assert made == expected


def spectrum(kind, m, n):
    torch.manual_seed(0)
    left, right = (torch.linalg.qr(torch.randn(size, m))[0] for size in (m, n))
    index = torch.arange(1, m + 1)
    if kind == "decay":
        return left * index**-0.7 @ right.mT
    return left * (index <= 32) @ right.mT + 0.1 / n**0.5 * torch.randn(m, n)


@pytest.mark.parametrize("kind", ["decay", "few directions in noise"])
def test_from_the_last_basis_a_subspace_has_999_of_1000_of_the_exact_ones_energy(kind):
    """Of spectra that hardly fall, a third of their directions, after a step that changed the gradient by a third."""
    grad, rank = spectrum(kind, 192, 512), 64
    last = exact(grad + 0.3 * grad.norm() / (192 * 512) ** 0.5 * torch.randn(192, 512), rank)
    best, noise = (exact(grad, rank).mT @ grad).square().sum(), torch.randn(512, rank + OVERSAMPLING)
    for start, least in ((torch.cat([grad.mT @ last, noise[:, rank:]], 1), 0.999), (noise, 0.997)):
        found = subspace(grad, rank, start, GaLore().iterations)
        torch.testing.assert_close(found.mT @ found, torch.eye(rank), rtol=1e-5, atol=1e-5)
        assert (found.mT @ grad).square().sum() / best > least


def test_the_last_basis_is_where_the_next_one_starts():
    """Without iterations: the same gradient again gives more energy from the last basis than from random numbers."""
    grad, energies = spectrum("decay", 96, 256).double(), {}
    for refresh in ("subspace", "randomized"):
        network = matrix((96, 256))
        optimizer = optimizer_of(network, GaLore(rank=16, gap=1, refresh=refresh, iterations=0))
        train(network, optimizer, [grad] * 4)
        energies[refresh] = (optimizer.state[network.weight]["left"].mT @ grad).square().sum()
    assert energies["subspace"] > energies["randomized"]


def test_a_basis_follows_from_gradient_seed_step_and_place_alone():
    def basis(seed, steps=1):
        network = matrix((64, 96))
        torch.manual_seed(steps)  # nobody else's generator is asked
        optimizer = optimizer_of(network, GaLore(rank=8, gap=1, refresh="randomized", seed=seed, iterations=0))
        train(network, optimizer, gradients((64, 96), 1) * steps)
        return optimizer.state[network.weight]["left"]

    assert torch.equal(basis(0), basis(0))
    assert not torch.equal(basis(0), basis(1))
    assert not torch.equal(basis(0), basis(0, steps=2))
    network = several(2)
    optimizer = optimizer_of(network, GaLore(rank=3, refresh="randomized", iterations=0))
    assert not torch.equal(*all_move(network, optimizer, gradients((12, 16), 1)[0]))


@pytest.mark.parametrize("projection", PROJECTIONS)
def test_rotated_moments_are_the_same_in_the_new_basis(projection):
    """At full rank SGD with momentum is blind to the basis, if moments go with it."""
    network, plain = matrix((12, 12)), matrix((12, 12))
    base = ProjectedSGD(momentum=0.9)
    settings = GaLore(base=base, projection=projection, rank=12, gap=2, scale=1.0, lr=LR, moments="rotate")
    grads = gradients((12, 12), 9)
    expected = train(plain, torch.optim.SGD(plain.parameters(), lr=LR, momentum=0.9), grads)
    torch.testing.assert_close(train(network, optimizer_of(network, settings), grads), expected)


@pytest.mark.parametrize("base", ["adamw", "adafactor"])
def test_second_moments_stay_above_zero_when_they_are_rotated(base):
    network = matrix((12, 30))
    optimizer = optimizer_of(network, GaLore(base=BASES[base], projection="full", rank=5, gap=2, moments="rotate"))
    train(network, optimizer, gradients((12, 30), 7))
    state = optimizer.state[network.weight]
    assert all((state[slot] > 0).all() for slot in state.keys() & {"exp_avg_sq", "row", "col"})


@pytest.mark.parametrize("base", BASES)
def test_moments_that_are_reset_are_those_of_a_new_optimizer(base):
    settings = GaLore(base=BASES[base], rank=5, gap=4, moments="reset", refresh="exact", stagger=False)
    network, fresh = matrix((12, 30)), matrix((12, 30))
    grads = gradients((12, 30), 7)
    optimizer = optimizer_of(network, settings)
    middle = train(network, optimizer, grads[:4]).clone()
    with torch.no_grad():
        fresh.weight.copy_(middle)
    torch.testing.assert_close(
        train(network, optimizer, grads[4:]), train(fresh, optimizer_of(fresh, settings), grads[4:])
    )


# APOLLO


def apollo(weight, grads, bases, scale, channels, growth=1.01):
    """A gradient whose columns (rows) are as long as Adam makes those of its projection; the limit on growth."""
    m = v = last = 0.0
    for t, (grad, (a, b)) in enumerate(zip(grads, bases, strict=True), 1):
        r = a.mT @ grad @ b
        m, v = 0.9 * m + 0.1 * r, 0.999 * v + 0.001 * r**2
        n = math.sqrt(1 - 0.999**t) / (1 - 0.9**t) * m / (v.sqrt() + 1e-6)
        moved = LR * grad * n.norm(dim=channels, keepdim=True) / r.norm(dim=channels, keepdim=True)
        moved = moved * min(1.0, growth * last / float(moved.norm())) if last else moved
        last = float(moved.norm())
        weight = (weight - scale * moved) * (1 - LR * DECAY)
    return weight


@pytest.mark.parametrize("projection", PROJECTIONS)
def test_scaled_updates_onto_random_numbers_are_apollos(projection):
    for shape in SHAPES:
        network, grads, made = matrix(shape), gradients(shape, 10), []
        grads = [grad * (1 + 0.3 * step) for step, grad in enumerate(grads)]  # so that the limit bites
        settings = GaLore(
            projection=projection, refresh="random", update="scaled", rank=3, gap=GAP, scale=0.5, lr=LR,
            weight_decay=DECAY, stagger=False,
        )  # fmt: skip
        optimizer, expected = optimizer_of(network, settings), network.weight.detach().clone()
        eyes = [torch.eye(size, dtype=torch.float64) for size in shape]
        for grad in grads:
            train(network, optimizer, [grad])
            state = optimizer.state[network.weight]
            made.append((state.get("left", eyes[0]).clone(), state.get("right", eyes[1]).clone()))
        channels = [dim for dim, side in enumerate(("left", "right")) if side in state]
        expected = apollo(expected, grads, made, 0.5, channels)
        torch.testing.assert_close(network.weight.detach(), expected, rtol=1e-5, atol=1e-5)
        assert len({float(a.sum() + b.sum()) for a, b in made}) == 3  # drawn anew at steps 1, 5 and 9


def test_a_scaled_update_follows_the_learning_rate_at_once():
    """Its limit on growth is none on a warm-up."""
    network, grads = matrix((6, 8)), gradients((6, 8), 1)
    base = ProjectedSGD()
    optimizer = optimizer_of(network, GaLore(refresh="random", update="scaled", rank=3, base=base, weight_decay=0.0))
    moved = []
    for lr in (1e-3, 1e-2):
        before = network.weight.detach().clone()
        optimizer.param_groups[0]["lr"] = lr
        train(network, optimizer, grads)
        moved.append(network.weight.detach() - before)
    torch.testing.assert_close(moved[1], 10 * moved[0], rtol=1e-4, atol=1e-7)


def test_random_directions_keep_lengths_on_average():
    network = matrix((400, 600))
    optimizer = optimizer_of(network, GaLore(refresh="random", update="scaled", rank=200))
    train(network, optimizer, gradients((400, 600), 1))
    basis = optimizer.state[network.weight]["left"]
    vector = torch.ones(400, dtype=torch.float64)
    assert float((basis.mT @ vector).norm() / vector.norm()) == pytest.approx(1.0, abs=0.15)


# Which weights, and with what


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(11, 8)
        self.body = nn.Linear(8, 6)
        self.mlp = nn.Linear(6, 8)
        self.norm = nn.LayerNorm(8)
        self.lm_head = nn.Linear(8, 11, bias=False)


def projected(settings, network=None):
    groups = optimizer_of(network or Encoder(), settings).param_groups
    return {n: (g["rank"], g["gap"], g["scale"]) for g in groups if g["matrix"] for n in g["names"]}


def test_hidden_matrices_are_projected_and_groups_have_ranks_gaps_and_scales():
    settings = GaLore(
        rank=4, gap=9, groups=(GaLoreGroup(match="mlp", rank=2, scale=1.0), GaLoreGroup(match="body", gap=3))
    )
    assert projected(settings) == {"body.weight": (4, 3, 0.25), "mlp.weight": (2, 9, 1.0)}
    assert projected(GaLore(match="embed|norm")).keys() == {"embed.weight"}
    tied = Encoder()
    tied.lm_head.weight = tied.embed.weight
    tied.mlp.weight = tied.lm_head.weight
    assert projected(GaLore(), tied).keys() == {"body.weight"}


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (GaLore(match="q_proj|v_proj"), r"'q_proj\|v_proj' matches none.*that trains"),
        (GaLore(match="norm"), "matches none with two dimensions"),
        (GaLore(match="("), "optimizer.match"),
        (GaLore(groups=(GaLoreGroup(match="embed", rank=2),)), "takes nothing that is projected"),
    ],
)
def test_what_takes_no_matrix_is_78(settings, words):
    with pytest.raises(Failure, match=words) as caught:
        projected(settings)
    assert caught.value.outcome.code == Exit.BAD_RECIPE


def test_a_network_without_hidden_matrices_is_78():
    with pytest.raises(Failure, match="galore projects no weight of m: none is 2-D"):
        projected(GaLore(), nn.Sequential(nn.Embedding(3, 4), nn.LayerNorm(4)))


def test_parameters_without_gradients_stand_still_and_a_closure_is_called_once():
    network, calls = Encoder(), []
    optimizer = optimizer_of(network, GaLore(rank=2))
    start = {name: parameter.detach().clone() for name, parameter in network.named_parameters()}

    def closure():
        calls.append(1)
        loss = network.mlp(network.body(torch.ones(1, 8))).square().sum()
        loss.backward()
        return loss

    assert optimizer.step(closure) > 0
    assert len(calls) == 1
    moved = {name for name, parameter in network.named_parameters() if not torch.equal(parameter, start[name])}
    assert moved == {"body.weight", "body.bias", "mlp.weight", "mlp.bias"}


@pytest.mark.parametrize("settings", [GaLore(match=".", reduce="projected"), GaLore(match="."), AdamW()])
def test_who_may_be_given_projections_is_declared_and_is_what_reduce_says(settings):
    built = build_network_optimizers({"m": nn.Linear(4, 3)}, settings, Constant(), Horizon(100, Scale(Batches(1))))["m"]
    assert built.projected == settings.sums_projections
    assert (built.projecting is built.optimizer) == settings.sums_projections
    assert isinstance(built.optimizer, Projecting) == isinstance(settings, GaLore)
