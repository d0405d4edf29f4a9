"""The language model on prepared documents: every token predicted once, and documents kept apart where asked."""

import json

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from conftest import run_under_supervisor, trace
from drivetrain.cli.main import run as command
from drivetrain.data.packing import IGNORED, Packed
from drivetrain.engine.losses import objective
from drivetrain.ledger.derive import curve, lineage, steps
from drivetrain.ledger.ledger import read
from drivetrain.spec.exits import Exit, Failure
from drivetrain.spec.load import load
from drivetrain.spec.tree import RecipeMistakes
from drivetrain.tasks.language_model.llama import positions_within, within
from drivetrain.tasks.language_model.recipe import Bounds, LanguageModel, Llama
from drivetrain.tasks.language_model.task import LanguageModelTask

CONTEXT = 12
MODEL = Llama(width=32, depth=2, heads=4, kv_heads=2, context=CONTEXT, vocabulary=50)
APART = Bounds(attention="within", loss="within")


def task_and_nets(bounds=APART):
    torch.manual_seed(0)
    task = LanguageModelTask(LanguageModel(model=MODEL, documents=bounds))
    nets = task.networks()
    for parameter in nets["model"].parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=0.3)
    return task, nets


def packed(lengths, context=CONTEXT):
    """Documents of these lengths, whose tokens are drawn from 1 to 49."""
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    tokens = np.random.default_rng(0).integers(1, 50, offsets[-1]).astype(np.uint16)
    return Packed(tokens, offsets, range(len(lengths)), context, "")


def samples_of(lengths):
    source = packed(lengths)
    every = np.arange(len(source))
    return source.read(every, every)


def logits_of(nets, documents):
    """Logits of one sample that has these documents' tokens, one document after the other."""
    tokens = torch.tensor([[token for document in documents for token in document]])
    owners = torch.tensor([[n for n, document in enumerate(documents) for _ in document]])
    with torch.no_grad():
        return nets["model"](tokens, owners)[0]


def prepare(tmp_path):
    lines = [json.dumps({"text": f"document {n} " * (n % 7 + 1)}) for n in range(40)]
    (tmp_path / "in.jsonl").write_text("\n".join(lines))
    name = str(tmp_path / "out")
    assert command(["data", "prepare", str(tmp_path / "in.jsonl"), "--to", name, "--tokenizer", "bytes"]) == 0
    return name


def on_documents(tiny, name):
    tiny["data"] = {
        "train": {"sources": [{"kind": "documents", "path": name}]},
        "validation": {"dogs": {"kind": "documents", "path": name}},
    }
    return tiny


def made(run):
    return steps(lineage(read(run / "ledger.jsonl")))


def test_an_epoch_of_packed_documents_counts_every_token_once(tiny, tmp_path, capsys):
    on_documents(tiny, prepare(tmp_path))["budget"] = {"epochs": 1}
    for processes in (1, 2):
        asked = f"launch.processes={processes}"
        assert run_under_supervisor(tiny, tmp_path / f"run{processes}", asked).code == Exit.DONE
    stored = (tmp_path / "out.bin").stat().st_size // 2
    assert sum(record["counts"]["tokens"] for record in made(tmp_path / "run2")) == stored - 1
    assert trace(tmp_path / "run1").samples == trace(tmp_path / "run2").samples
    assert run_under_supervisor(tiny, tmp_path / "cut", most_steps=3).code == Exit.STOPPED
    assert run_under_supervisor(tiny, tmp_path / "cut").code == Exit.DONE
    assert trace(tmp_path / "cut") == trace(tmp_path / "run1")


