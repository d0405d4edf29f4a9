"""Kernels of one's own: what they replace, and that a wrong one is found before it trains."""

import pytest
import torch
from torch import nn
from torch.nn.functional import rms_norm

import compiled
from drivetrain.engine.kernels import comparing, first_wrong, judge, kernels_of, replace_modules
from drivetrain.engine.recipe import OwnKernel
from drivetrain.spec.custom import Custom
from drivetrain.spec.exits import Exit, Failure

CPU = torch.device("cpu")


def own(name: str, tolerance: float | None = None, **arguments) -> OwnKernel:
    return OwnKernel(tolerance=tolerance, own=Custom(section="kernel", kind=f"compiled:{name}", settings=arguments))


def replaced(pattern: str, kernel: OwnKernel) -> nn.Module:
    torch.manual_seed(0)
    network = compiled.Deep()
    replace_modules({"model": network}, {pattern: kernel})
    return network


def found_wrong(network: nn.Module, x: torch.Tensor) -> str:
    kernels = kernels_of([network])
    with comparing(kernels, CPU), torch.no_grad():
        network(x)
    return first_wrong(kernels)


@pytest.mark.parametrize("name", ["Norm", "norm"])
def test_a_class_or_a_function_computes_all_modules_of_a_pattern_under_their_names(name):
    network, plain, x = replaced("blocks.*.norm", own(name)), compiled.Deep(), torch.randn(5, 3)
    plain.load_state_dict(network.state_dict())
    assert [kernel.path for kernel in kernels_of([network])] == [f"model.blocks.{place}.norm" for place in range(3)]
    torch.testing.assert_close(network(x), plain(x))
    assert found_wrong(network, x) == ""
    assert all(kernel.verdict.difference <= kernel.verdict.allowed for kernel in kernels_of([network]))
    assert all(parameter.grad is None for parameter in network.parameters())


def test_of_two_patterns_the_first_one_counts():
    network = compiled.Deep()
    replace_modules({"model": network}, {"blocks.1.norm": own("norm"), "blocks.*.norm": own("Norm")})
    kinds = [kernel.kind for kernel in kernels_of([network])]
    assert kinds == ["compiled:Norm", "compiled:norm", "compiled:Norm"]


def test_a_wrong_one_is_found_with_its_difference_and_what_is_allowed():
    wrong = found_wrong(replaced("blocks.1.norm", own("Norm", scale=1.01)), torch.randn(5, 3))
    assert wrong.startswith("model.blocks.1.norm is not what compiled:Norm makes of it: ")
    assert wrong.endswith("of its largest number, and 1e-05 is allowed")
    assert found_wrong(replaced("blocks.1.norm", own("Norm", tolerance=0.5, scale=1.01)), torch.randn(5, 3)) == ""


def test_a_forward_pass_that_is_right_does_not_hide_a_wrong_gradient(monkeypatch):
    def still(self, x):
        return rms_norm(x, self.module.normalized_shape, self.module.weight.detach(), self.module.eps)

    monkeypatch.setattr(compiled.Norm, "forward", still)
    wrong = found_wrong(replaced("blocks.1.norm", own("Norm")), torch.randn(5, 3))
    assert "gradient of weight differs by 1 of its largest number" in wrong


def test_one_that_raises_is_told_and_one_that_is_never_called_too(monkeypatch):
    network = replaced("blocks.*.norm", own("Norm"))
    assert "was not called by a step's losses" in first_wrong(kernels_of([network]))
    monkeypatch.setattr(compiled.Norm, "forward", lambda self, x: x @ x)
    assert "it raises RuntimeError" in found_wrong(replaced("blocks.0.norm", own("Norm")), torch.randn(5, 3))


@pytest.mark.parametrize(
    ("pattern", "name", "words"),
    [
        ("layers.*.norm", "Norm", "no network has a module called 'layers.*.norm'"),
        ("blocks.*.norm", "numbers", "compiled:numbers gives a int for model.blocks.0.norm"),
        ("blocks.*.norm", "Weighted", "compiled:Weighted has a parameter 'weight' that model.blocks.0.norm does not"),
    ],
)
def test_what_cannot_replace_a_module_is_refused(pattern, name, words):
    with pytest.raises(Failure) as refused:
        replaced(pattern, own(name))
    assert refused.value.outcome.code is Exit.BAD_RECIPE
    assert words in refused.value.outcome.cause


def test_what_is_no_kernel_is_not_called():
    with pytest.raises(Failure) as refused:
        replaced("blocks.*.norm", OwnKernel(own=Custom(section="kernel", kind="os:getcwd")))
    assert refused.value.outcome.code is Exit.SECURITY


def test_the_coarsest_type_says_what_is_allowed():
    one = {"output 0": torch.ones(3)}
    near = {"output 0": torch.ones(3) * 1.001}
    assert judge(one, near, None, None).wrong
    assert not judge(one, near, None, torch.bfloat16).wrong
    assert judge(one, {"output 0": torch.ones(3) * torch.nan}, None, torch.bfloat16).wrong
    assert "float64" in judge(one, {"output 0": torch.ones(3).double()}, None, None).wrong
    assert judge(one, {}, None, None).wrong == "only one of them has output 0"
