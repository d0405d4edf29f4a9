"""DeepSpeed's keys, and what becomes of each. Read in DeepSpeed 0.19.8 (runtime/config.py and what it imports), with
the keys that it has removed and that older files still have."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from drivetrain.spec.importing.rules import (
    Elsewhere,
    Lost,
    LostWhole,
    Nested,
    Rule,
    Spare,
    Switched,
    To,
    shown,
    whole,
)

_MESSAGES = "how messages are cut and overlapped: torch's FSDP gathers and reduces block by block"
_PIECES = "commits are whole and verified, and any mesh loads any other's"
_OFFLOAD = "nothing is moved to host memory or NVMe; share the state out over more processes (parallel.shard)"
_NVME = "is about NVMe; offload itself is listed where it is asked for"
_QUANTIZED = "weights and gradients travel as they are"
_RECOMPUTE = "say `activations: recompute` (or selective): there it is the model's code that calls it, here the recipe"
_LAYOUT = "which layers are split how is the task's to say (`Task.parallel_plan`), or the shipped model's"
_LEARNING_RATE = "the HF Trainer's --learning_rate"
_TELEMETRY = "the ledger has the time by phase and the memory every 100 steps (telemetry.every)"
_REMOVED = "and DeepSpeed 0.19 has removed it"


def clip(value: Any) -> Any:
    """Gradient norms above this are cut; 0 means that none is."""
    return None if value == 0 else value


def steps(value: Any) -> int:
    """A warm-up's steps: DeepSpeed takes two at least."""
    return max(2, whole(value, 0))


def power_of_two(value: Any) -> float:
    """A factor on the loss. Ours are powers of two, so that scaling rounds nothing."""
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not number or value <= 0 or math.frexp(value)[0] != 0.5:
        raise ValueError(f"is {shown(value)}; here it is a power of two above 0")
    return float(value)


def two_to(value: Any) -> float:
    """The first factor on the loss, from its exponent."""
    exponent = whole(value, 0)
    if exponent > 126:  # 2**127 is the last power of two that a float32 holds
        raise ValueError(f"is {shown(value)}: 2 to that power is beyond float32")
    return 2.0**exponent


SYSTEM = "DeepSpeed 0.19"
"""Whose keys these are, for messages."""

ZERO: Mapping[str, Rule] = {
    "stage": Elsewhere(),
    "zero_hpz_partition_size": Elsewhere(),
    "mics_shard_size": Elsewhere(),
    **dict.fromkeys(
        (
            *("contiguous_gradients", "reduce_scatter", "reduce_bucket_size", "use_multi_rank_bucket_allreduce"),
            *("allgather_partitions", "allgather_bucket_size", "overlap_comm", "sub_group_size"),
            *("round_robin_gradients", "parameter_alignment", "memory_efficient_linear", "override_module_apply"),
            *("prefetch_bucket_size", "stage3_prefetch_bucket_size"),
            *("param_persistence_threshold", "stage3_param_persistence_threshold"),
            *("model_persistence_threshold", "stage3_model_persistence_threshold"),
            *("max_live_parameters", "stage3_max_live_parameters"),
            *("max_reuse_distance", "stage3_max_reuse_distance"),
            *("module_granularity_threshold", "stage3_module_granularity_threshold"),
            *("use_all_reduce_for_fetch_params", "stage3_use_all_reduce_for_fetch_params"),
            *("allgather_sequential", "stage3_allgather_sequential"),
            *("legacy_stage1", "mics_hierarchical_params_gather"),
        ),
        Spare(_MESSAGES),
    ),
    **dict.fromkeys(("load_from_fp32_weights", "elastic_checkpoint", "pipeline_loading_checkpoint"), Spare(_PIECES)),
    **dict.fromkeys(
        (
            *("gather_16bit_weights_on_model_save", "stage3_gather_16bit_weights_on_model_save"),
            "stage3_gather_fp16_weights_on_model_save",
        ),
        Spare("`drivetrain export` writes whole tensors, whatever the mesh"),
    ),
    **dict.fromkeys(("log_trace_cache_warnings", "enable_sanity_checks"), Spare("looks at DeepSpeed's own workings")),
    "compute_grad_norm": Spare("the norm of every step is in the ledger"),
    "ignore_unused_parameters": Lost("parameters without a gradient are no error here", off=(True, None)),
    "offload_param": LostWhole(_OFFLOAD, "device", ("none", None, "auto")),
    "offload_optimizer": LostWhole(_OFFLOAD, "device", ("none", None, "auto")),
    "cpu_offload": Lost(_OFFLOAD),
    "cpu_offload_param": Lost(_OFFLOAD),
    "cpu_offload_use_pin_memory": Spare("is about offload, which is listed where it is asked for"),
    "zenflow": LostWhole(_OFFLOAD, off=()),
    "zero_quantized_weights": Lost(_QUANTIZED),
    "zero_quantized_nontrainable_weights": Lost(_QUANTIZED),
    "zero_quantized_gradients": Lost(_QUANTIZED),
    "zeropp_loco_param": LostWhole(f"{_QUANTIZED}, {_REMOVED}", off=()),
    "save_muon_momentum_buffer_in_memory": Spare(_NVME),
    "leaf_module": LostWhole(_LAYOUT, off=()),
}
"""Of `zero_optimization`."""