def test_documents_kept_apart_are_counted_over_processes_and_resumed_to_the_same_bits(tiny, tmp_path, capsys):
    name = prepare(tmp_path)
    on_documents(tiny, name)["budget"] = {"epochs": 1}
    tiny["task"]["documents"] = {"attention": "within", "loss": "within"}
    tiny["task"]["model"]["dropout"] = 0.0  # it is drawn by rank and micro-batch
    for run, asked in (("one", "batch.micro=8"), ("two", "launch.processes=2")):
        assert run_under_supervisor(tiny, tmp_path / run, asked).code == Exit.DONE
    stored, documents = (tmp_path / "out.bin").stat().st_size // 2, 40
    for run in ("one", "two"):  # every token but the first of each document
        assert sum(record["counts"]["tokens"] for record in made(tmp_path / run)) == stored - documents
    one, two = (dict(curve(lineage(read(tmp_path / run / "ledger.jsonl")), "loss")) for run in ("one", "two"))
    assert one == pytest.approx(two, rel=1e-4)
    assert run_under_supervisor(tiny, tmp_path / "cut", "launch.processes=2", most_steps=3).code == Exit.STOPPED
    assert run_under_supervisor(tiny, tmp_path / "cut", "launch.processes=2").code == Exit.DONE
    assert trace(tmp_path / "cut") == trace(tmp_path / "two")


