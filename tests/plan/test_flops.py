"""Parameters and FLOPs: golden values of published models, the papers' formulas, and what torch counts."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from drivetrain.plan.flops import Shape, core_flops, flops_per_sample, flops_per_token, matrix_flops, parameters, peak
from drivetrain.tasks.language_model.recipe import LanguageModel, Llama
from drivetrain.tasks.language_model.task import LanguageModelTask


def gpt(depth, width, vocabulary, context):
    return Shape(
        depth=depth,
        width=width,
        heads=16,
        kv_heads=16,
        hidden=4 * width,
        vocabulary=vocabulary,
        context=context,
        gated=False,
        tied=True,
        gpt=True,
    )


GPT3 = gpt(96, 12288, 51200, 2048)
GPT2 = replace(gpt(12, 768, 50257, 1024), heads=12, kv_heads=12)
LLAMA3 = Shape(
    depth=32,
    width=4096,
    heads=32,
    kv_heads=8,
    hidden=14336,
    vocabulary=128256,
    context=8192,
    gated=True,
    tied=False,
)
SMALL = Llama(vocabulary=64, width=32, depth=3, heads=4, kv_heads=2, context=16, tied=False)


def narayanan(shape, batch):
    """FLOPs of an iteration by arXiv 2104.04473, eq. 3, without computing activations again, core not halved."""
    layers, width, context = shape.depth, shape.width, shape.context
    rest = 1 + context / (6 * width) + shape.vocabulary / (12 * layers * width)
    return 72 * batch * context * layers * width**2 * rest


def test_parameters_of_published_models():
    assert parameters(GPT2) == 124_439_808
    assert parameters(LLAMA3) == 8_030_261_248
    assert parameters(GPT3) == pytest.approx(1.746e11, rel=1e-3)


@pytest.mark.parametrize(("depth", "width", "billions"), [(24, 2304, 1.7), (80, 12288, 145.6), (128, 25600, 1008.0)])
def test_parameters_of_the_papers_models(depth, width, billions):
    shape = gpt(depth, width, 51200, 2048)
    published = 12 * depth * width**2 * (1 + 13 / (12 * width) + (51200 + 2048) / (12 * depth * width))
    assert parameters(shape) == pytest.approx(published, rel=1e-5)
    assert round(parameters(shape) / 1e9, 1) == billions


def test_flops_of_published_models():
    assert 1536 * flops_per_sample(GPT3) == pytest.approx(3.341e18, rel=2e-4)
    assert flops_per_token(LLAMA3) == pytest.approx(5.147e10, rel=1e-4)
    assert flops_per_token(GPT2) == pytest.approx(7.978e8, rel=1e-4)


def test_flops_are_those_of_the_papers_but_for_what_a_causal_mask_hides():
    unmasked = 1536 * 2048 * (matrix_flops(GPT3) + 2 * core_flops(GPT3))
    assert unmasked == pytest.approx(narayanan(GPT3, 1536), rel=1e-12) == pytest.approx(3.386e18, rel=2e-4)
    assert 1536 * flops_per_sample(GPT3) / unmasked == pytest.approx(0.9865, rel=1e-4)
    palm = 6 * parameters(GPT3) + 12 * 96 * 12288 * 2048  # arXiv 2204.02311, app. B: 6N + 12LHQT
    assert palm == pytest.approx(1.077e12, rel=1e-3)
    assert unmasked / (1536 * 2048) == pytest.approx(palm, rel=1e-3)


@given(st.integers(1, 99), st.sampled_from([256, 1024, 4096]), st.integers(1, 10**5), st.integers(1, 10**5))
def test_flops_have_the_closed_form_of_a_plain_decoder(depth, width, vocabulary, context):
    shape = gpt(depth, width, vocabulary, context)
    assert flops_per_token(shape) == depth * (72 * width**2 + 6 * width * context) + 6 * width * vocabulary


@pytest.mark.parametrize(
    "settings", [SMALL, replace(SMALL, kv_heads=None), replace(SMALL, tied=True), replace(SMALL, hidden=50)]
)
def test_flops_and_parameters_are_those_that_torch_counts(settings):
    task = LanguageModelTask(LanguageModel(model=settings))
    nets = task.networks()
    batch = {"tokens": torch.zeros(2, 16, dtype=torch.int64), "targets": torch.zeros(2, 16, dtype=torch.int64)}
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        task.loss(nets, batch)["loss"].value.backward()
    shape = settings.shape
    assert parameters(shape) == sum(parameter.numel() for parameter in nets["model"].parameters())
    assert counter.get_total_flops() == 2 * 16 * (matrix_flops(shape) + 2 * core_flops(shape))  # it computes all
    assert task.flops_per_sample() == flops_per_sample(shape)


@pytest.mark.parametrize(
    ("name", "precision", "matmul", "expected"),
    [
        ("NVIDIA A100-SXM4-80GB", "bf16", "highest", 312e12),
        ("NVIDIA A100-SXM4-80GB", "fp32", "highest", 19.5e12),
        ("NVIDIA A100-SXM4-80GB", "fp32", "high", 156e12),
        ("NVIDIA A10", "bf16", "high", 125e12),
        ("NVIDIA A10G", "bf16", "high", 70e12),
        ("NVIDIA H100 80GB HBM3", "bf16", "highest", 989.4e12),
        ("NVIDIA H100 PCIe", "fp16", "highest", 756e12),
        ("NVIDIA H200", "bf16", "highest", 989.4e12),
        ("NVIDIA GH200 480GB", "bf16", "highest", 989.4e12),
        ("NVIDIA B200", "bf16", "highest", 2250e12),
        ("NVIDIA GB200", "bf16", "highest", 2500e12),
        ("NVIDIA L4", "bf16", "highest", 121e12),
        ("NVIDIA L40S", "fp16", "highest", 362e12),
        ("Tesla V100-SXM2-16GB", "bf16", "highest", None),
        ("Tesla V100-SXM2-16GB", "fp32", "high", 15.7e12),
        ("AMD Instinct MI300X", "bf16", "highest", 1307.4e12),
        ("cpu", "fp32", "highest", None),
        ("NVIDIA H1000", "bf16", "highest", None),
    ],
)
def test_peaks_are_dense_and_by_precision(name, precision, matmul, expected):
    assert peak(name, precision, matmul) == expected
