import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file

import drivetrain
from drivetrain.checkpoint.snapshot import pieces_of
from drivetrain.checkpoint.tensors import write_tensors
from drivetrain.engine.losses import objective
from drivetrain.loop.sampling import Sampling
from drivetrain.spec.load import load
from drivetrain.spec.tree import RecipeMistakes
from drivetrain.tasks.language_model.hugging_face import from_layout, to_layout
from drivetrain.tasks.language_model.llama import Llama, Past
from drivetrain.tasks.language_model.recipe import Balance, Experts, LanguageModel
from drivetrain.tasks.language_model.recipe import Llama as Settings
from drivetrain.tasks.language_model.sampling import generate
from drivetrain.tasks.language_model.task import LanguageModelTask, Perplexity

SETTINGS = Settings(width=32, depth=2, heads=4, kv_heads=2, context=16, vocabulary=50)


@pytest.mark.parametrize("tied", [True, False])
def test_logits_are_those_of_hugging_faces_llama(tied, tmp_path):
    from transformers import LlamaConfig, LlamaForCausalLM

    settings = Settings(**{**SETTINGS.__dict__, "tied": tied})
    torch.manual_seed(0)
    model = Llama(settings).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    tensors, config = to_layout(model.state_dict(), settings)
    theirs = LlamaForCausalLM(LlamaConfig(**config)).eval()
    missing, unexpected = theirs.load_state_dict(tensors, strict=False)
    assert not unexpected
    assert missing in ([], ["lm_head.weight"])
    theirs.tie_weights()
    tokens = torch.randint(0, 50, (3, 16))
    with torch.no_grad():
        assert torch.allclose(model(tokens), theirs(tokens).logits, atol=1e-4)


EXPERTS = {
    "Mixtral": Experts(count=4, top_k=2, balance=Balance(rate=0.0)),
    "GLM": Experts(count=4, top_k=2, scores="sigmoid", shared=2, dense=1),
    "GLM, one expert and nothing shared": Experts(count=3, top_k=1, scores="sigmoid"),
}


@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")
@pytest.mark.parametrize("experts", EXPERTS.values(), ids=EXPERTS)
def test_experts_are_those_of_a_class_that_routes_alike_and_come_back(experts, tmp_path):
    from transformers import AutoModelForCausalLM

    settings = replace(SETTINGS, depth=3, experts=experts)
    torch.manual_seed(0)
    model = Llama(settings).eval()
    for tensor in [*model.parameters(), *[own for name, own in model.named_buffers() if name.endswith("router.bias")]]:
        torch.nn.init.normal_(tensor, std=0.3 if experts.scores == "sigmoid" or tensor.ndim > 1 else 0.0)
    tensors, config = to_layout(model.state_dict(), settings)
    (tmp_path / "config.json").write_text(json.dumps(config))
    write_tensors(tmp_path / "model.safetensors", pieces_of(tensors))
    theirs, told = AutoModelForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(told.values()), "each tensor has its place"
    tokens = torch.randint(0, 50, (3, 16))
    with torch.no_grad():
        assert torch.allclose(model(tokens), theirs.eval()(tokens).logits, atol=1e-4)
    theirs.save_pretrained(tmp_path / "theirs")
    back = from_layout(load_file(tmp_path / "theirs" / "model.safetensors"), settings)
    own = {name: tensor for name, tensor in model.state_dict().items() if name != "head.weight"}
    assert back.keys() == own.keys()
    assert all(torch.equal(back[name], own[name]) for name in own)


def test_experts_that_no_class_has_keep_their_names_and_a_bias_that_has_no_place_is_told():
    for changed in ({"capacity": 1.0}, {"shared": 1}, {"dense": 1}, {"top_k": 1}, {"balance": Balance(rate=1e-3)}):
        task = LanguageModelTask(LanguageModel(model=replace(SETTINGS, experts=replace(EXPERTS["Mixtral"], **changed))))
        assert task.layout("model") is None, changed
    settings = replace(SETTINGS, experts=EXPERTS["Mixtral"])
    moved = Llama(settings)
    moved.layers[1].mlp.router.bias[2] = 0.1
    with pytest.raises(drivetrain.Failure, match="biases have moved"):
        to_layout(moved.state_dict(), settings)


def test_what_is_missing_of_published_experts_is_told_by_the_files_own_names():
    settings = replace(SETTINGS, experts=EXPERTS["Mixtral"])
    tensors, _ = to_layout(Llama(settings).state_dict(), settings)
    del tensors["model.layers.1.block_sparse_moe.experts.3.w2.weight"]
    found = from_layout(tensors, settings)
    assert "layers.1.mlp.down" not in found
    assert "model.layers.1.block_sparse_moe.experts.2.w2.weight" in found