@given(st.lists(st.lists(st.integers(1, 49), min_size=1, max_size=4), min_size=1, max_size=3), st.data())
def test_a_documents_logits_are_the_same_wherever_it_stands_and_whatever_stands_beside_it(others, data):
    _, nets = task_and_nets()
    document = [3, 1, 4, 1]  # beside others it fits into the context's 12 positions three times
    alone = logits_of(nets, [document])
    place = data.draw(st.integers(0, min(2, len(others))))
    others = [other[: 8 // len(others)] for other in others]
    among = [*others[:place], document, *others[place:]]
    begin = sum(map(len, others[:place]))
    assert torch.allclose(logits_of(nets, among)[begin : begin + 4], alone, atol=1e-5, rtol=1e-5)
    across = nets["model"](torch.tensor([[token for part in among for token in part]]))[0]
    if place:  # the test could fail: attention across documents does see what stands before
        assert not torch.allclose(across[begin : begin + 4], alone, atol=1e-3)


def test_the_loss_of_a_document_has_no_gradient_for_the_others_tokens_and_those_of_padding():
    task, nets = task_and_nets()
    (sample,) = samples_of([3, 5, 2])  # 10 tokens, the last of them a target only, and 3 places of padding
    embedded = []
    nets["model"].embed.register_forward_hook(lambda *seen: embedded.append(seen[2]) or seen[2].retain_grad())
    batch = task.collate([sample])
    alone = torch.full_like(batch["targets"], IGNORED)
    alone[0, 3:7] = batch["targets"][0, 3:7]
    task.loss(nets, batch | {"targets": alone})["loss"].value.backward()
    gradient = embedded[0].grad[0].abs().sum(dim=1)
    assert (gradient[3:7] > 0).all()
    assert gradient[:3].tolist() == [0.0] * 3
    assert gradient[7:].tolist() == [0.0] * 5


def test_padding_changes_nothing():
    task, nets = task_and_nets()
    (sample,) = samples_of([3, 5, 2])
    batch = task.collate([sample])
    other = batch | {"tokens": batch["tokens"].where(batch["documents"] >= 0, 49)}
    ours, theirs = (task.loss(nets, given)["loss"].value for given in (batch, other))
    assert not torch.equal(batch["tokens"], other["tokens"])
    assert torch.equal(ours, theirs)
    assert ours.isfinite()


@pytest.mark.parametrize("attention", ["across", "within"])
@pytest.mark.parametrize("loss", ["across", "within"])
def test_what_crosses_a_boundary_is_the_recipes_choice(attention, loss):
    task, _ = task_and_nets(Bounds(attention=attention, loss=loss))
    batch = task.collate(samples_of([3, 5, 2]))
    assert ("documents" in batch) == (attention == "within")
    assert task.counts(batch) == {"tokens": 7 if loss == "within" else 9}
    left_out = [2, 7, 9, 10, 11] if loss == "within" else [9, 10, 11]
    assert (batch["targets"][0] == IGNORED).nonzero().flatten().tolist() == left_out


@given(st.lists(st.integers(1, 30), min_size=1, max_size=12), st.integers(1, 5))
def test_the_mean_over_tokens_does_not_depend_on_micro_batches(lengths, micro):
    task, nets = task_and_nets()
    samples = samples_of([*lengths, 2])
    whole = task.collate(samples)
    counts = task.counts(whole)
    assert counts == {"tokens": sum(lengths) + 1 - len(lengths)}
    parts = [task.collate(samples[at : at + micro]) for at in range(0, len(samples), micro)]
    assert sum(task.counts(part)["tokens"] for part in parts) == counts["tokens"]
    with torch.no_grad():
        split = sum(float(objective(task.loss(nets, part), counts)) for part in parts)
        assert split == pytest.approx(float(objective(task.loss(nets, whole), counts)), rel=1e-5, abs=1e-6)


def test_megatron_17_an_end_of_document_token_is_a_token_like_any_other():
    """Megatron defect 17: its masks take end-of-document tokens for padding where the two are different tokens."""
    task, nets = task_and_nets()
    end, pad = 7, 0
    tokens = np.array([5, 6, end, 8, 9, end], np.uint16)
    source = Packed(tokens, np.array([0, 3, 6]), range(2), CONTEXT, "")
    (sample,) = source.read(np.arange(1), np.arange(1))
    batch = task.collate([sample])
    assert batch["tokens"][0].tolist() == [5, 6, end, 8, 9, end, *[pad] * 6]
    assert batch["targets"][0].tolist() == [6, end, IGNORED, 9, end, *[IGNORED] * 7]  # both ends are learnt
    assert task.counts(batch) == {"tokens": 4}
    seen = within(batch["documents"])[0, 0]
    assert seen[2].nonzero().flatten().tolist() == [0, 1, 2]  # an end sees its document
    assert seen[5].nonzero().flatten().tolist() == [3, 4, 5]
    assert seen[6:].nonzero().tolist() == [[n, 6 + n] for n in range(6)]  # padding sees itself and is not seen
    padded = batch | {"tokens": batch["tokens"].where(batch["tokens"] != pad, end)}  # end and pad as one token
    ours, theirs = (task.loss(nets, given)["loss"].value for given in (batch, padded))
    assert torch.equal(ours, theirs)


def test_positions_count_from_each_documents_beginning_in_the_sample():
    owners = torch.tensor([[4, 4, 4, 5, 6, 6, -1, -1], [8, 8, 8, 8, 8, 8, 8, 9]])
    assert positions_within(owners).tolist() == [[0, 1, 2, 0, 0, 1, 0, 1], [0, 1, 2, 3, 4, 5, 6, 0]]


def test_the_decoder_uses_the_positions_that_restart():
    _, nets = task_and_nets()
    model = nets["model"]
    model.cos.normal_()  # rotary positions are relative: only a table that is not shows from where they count
    alone = logits_of(nets, [[3, 1, 4, 1]])
    assert torch.allclose(logits_of(nets, [[9, 8, 7], [3, 1, 4, 1]])[3:], alone, atol=1e-5, rtol=1e-5)
    assert not torch.allclose(model(torch.tensor([[9, 3, 1, 4, 1]]))[0, 1:], alone, atol=1e-2)


def test_sources_that_tell_no_documents_are_refused_where_documents_are_kept_apart(tiny):
    tiny["task"]["documents"] = {"loss": "within"}
    with pytest.raises(RecipeMistakes) as caught:
        load(tiny)
    assert caught.value.outcome.code == Exit.BAD_RECIPE
    told = str(caught.value.details)
    for place in ("data.train.sources[0].kind", "data.validation.dogs.kind"):
        assert f"{place}: task.documents keeps documents apart, which sources of kind text do not tell" in told
    load(tiny, ["task.documents={attention: across, loss: across}"])


def test_a_users_source_that_tells_no_documents_is_refused_when_it_is_read():
    task, _ = task_and_nets()
    (sample,) = samples_of([3, 5, 2])
    without = {name: part for name, part in sample.items() if name != "documents"}
    for samples in ([without], np.ones((2, CONTEXT + 1), np.uint16)):
        with pytest.raises(Failure) as caught:
            task.collate(samples)
        assert caught.value.outcome.code == Exit.BAD_RECIPE
