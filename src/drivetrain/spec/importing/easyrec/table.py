"""What becomes of the fields that no other module of this package speaks of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

_READING = "files are decoded in the background, by position"
_ODPS = "MaxCompute is not read"
_ROWS = "rows begin at numbers drawn by their names"
_HOLD = "who holds which rows balances itself, or `embeddings.hold` says it; it changes no number"
_SERVING = "is about serving"
_DELTA = "no changed rows are written out while it trains: `drivetrain export` writes all"
_EVENTS = "commits come by steps, samples or epochs (checkpoint.every), not by the time of events"
_NULLS = "null has a row of its own"
_MASK = "no values are masked in training"
_KERNEL = "decides no number that anybody should see"
_TF32 = "`matmul: high` does that for all fp32 products"
_LEDGER = "every step is in the ledger"
_DROPOUT = "no features are chosen by variational dropout"
_HASHED = "is about how the table lies in memory"
_LAYER = "a layer is linear, with a bias, and a ReLU behind"


@dataclass(frozen=True)
class Said:
    """Lost or spared, and why. `off` are values that ask for nothing."""

    why: str
    lost: bool = False
    off: tuple[object, ...] = ()


def _lost(why: str, *off: object) -> Said:
    return Said(why, True, off)


ANY: Mapping[str, Said] = {
    "fused": Said("torch's fused kernel is used where there is one"),
    "gradient_clipping": _lost("optimizer.clip clips rows and layers, by one norm or each number", False),
    "max_gradient": Said("gradient_clipping says whether it counts"),
    "init_fn": _lost(_ROWS, ""),
    "use_mask": _lost(_MASK, False),
    "data_type": _lost("rows are fp32", "FP32"),
    "embedding_constraints": Said(_HOLD),
    "sharding_types": Said(_HOLD),
    "compute_kernels": Said(_HOLD),
    "fg_value_type": Said("columns have the type that their files say"),
    "default_value": Said(_NULLS),
    "fg_encoded_default_value": Said(_NULLS),
    "default_bucketize_value": Said("all other values share a row of their own"),
    "separator": Said("the column has single values"),
    "sequence_delim": Said("the column has single values, or lists"),
    "sequence_length": Said("the column has single values"),
    "sequence_fields": Said("the feature says which column it reads"),
    "value_dim": Said("a column has one value, or lists of any length"),
    "pooling": Said("pooling is for lists"),
    "embedding_dim": Said("belongs to what has no counterpart"),
    "embedding_name": Said("no other feature shares it"),
    "weighted": _lost("an id's weight is in a column of its own (weights)", False),
    "stub_type": Said("says that it is a feature"),
    "trainable": Said("rows train"),
    "sequence_name": Said("no feature is in the sequence"),
    "sequence_pk": Said(_SERVING),
    "asset_dir": Said("a vocabulary's path is whole"),
    "normalizer": Said("is computed into the data"),
    "activation": _lost(_LAYER, "nn.ReLU", "ReLU"),
    "use_bn": _lost(_LAYER, False),
    "use_ln": _lost(_LAYER, False),
    "bias": _lost(_LAYER, True),
    "dampening": _lost("the velocity is not dampened", 0.0),
}
"""By name, in whatever message."""
FIELDS: Mapping[str, Said] = {
    "EasyRecConfig.model_dir": Said("`drivetrain train RECIPE --run DIR` names the run directory"),
    "TrainConfig.fine_tune_ckpt_param_map": _lost("init.map renames: beginnings of names there and here", ""),
    "TrainConfig.log_step_count_steps": Said(_LEDGER),
    "TrainConfig.cudnn_allow_tf32": Said("is about convolutions"),
    "TrainConfig.cuda_matmul_allow_tf32": _lost(_TF32, False),
    "TrainConfig.global_embedding_constraints": Said(_HOLD),
    "TrainConfig.save_checkpoints_timestamp_interval": _lost(_EVENTS, 0),
    "TrainConfig.save_checkpoints_timestamps": _lost(_EVENTS),
    "TrainConfig.save_checkpoints_timestamp_quorum": Said("is about events' times"),
    "TrainConfig.delta_embedding_dump_config": _lost(_DELTA),
    **dict.fromkeys(
        (
            *("FusedAdadeltaOptimizer.rho", "FusedAdadeltaOptimizer.eps", "FusedAdadeltaOptimizer.weight_decay"),
            *("FusedRMSpropOptimizer.alpha", "FusedRMSpropOptimizer.eps", "FusedRMSpropOptimizer.weight_decay"),
        ),
        _lost("belongs to an optimizer of rows that there is not"),
    ),
    "EvalConfig.log_step_count_steps": Said(_LEDGER),
    "ExportConfig.mixed_precision": _lost("an export has the weights as they are", ""),
    "ExportConfig.cudnn_allow_tf32": Said(_SERVING),
    "ExportConfig.cuda_matmul_allow_tf32": Said(_SERVING),
    "ExportConfig.use_dense_ema": Said("average.evaluate says what is scored and exported"),
    "DataConfig.fg_encoded_multival_sep": _lost("a feature's own separator says how its lists are written", "\x03"),
    "DataConfig.num_workers": Said(f"{_READING}; data.train.workers adds processes"),
    "DataConfig.pin_memory": Said("memory is pinned where the device wants it"),
    "DataConfig.delimiter": Said("is about CSV files"),
    "DataConfig.with_header": Said("is about CSV files"),
    "DataConfig.drop_remainder": _lost(
        "batches run on over the end of an epoch: none is short, nothing is dropped", False
    ),
    "DataConfig.fg_threads": Said("features are computed as arrays, a block at a time"),
    "DataConfig.is_orderby_partition": Said(_ODPS),
    "DataConfig.odps_data_quota_name": Said(_ODPS),
    "DataConfig.odps_data_compression": Said(_ODPS),
    "DataConfig.sample_mask_prob": _lost(_MASK, 0.0),
    "DataConfig.negative_sample_mask_prob": _lost(_MASK, 0.0),
    "DataConfig.force_base_data_group": Said("batches are as they come"),
    "DataConfig.in_order": Said("samples come by position, whoever reads them"),
    "DataConfig.label_fields": Said("each label says which column it is"),
    "DataConfig.input_fields": Said("features say how each column is read"),
    "DataConfig.input_fields_str": Said("features say how each column is read"),
    "DataConfig.negative_sampler": _lost(
        "negatives are drawn from the training data's items for each sample: model.negatives {kind: uniform or "
        "popularity, count: 8}; there a batch shares them"
    ),
    "DataConfig.negative_sampler_v2": _lost("as negative_sampler: model.negatives; none is what the user chose"),
    "DataConfig.hard_negative_sampler": _lost("negatives are drawn (model.negatives), not given as hard ones"),
    "DataConfig.hard_negative_sampler_v2": _lost("negatives are drawn (model.negatives), not given as hard ones"),
    "DataConfig.tdm_sampler": _lost("there is no tree of items"),
    "ModelConfig.variational_dropout": _lost(_DROPOUT),
    "ModelConfig.kernel": Said(_KERNEL),
    "ModelConfig.num_class": _lost("a label's `classes` says it", 1),
    "ModelConfig.losses": _lost("each label has a loss of its own"),
    "ModelConfig.metrics": _lost("each label has metrics of its own"),
    "ModelConfig.train_metrics": _lost("each label has metrics of its own"),
    "DynamicEmbedding.initializer_args": _lost(_ROWS),
    "DynamicEmbedding.eval_initializer_args": _lost("a value without a row has the shared one, in evaluation, too"),
    "DynamicEmbedding.init_table": _lost("`init: {from: RUN}` begins with another run's rows, and with its values"),
    "DynamicEmbedding.cache_load_factor": Said(_HASHED),
    "DynamicEmbedding.init_capacity_per_rank": Said(_HASHED),
    "DynamicEmbedding.bucket_capacity": Said(_HASHED),
    "DynamicEmbFrequencyAdmissionStrategy.initializer_args": _lost("a value without a row has the shared one"),
    "DynamicEmbFrequencyAdmissionStrategy.counter_bucket_capacity": Said(_HASHED),
    "BayesTaskTower.mlp": _lost("belongs to a model that is not shipped"),
    "BayesTaskTower.relation_tower_names": _lost("belongs to a model that is not shipped"),
    "BayesTaskTower.relation_mlp": _lost("belongs to a model that is not shipped"),
    "InterventionTaskTower.mlp": _lost("belongs to a model that is not shipped"),
    "InterventionTaskTower.intervention_tower_names": _lost("belongs to a model that is not shipped"),
    "InterventionTaskTower.low_rank_dim": _lost("belongs to a model that is not shipped"),
    "InterventionTaskTower.dropout_ratio": _lost("belongs to a model that is not shipped"),
    "FeatureGroupConfig.sequence_encoders": _lost("names no encoder"),
    "LossConfig.recon_loss": _lost("belongs to models that quantize"),
    "LossConfig.commitment_loss": _lost("belongs to models that quantize"),
    "LossConfig.contrastive_loss": _lost("belongs to models that quantize"),
}
"""By message and name."""


def said_of(message: str, field: str) -> Said | None:
    """What is said of a field; None where nobody thought of it."""
    return FIELDS.get(f"{message}.{field}") or ANY.get(field)