FP16: Mapping[str, Rule] = {
    "enabled": Elsewhere(),
    "loss_scale": Elsewhere(),
    "initial_scale_power": Elsewhere(),
    "loss_scale_window": Elsewhere(),
    "min_loss_scale": Elsewhere(),
    "hysteresis": Elsewhere(),
    "consecutive_hysteresis": Elsewhere(),
    "auto_cast": Spare("inputs are cast by autocast"),
    "fp16_master_weights_and_grads": Lost("weights and gradients stay fp32; forward and backward are cast"),
}

SCALE: Mapping[str, Rule] = {
    "initial_scale_power": To("scaling.start", 16, two_to),
    "loss_scale_window": To("scaling.window", 1000),
    "min_loss_scale": To("scaling.least", 1, power_of_two),
    "hysteresis": Lost("the factor is halved at the first overflow", off=(1, None), default=2),
    "consecutive_hysteresis": Lost("the factor is halved at every overflow"),
}
"""Of `fp16`, where the factor on the loss moves."""

BF16: Mapping[str, Rule] = {
    "enabled": Elsewhere(),
    "immediate_grad_update": Spare("gradients are summed in fp32 where they lie"),
    "check_grad_overflow": To(
        "guard.nonfinite",
        convert=lambda value: "skip" if value else "stop",
        note="a step that is not finite is never made: it is left out (skip), or ends the run (stop)",
    ),
    "bf16_master_weights_and_grads": Lost(
        "`parameters: {dtype: bf16, master: none, rounding: stochastic}` keeps weights alone; gradients stay fp32"
    ),
    "bf16_optimizer_states": Lost("the optimizer's state is fp32; `torchao_adamw8bit` and others keep it in few bits"),
}

_MONITOR = "what was logged is in the ledger; watch.tensorboard, wandb, mlflow and trackio replay it"