def test_a_run_is_exported_so_that_transformers_reads_it(tiny, tmp_path):
    from transformers import LlamaForCausalLM

    run = drivetrain.train(tiny, ["budget.steps=3"], run=tmp_path / "run", progress=False).run
    files = drivetrain.export(run, tmp_path / "out")
    assert [path.name for path in files] == [
        *("model.safetensors", "config.json"),
        *("tokenizer.json", "tokenizer_config.json"),
    ]
    theirs = LlamaForCausalLM.from_pretrained(tmp_path / "out").eval()
    scores = drivetrain.evaluate(run)
    text = np.frombuffer((tmp_path / "corpus" / "3.txt").read_bytes() + b"\0", dtype=np.uint8)
    windows = np.stack([text[i * 16 : i * 16 + 17] for i in range((len(text) - 1) // 16)]).astype(np.int64)
    with torch.no_grad():
        logits = theirs(torch.from_numpy(windows[:, :-1])).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), torch.from_numpy(windows[:, 1:]).flatten())
    assert scores.metrics["dogs"]["loss"] == pytest.approx(float(loss), abs=1e-4)
    assert scores.metrics["dogs"]["bits_per_byte"] == pytest.approx(float(loss) / np.log(2), abs=1e-4)
    assert scores.metrics["dogs"]["perplexity"] == pytest.approx(np.exp(float(loss)), rel=1e-4)
    assert json.loads((tmp_path / "out" / "config.json").read_text())["drivetrain"]["step"] == 3
    with pytest.raises(drivetrain.Failure):
        drivetrain.export(run, tmp_path / "out")


def test_a_later_token_never_changes_an_earlier_logit():
    model = Llama(SETTINGS).eval()
    tokens = torch.randint(0, 50, (1, 16))
    changed = tokens.clone()
    changed[0, 10] = (changed[0, 10] + 1) % 50
    with torch.no_grad():
        before, after = model(tokens), model(changed)
    assert torch.equal(before[:, :10], after[:, :10])
    assert not torch.equal(before[:, 10:], after[:, 10:])


def test_the_loss_is_the_mean_over_tokens():
    task = LanguageModelTask(LanguageModel(model=SETTINGS))
    nets = task.networks()
    batch = task.collate(np.random.default_rng(0).integers(0, 50, (4, 17)).astype(np.uint8))
    assert task.counts(batch) == {"tokens": 64}
    logits = nets["model"](batch["tokens"])
    expected = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch["targets"].flatten())
    assert objective(task.loss(nets, batch), {"tokens": 64}).item() == pytest.approx(expected.item(), rel=1e-6)


@given(st.lists(st.tuples(st.floats(0, 1e6), st.integers(1, 1000)), min_size=1), st.integers(0, 10))
def test_perplexity_is_the_exp_of_the_mean_however_its_parts_are_merged(parts, cut):
    whole, *merged = Perplexity(), Perplexity(), Perplexity()
    for number, part in enumerate(parts):
        whole.add(*part)
        merged[number >= cut].add(*part)
    merged[0].merge(merged[1].state())
    mean = sum(total for total, _ in parts) / sum(count for _, count in parts)
    assert whole.value() == pytest.approx(np.exp(np.float64(mean)) if mean < 700 else whole.value(), rel=1e-6)
    assert merged[0].value() == pytest.approx(whole.value(), rel=1e-6)


def test_every_vocabulary_has_a_perplexity_and_its_limit_is_infinite():
    metrics = LanguageModelTask(LanguageModel(model=SETTINGS)).metrics()
    assert list(metrics) == ["loss", "perplexity"]
    assert np.isnan(metrics["perplexity"].value())
    metrics["perplexity"].merge([1e6, 1])
    assert metrics["perplexity"].value() == np.inf


def test_a_prompt_for_a_model_that_is_none_of_bytes_is_a_mistake(tiny):
    with pytest.raises(RecipeMistakes, match=r"sample\.prompt is for models of bytes, and model\.vocabulary is 50"):
        load(tiny, ["task.sample.prompt=li", "task.model.vocabulary=50"])


def test_generation_follows_the_generator_and_temperature_zero_the_likeliest():
    model = Llama(SETTINGS).eval()
    prompt = torch.tensor([[1, 2, 3]])
    drawn = []
    for _ in range(2):
        torch.manual_seed(3)
        drawn.append(generate(model, prompt, Sampling(tokens=20)))
    assert torch.equal(*drawn)
    assert drawn[0].shape == (1, 23)
    greedy = generate(model, prompt, Sampling(tokens=1, temperature=0.0))
    assert int(greedy[0, -1]) == int(model(prompt)[0, -1].argmax())


@pytest.mark.parametrize("kv_heads", [2, 4])
def test_a_token_after_what_was_read_has_the_logits_of_all_of_it_read_together(kv_heads):
    model = Llama(Settings(**{**SETTINGS.__dict__, "kv_heads": kv_heads})).eval()
    tokens, past = torch.randint(0, 50, (2, 16)), Past(2)
    with torch.no_grad():
        parts = [model(tokens[:, :5], past=past)]
        for place in range(5, 16):
            assert past.length == place
            parts.append(model(tokens[:, place : place + 1], past=past))
        assert torch.allclose(torch.cat(parts, dim=1), model(tokens), atol=1e-5)


def test_text_to_look_at_is_shown_and_kept(tiny, tmp_path):
    shown = ["task.sample={prompt: 'li', tokens: 12}", "budget.steps=3"]
    run = drivetrain.train(tiny, shown, run=tmp_path / "run", progress=False).run
    text = (run / "gallery" / "step-00000003" / "sample.txt").read_text()
    assert text.startswith("li")


@pytest.mark.parametrize(
    ("name", "rank", "steps", "changes"),
    [
        ("60m", 128, 10_000, {}),
        ("130m", 256, 20_000, {}),
        ("350m", 256, 60_000, {}),
        ("1b", 1024, 100_000, {}),
        ("7b", 1024, 150_000, {"lr": 0.005, "gap": 500, "clip": 1.0}),
    ],
)
def test_shipped_llamas_train_with_galores_published_settings(name, rank, steps, changes):
    recipe = load(f"llama-{name}").recipe
    expected = {"lr": 0.01, "rank": rank, "gap": 200, "scale": 0.25, "projection": "std", "clip": None} | changes
    assert {key: getattr(recipe.optimizer, key) for key in expected} == expected
    assert (recipe.batch.size, recipe.task.model.context) == (512, 256)
    assert (recipe.budget.steps, recipe.schedule.warmup.steps) == (steps, steps // 10)
    assert (recipe.schedule.kind, recipe.schedule.floor) == ("cosine", 0.1)
