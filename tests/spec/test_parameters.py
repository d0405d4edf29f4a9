"""What bf16 weights do not go with, told before any process starts."""

import pytest

from conftest import tiny_recipe
from drivetrain.spec.affects import bits_digest
from drivetrain.spec.load import load
from drivetrain.spec.tree import RecipeMistakes, dotted

BF16 = ("parameters.dtype=bf16", "precision=bf16")


def checked(corpus, *overrides):
    return load(tiny_recipe(corpus), overrides, folder=corpus).recipe


@pytest.mark.parametrize(
    ("asked", "path", "words"),
    [
        (("parameters.rounding=stochastic",), "parameters.rounding", "is for parameters.dtype: bf16"),
        (("parameters.master=none",), "parameters.master", "fp32 weights are the masters"),
        (("parameters.dtype=bf16",), "precision", "compute in bf16, not in fp32"),
        (("parameters.dtype=bf16", "precision=fp16"), "precision", "compute in bf16, not in fp16"),
        ((*BF16, "networks.model.precision=fp32"), "networks.model.precision", "compute in bf16, not in fp32"),
        ((*BF16, "exact=true", "parameters.rounding=stochastic"), "parameters.rounding", "exact"),
        ((*BF16, "compile=true"), "compile", "never tried"),
        ((*BF16, "optimizer.layerwise=true"), "optimizer.layerwise", "before gradients of bf16 weights"),
        ((*BF16, "optimizer.kind=galore"), "optimizer.kind", "never tried"),
        ((*BF16, "optimizer.kind=muon"), "optimizer.kind", "never tried"),
        ((*BF16, "optimizer.kind=adafactor"), "optimizer.kind", "never tried"),
        ((*BF16, "optimizer.kind=torchao_adamw8bit"), "optimizer.kind", "never tried"),
        ((*BF16, "optimizer.kind=torch.optim:SGD", "optimizer.lr=0.1"), "optimizer.kind", "never tried"),
        ((*BF16, "parameters.master=fp16"), "parameters.master", ""),
    ],
)
def test_what_does_not_go_together_is_told(corpus, asked, path, words):
    with pytest.raises(RecipeMistakes) as caught:
        checked(corpus, *asked)
    told = {dotted(mistake.path): mistake.message for mistake in caught.value.mistakes}
    assert words in told[path], told


def test_weights_in_fp32_leave_a_recipe_what_it_was(corpus):
    plain, said = checked(corpus), checked(corpus, "parameters.dtype=fp32", "parameters.rounding=nearest")
    assert bits_digest(plain) == bits_digest(said)
    assert bits_digest(checked(corpus, "precision=bf16")) != bits_digest(checked(corpus, *BF16))
    assert bits_digest(checked(corpus, *BF16)) != bits_digest(checked(corpus, *BF16, "parameters.master=none"))