TOP: Mapping[str, Rule] = {
    "train_batch_size": Elsewhere(),
    "train_micro_batch_size_per_gpu": Elsewhere(),
    "gradient_accumulation_steps": Elsewhere(),
    "managed_gradient_accumulation": Lost("batch.size says where a step ends, not the script", off=(True, None)),
    "optimizer": Elsewhere(),
    "scheduler": Elsewhere(),
    "gradient_clipping": Elsewhere(),
    "fp16": Switched(FP16, filled=True),
    "bf16": Switched(BF16, filled=True),
    "bfloat16": Switched(BF16, filled=True),
    "torch_autocast": Switched(
        {
            "enabled": Elsewhere(),
            "dtype": Elsewhere(),
            "lower_precision_safe_modules": Lost("autocast chooses by the operation, not by the module", off=(None,)),
        }
    ),
    "amp": LostWhole(f"Apex is not used, {_REMOVED}; `precision: fp16` or `bf16` does that"),
    "zero_optimization": Elsewhere(),
    "zero_allow_untested_optimizer": Spare("which optimizers suit which mesh is known, and checked"),
    "zero_force_ds_cpu_optimizer": Spare("is about offload, which is listed where it is asked for"),
    "allgather_size": Spare(_MESSAGES),
    "disable_allgather": Spare(_MESSAGES),
    "fp32_allreduce": Spare("gradients are summed in fp32"),
    "communication_data_type": Lost("gradients are summed in fp32", off=("fp32", None)),
    "seq_parallel_communication_data_type": Lost("there is no sequence parallelism of this kind", off=("fp32", None)),
    "prescale_gradients": Spare("each loss is divided by what it is averaged over before the backward pass"),
    "gradient_predivide_factor": Spare("each loss is divided by what it is averaged over before the backward pass"),
    "gradient_allreduce_op": Lost("a loss is the mean over the step's samples", off=("mean", None)),
    "sparse_gradients": Lost(f"gradients of embeddings are dense, {_REMOVED}"),
    "data_types": Nested(
        {
            "grad_accum_dtype": Lost("gradients are summed in fp32", off=("fp32", "float32", None, "auto")),
            "param_dtype": Lost("parameters.dtype says it (fp32 or bf16)", off=("fp32", "float32", None)),
            "buffer_dtype": Lost("buffers stay as the network has them", off=(None,)),
            "keep_in_fp32_modules": Lost("weights stay fp32, and autocast chooses by the operation", off=("auto", [])),
        }
    ),
    "tensor_parallel": Nested(
        {
            "autotp_size": Elsewhere(),
            "tp_overlap_comm": Spare(_MESSAGES),
            "dtype": Spare("precision says it"),
            "tp": LostWhole(_LAYOUT, off=()),
            "tensor_parallel": LostWhole(_LAYOUT, off=()),
            "partition_config": Lost(_LAYOUT, off=(None,)),
            "preset_model": Lost(_LAYOUT, off=(None,)),
            "injection_policy_tuple": Lost(_LAYOUT, off=(None,)),
            "vocab_parallel_lm_head": Lost(_LAYOUT, off=(None,)),
            "vocab_parallel_ce_backend": Spare("the loss never gathers logits"),
            "keep_module_on_host": Spare("weights are drawn, or read, where they are kept"),
            "replace_with_kernel_inject": Lost("no kernels are put in place of modules"),
            "kernel_inject": Lost("no kernels are put in place of modules"),
        }
    ),
    "sequence_parallel_size": Lost("say how many as parallel.context, which gathers keys and values", off=(1, None)),
    "expert_parallel": LostWhole("there are no experts"),
    "use_data_before_expert_parallelism": Lost("there are no experts"),
    "pipeline": LostWhole("stages are laid out by parallel.pipeline, which counts processes", off=()),
    "activation_checkpointing": LostWhole(_RECOMPUTE, off=()),
    "checkpoint": Nested(
        {
            **dict.fromkeys(
                ("tag_validation", "load_universal", "parallel_write", "checkpoint_serialization", "writer"),
                Spare(_PIECES),
            ),
            "use_node_local_storage": Lost("commits lie in the run directory, which all nodes see"),
        }
    ),
    "nebula": LostWhole(f"commits are written beside training as it is, {_REMOVED}"),
    "datastates_ckpt": Spare("commits are written beside training as it is"),
    "tensorboard": Switched(
        {
            "enabled": To("watch.tensorboard"),
            "output_path": Lost("event files lie in the run directory", off=(None, "")),
            "job_name": Spare("the run directory has the name"),
        }
    ),
    "wandb": Switched(
        {
            "project": To("watch.wandb.project", "deepspeed"),
            "team": To("watch.wandb.entity"),
            "group": Lost("runs are not grouped there", off=(None,)),
        }
    ),
    "csv_monitor": LostWhole(f"no CSV is written: {_MONITOR}"),
    "comet": LostWhole(_MONITOR),
    "steps_per_print": Spare("every step is in the ledger, and the console shows the newest"),
    "wall_clock_breakdown": Spare(_TELEMETRY),
    "memory_breakdown": Spare(_TELEMETRY),
    "timers": Spare(_TELEMETRY),
    "dump_state": Spare("`drivetrain recipe show` prints the whole recipe"),
    "log_level": Spare("decides no number"),
    "comms_logger": LostWhole("`profile: {start: 10}` has torch's profiler watch messages, among all else"),
    "flops_profiler": LostWhole("FLOPs and MFU of the whole model are in the report; not those of each module"),
    "autotuning": LostWhole("nothing is tuned by trying"),
    "elasticity": LostWhole(
        f"batch.size is one number; any number of processes that divides the lanes goes on with it, {_REMOVED}"
    ),
    "dataloader_drop_last": Spare("batches run on over the end of an epoch: none is incomplete, nothing is dropped"),
    "disable_python_gc": Lost("`telemetry: {gc: {steps: 100}}` collects garbage at the same steps on all ranks"),
    "vocabulary_size": Spare("DeepSpeed only warns of odd ones"),
    "curriculum_learning": LostWhole(f"`data.train.stages` changes the sources' weights, {_REMOVED}"),
    "data_efficiency": LostWhole("samples come by position; `data.train.stages` changes the sources' weights"),
    "progressive_layer_drop": LostWhole(f"no layers are dropped, {_REMOVED}"),
    "compression_training": LostWhole(f"nothing is pruned or quantized in training, {_REMOVED}", off=()),
    "quantize_training": LostWhole(f"nothing is quantized in training, {_REMOVED}"),
    "eigenvalue": LostWhole(f"nothing is quantized in training, {_REMOVED}"),
    "sparse_attention": LostWhole(f"attention is the task's to say, {_REMOVED}", off=()),
    "graph_harvesting": Lost(f"`compile: true` has torch.compile make one graph of the step, {_REMOVED}"),
    "compile": LostWhole("`compile: true` compiles the networks with torch.compile", "deepcompile"),
    "hybrid_engine": LostWhole("there is no training by generation (RLHF)"),
    "weight_quantization": LostWhole("nothing is quantized in training", off=()),
    "aio": Spare(_NVME),
}
"""Of the whole file."""

