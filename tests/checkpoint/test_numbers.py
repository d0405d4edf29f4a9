"""What optimizers of the user's own keep, by the names that commits give it."""

import torch
from torch import nn

from drivetrain.checkpoint.numbers import mark, slot_name
from drivetrain.checkpoint.state import capture, restore


class Beside(torch.optim.SGD):
    """Keeps a count on the host, and a tensor beside the parameter, wherever that lies."""

    def begin(self):
        for parameter in self.param_groups[0]["params"]:
            self.state[parameter] = {
                "product": torch.full((), 0.5),
                "step": torch.ones((), device=parameter.device),
                "mean": torch.zeros_like(parameter),
            }


def built(device):
    """On `meta`, which stands for an accelerator: it is not the host."""
    network = nn.Linear(2, 1, bias=False, device=device)
    optimizer = Beside([{"params": [network.weight], "names": ["weight"]}], lr=0.1)
    mark(optimizer)
    return {"model": network}, {"model": optimizer}


def test_what_lay_on_the_host_beside_an_accelerator_comes_back_to_the_host():
    networks, optimizers = built("meta")
    optimizers["model"].begin()
    tensors = capture(networks, optimizers)
    names = {name.rpartition("/")[2] for name in tensors if name.startswith("optimizers/")}
    assert names == {"product#host", "step", "mean"}
    networks, optimizers = built("meta")
    restore(tensors, networks, optimizers)
    (state,) = optimizers["model"].state.values()
    assert {name: tensor.device.type for name, tensor in state.items()} == {
        "product": "cpu",
        "step": "meta",
        "mean": "meta",
    }
    assert float(state["product"]) == 0.5


def test_where_all_lies_on_the_host_names_say_nothing_of_it():
    networks, optimizers = built("cpu")
    optimizers["model"].begin()
    assert not any(name.endswith("#host") for name in capture(networks, optimizers))
    assert slot_name("product", torch.ones(()), torch.ones(1)) == "product"
