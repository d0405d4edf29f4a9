import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from drivetrain.engine.average import Averages
from drivetrain.engine.recipe import Average
from engines import build


def test_it_is_the_closed_form_of_an_exponential_moving_average():
    network = nn.Linear(1, 1, bias=False)
    values = [0.5, -1.0, 2.0, 4.0]
    with torch.no_grad():
        network.weight.fill_(1.0)
    averages = Averages({"m": Average(decay=0.9, warmup=False)}, {"m": network})
    wanted = 1.0
    for step, value in enumerate(values, 1):
        with torch.no_grad():
            network.weight.fill_(value)
        averages.update(step, ["m"])
        averages.update(step, ["another"])  # stands still
        wanted = 0.9 * wanted + 0.1 * value
    assert abs(float(averages.tensors["averages/m/weight"]) - wanted) < 1e-6
    assert float(network.weight.detach()) == 4.0


@given(st.integers(1, 10**6), st.floats(0.01, 0.9999))
def test_warmup_forgets_faster_in_the_first_steps(step, decay):
    averages = Averages({"m": Average(decay=decay)}, {"m": nn.Linear(1, 1)})
    assert averages.decay("m", step) == min(decay, (1 + step) / (10 + step))


def test_networks_hold_the_averages_while_they_are_evaluated_and_their_weights_again_after_an_error():
    engine = build()
    engine.averages = Averages({"model": Average()}, engine.networks)
    first = engine.networks["model"][0].weight
    trained = first.detach().clone()
    kept = engine.averages.tensors["averages/model/0.weight"]
    with torch.no_grad():
        kept.fill_(7.0)
    try:
        with engine.evaluating() as networks:
            assert (networks["model"][0].weight == 7.0).all()
            raise KeyError
    except KeyError:
        pass
    assert torch.equal(first.detach(), trained)
    assert (engine.averages.tensors["averages/model/0.weight"] == 7.0).all()


def test_frozen_parameters_have_none():
    network = nn.Linear(2, 2)
    network.bias.requires_grad_(False)
    assert list(Averages({"m": Average()}, {"m": network}).tensors) == ["averages/m/weight"]
