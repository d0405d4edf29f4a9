"""A user's `transformers` classifier: `collate` pads, `loss` calls the model."""

import textwrap

import drivetrain

TASK = """
    import torch
    from torch import nn
    import drivetrain
    from drivetrain import Mean

    WORDS = "good fine great nice bad poor awful worse".split()

    class Sentences:
        '''Two to six words; the label says whether more of them are good.'''
        def __len__(self):
            return 200
        def __getitem__(self, i):
            words = [(i * 7 + k * (i % 5 + 1)) % 8 for k in range(2 + i % 5)]
            return {"ids": words, "label": int(sum(w < 4 for w in words) * 2 > len(words))}

    class Classifier(drivetrain.Task):
        def networks(self):
            from transformers import BertConfig, BertForSequenceClassification
            config = BertConfig(vocab_size=9, hidden_size=32, num_hidden_layers=1, num_attention_heads=2,
                                intermediate_size=64, max_position_embeddings=16, num_labels=2)
            return {"model": BertForSequenceClassification(config)}

        def collate(self, samples):
            longest = max(len(s["ids"]) for s in samples)
            ids = torch.full((len(samples), longest), 8)
            for row, sample in zip(ids, samples):
                row[: len(sample["ids"])] = torch.tensor(sample["ids"])
            labels = torch.tensor([sample["label"] for sample in samples])
            return {"input_ids": ids, "attention_mask": (ids != 8).long(), "labels": labels}

        def loss(self, nets, batch):
            return nets["model"](**batch).loss

        def metrics(self):
            return {"accuracy": Mean()}

        def evaluate(self, nets, batch, metrics):
            right = nets["model"](**batch).logits.argmax(-1) == batch["labels"]
            metrics["accuracy"].add(float(right.sum()), len(right))
"""


def test_a_transformers_classifier_learns(tmp_path):
    (tmp_path / "sentences.py").write_text(textwrap.dedent(TASK))
    (tmp_path / "r.yaml").write_text(
        "name: bert\ntask: {kind: 'sentences:Classifier'}\n"
        "data: {train: {sources: [{kind: 'sentences:Sentences'}]}, validation: {same: {kind: 'sentences:Sentences'}}}\n"
        "batch: {size: 20, micro: 10}\nbudget: {epochs: 6}\noptimizer: {lr: 3e-3}\nevaluate: {batch: 64}\n"
        "launch: {threads: 1}\n"
    )
    result = drivetrain.train(tmp_path / "r.yaml", run=tmp_path / "run", progress=False)
    assert result.metrics["same"]["accuracy"] > 0.85
