"""Configurations of TorchEasyRec, small ones and parts of them, as text."""

from pathlib import Path

from drivetrain.spec.exits import Failure
from drivetrain.spec.importing.compose import compose
from drivetrain.spec.importing.easyrec.importer import EasyRec
from drivetrain.spec.importing.findings import Source
from drivetrain.spec.importing.importers import require_sound
from drivetrain.spec.load import load

TRAIN = """train_input_path: "train.csv"
eval_input_path: "test.csv"
model_dir: "experiments/small"
train_config {
  sparse_optimizer { adagrad_optimizer { lr: 0.05 } constant_learning_rate {} }
  dense_optimizer { adam_optimizer { lr: 0.001 } constant_learning_rate {} }
  num_epochs: 2
}
data_config {
  batch_size: 64
  dataset_type: CsvDataset
  fg_mode: FG_DAG
  with_header: true
  label_fields: "like"
}
"""
FEATURES = """\
feature_configs { id_feature { feature_name: "user" expression: "user:user" num_buckets: 41 embedding_dim: 8 } }
feature_configs { id_feature { feature_name: "item" expression: "item:item" hash_bucket_size: 99 embedding_dim: 8 } }
feature_configs { raw_feature { feature_name: "age" expression: "user:age" } }
"""


def group(name, *features):
    named = " ".join(f'feature_names: "{feature}"' for feature in features)
    return f'  feature_groups {{ group_name: "{name}" {named} group_type: DEEP }}\n'


def model(text, *features, name="deep"):
    return f"model_config {{\n{group(name, *(features or ('user', 'item', 'age')))}  {text}\n}}\n"


DEEPFM = model("deepfm { deep { hidden_units: [16, 8] } } losses { binary_cross_entropy {} } metrics { auc {} }")
SMALL = TRAIN + FEATURES + DEEPFM


def tower(name, label):
    losses = "losses { binary_cross_entropy {} } metrics { auc {} }"
    return f'task_towers {{ tower_name: "{name}" label_name: "{label}" mlp {{ hidden_units: 8 }} {losses} }}'


MMOE = TRAIN.replace('label_fields: "like"', 'label_fields: ["like", "love"]') + FEATURES
MMOE += model(
    f"mmoe {{ expert_mlp {{ hidden_units: 16 }} num_expert: 3 {tower('ctr', 'like')} {tower('cvr', 'love')} }}"
)

DSSM = TRAIN + FEATURES + "model_config {\n" + group("user", "user", "age") + group("item", "item")
DSSM += """  dssm {
    user_tower { input: "user" mlp { hidden_units: 16 } }
    item_tower { input: "item" mlp { hidden_units: 16 } }
    output_dim: 8 similarity: COSINE temperature: 0.2 in_batch_negative: true
  }
  metrics { recall_at_k { top_k: 1 } } metrics { recall_at_k { top_k: 5 } }
  losses { softmax_cross_entropy {} }
}
"""


def failure_of(call):
    """How a call failed, None where it did not."""
    try:
        call()
    except Failure as failure:
        return failure
    return None


def read(text, **source):
    return EasyRec().read(Source("p.config", text, **source))


def findings_of(text, **source):
    findings = read(text, **source)
    require_sound(findings)
    return findings


def composed_of(text, **source):
    return compose(findings_of(text, **source), Path("new.yaml"), None)


def recipe_of(text, **source):
    """The recipe that is written, checked, with something in each place that is to be filled in."""
    return load(composed_of(text, **source).filled).recipe


def lost_of(text, **source):
    return {told.key: told.line for told in findings_of(text, **source).lost}