_KERNEL = Spare("chooses a kernel; torch's fused one is used where there is one")
_DECAY = "not of norms, biases and other 1-D parameters, unless `groups` gives it to them"
_BETAS = "the HF Trainer's --adam_beta1 and --adam_beta2"


@dataclass(frozen=True)
class OptimizerKind:
    """A kind of ours for a type of DeepSpeed's, rules for its parameters, and what is set beside them."""

    kind: str
    params: Mapping[str, Rule]
    beside: Mapping[str, Any] = field(default_factory=dict)


_MOVING: Mapping[str, Rule] = {
    "weight_decay": To("optimizer.weight_decay", 0.0, note=_DECAY, auto="the HF Trainer's --weight_decay"),
    "max_grad_norm": Elsewhere(),
    **dict.fromkeys(("foreach", "fused", "capturable", "differentiable", "set_grad_none"), _KERNEL),
    "maximize": Lost("losses are made small"),
}
_ADAM: Mapping[str, Rule] = {
    "lr": Elsewhere(),
    "betas": To("optimizer.betas", [0.9, 0.999], auto=_BETAS),
    "eps": To("optimizer.eps", 1e-8, auto="the HF Trainer's --adam_epsilon"),
    **_MOVING,
    "amsgrad": To("optimizer.amsgrad", False),
    "bias_correction": Lost("moments are always corrected", off=(True, None)),
    "adam_w_mode": Elsewhere(),
    "torch_adam": _KERNEL,
    "fp32_optimizer_states": Lost("the optimizer's state is fp32", off=(True, None)),
}

OPTIMIZERS: Mapping[str, OptimizerKind] = {
    "adam": OptimizerKind("adamw", _ADAM),
    "adamw": OptimizerKind("adamw", _ADAM),
    "adagrad": OptimizerKind(
        "adagrad",
        {
            "lr": Elsewhere(),
            "eps": To("optimizer.eps", 1e-10),
            "lr_decay": To("optimizer.lr_decay", 0.0),
            "initial_accumulator_value": To("optimizer.initial", 0.0),
            **_MOVING,
        },
    ),
    "muon": OptimizerKind(
        "muon",
        {
            "lr": Elsewhere(),
            "muon_lr": Elsewhere(),
            "adam_lr": Elsewhere(),
            "momentum": To("optimizer.momentum", 0.95),
            "betas": To("optimizer.betas", [0.9, 0.95], auto=_BETAS),
            "eps": To("optimizer.eps", 1e-10),
            "ns_method": Lost("Newton and Schulz go the standard way", off=("standard",), default="gram"),
            **_MOVING,
            "adam_w_mode": Lost("weight decay is decoupled", off=(True, None)),
            "torch_adam": _KERNEL,
        },
        beside={"adjust": "original"},
    ),
    "SGD": OptimizerKind(
        "sgd",
        {
            "lr": Elsewhere(),
            "momentum": To("optimizer.momentum", 0.0),
            "nesterov": To("optimizer.nesterov", False),
            "dampening": Lost("the velocity is not dampened", off=(0, None)),
            **_MOVING,
        },
    ),
    "RMSprop": OptimizerKind(
        "rmsprop",
        {
            "lr": Elsewhere(),
            "alpha": To("optimizer.alpha", 0.99),
            "eps": To("optimizer.eps", 1e-8),
            "momentum": To("optimizer.momentum", 0.0),
            "centered": To("optimizer.centered", False),
            **_MOVING,
        },
    ),
}
"""By type, as DeepSpeed reads it: its own in any case of letters (here small ones), torch's by their names."""

RATES = {"adagrad": 1e-2, "muon": 0.02, "RMSprop": 1e-2}
"""Learning rates of types that are left out; 1e-3 of the others."""

NOWHERE: Mapping[str, str] = {
    "lamb": "LAMB",
    "lion": "Lion",
    "onebitadam": "1-bit Adam",
    "zerooneadam": "0/1 Adam",
    "onebitlamb": "1-bit LAMB",
    "muadam": "Adam of muP",
    "muadamw": "AdamW of muP",
    "musgd": "SGD of muP",
}
"""DeepSpeed's types that have no kind of ours, in words."""


@dataclass(frozen=True)
class ScheduleKind:
    """A kind of ours for a type of DeepSpeed's, and rules for its parameters.

    `peak` is the parameter that is the peak learning rate, in place of the optimizer's.
    """

    kind: str
    params: Mapping[str, Rule]
    peak: str | None = None


_WARMUP: Mapping[str, Rule] = {
    "warmup_num_steps": To(
        "schedule.warmup.steps", 1000, steps, note="from zero", auto="the HF Trainer's --warmup_steps or --warmup_ratio"
    ),
    "warmup_type": Lost("a warm-up is a straight line", off=("linear",), default="log"),
}
_RISE: Mapping[str, Rule] = {
    **_WARMUP,
    "warmup_min_lr": Lost("a warm-up begins at zero", off=(0, "auto", None)),
    "warmup_max_lr": Elsewhere(),
}
_LAST = Spare("a resumed run knows its position")
_MOMENTUM = "momentum stays as it is"
_STAIRS = Lost("rates change in every step", off=(0, -1, None))

SCHEDULES: Mapping[str, ScheduleKind] = {
    "WarmupLR": ScheduleKind("constant", {**_RISE, "last_batch_iteration": _LAST}, "warmup_max_lr"),
    "WarmupDecayLR": ScheduleKind(
        "linear", {**_RISE, "total_num_steps": Elsewhere(), "last_batch_iteration": _LAST}, "warmup_max_lr"
    ),
    "WarmupCosineLR": ScheduleKind(
        "cosine",
        {
            **_WARMUP,
            "warmup_min_ratio": Lost("a warm-up begins at zero", off=(0, "auto", None)),
            "cos_min_ratio": To("schedule.floor", 0.0001),
            "total_num_steps": Elsewhere(),
            "last_batch_iteration": _LAST,
        },
    ),
    "OneCycle": ScheduleKind(
        "linear",
        {
            "cycle_min_lr": Elsewhere(),
            "cycle_max_lr": Elsewhere(),
            "cycle_first_step_size": Elsewhere(),
            "cycle_second_step_size": Elsewhere(),
            "decay_lr_rate": Lost("after the cycle the rate stays at its floor", off=(0, None)),
            "decay_step_size": Lost("after the cycle the rate stays at its floor", off=(0, None)),
            "cycle_first_stair_count": _STAIRS,
            "cycle_second_stair_count": _STAIRS,
            "cycle_momentum": Lost(_MOMENTUM, default=True),
            "cycle_min_mom": Spare("cycle_momentum says whether it counts"),
            "cycle_max_mom": Spare("cycle_momentum says whether it counts"),
            "decay_mom_rate": Lost(_MOMENTUM, off=(0, None)),
            "last_batch_iteration": _LAST,
        },
        "cycle_max_lr",
    ),
}
"""By type. Rates of several parameter groups, which are lists, have no counterpart."""

DTYPES: Mapping[str, str] = {
    **dict.fromkeys(("bf16", "bfloat16", "torch.bfloat16"), "bf16"),
    **dict.fromkeys(("fp16", "float16", "half", "torch.float16"), "fp16"),
    **dict.fromkeys(("fp32", "float32", "float", "torch.float32"), "fp32"),
}
"""What types are called there, and here."""
