"""Megatron-LM's arguments, and what becomes of each. Read in Megatron-LM at d98e8a64 (2026-08-22)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from drivetrain.spec.importing.findings import Gap
from drivetrain.spec.importing.megatron.arguments import is_open
from drivetrain.spec.importing.rules import ABSENT, Elsewhere, Key, Keys, Lost, Rule, Spare, To, path_of, shown, whole

SYSTEM = "Megatron-LM"
"""Whose arguments these are, for messages."""


class Arguments(Keys):
    """The arguments of one file. What the shell or its caller fills in is left to the recipe's user."""

    def is_auto(self, key: Key) -> bool:
        """Whether the shell, or whoever calls the script, fills it in."""
        # A shell's $VARIABLE stands where DeepSpeed has "auto": somebody else's value, which is not guessed.
        return is_open(self.value(key))

    def given(self, key: Key) -> bool:
        """Whether the file itself says the value."""
        return self.value(key) is not ABSENT and not self.is_auto(key)


def number(value: Any) -> float:
    """Any number. Raises ValueError for all else."""
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        raise ValueError(f"is a number, not {shown(value)}")
    return value


def several(value: Any) -> list[Any]:
    """The words after an argument, of which there may be one."""
    return value if isinstance(value, list) else [value]


@dataclass(frozen=True)
class Needed:
    """The value belongs at a path of the recipe, and the other system has no default: `what` belongs there."""

    to: str
    what: str
    stand_in: Any
    convert: Callable[[Any], Any] = whole

    def apply(self, keys: Keys, key: Key) -> None:
        """Take it, or leave it open."""
        if keys.given(key):
            To(self.to, convert=self.convert).apply(keys, key)
        elif keys.is_auto(key):
            keys.leave(key, self.to, self.what, self.stand_in)
        else:
            keys.findings.gaps.append(Gap(path_of(self.to), f"{key[0]}: {self.what}", self.stand_in))


@dataclass(frozen=True)
class Asked:
    """How it is here, and there only where the argument is given."""

    otherwise: str

    def apply(self, keys: Keys, key: Key) -> None:
        """Nothing is needed where it is given."""
        if keys.value(key) is ABSENT:
            keys.lose(key, f"is left out: {self.otherwise}")
        else:
            keys.spare(key, "is how it is here")


def _each(names: str, rule: Rule) -> dict[str, Rule]:
    return {f"--{name}": rule for name in names.split()}


_KERNEL = "chooses a kernel: torch's are used, and `compile` fuses"
_MESSAGES = "how messages are cut, timed and overlapped: torch's engines do that"
_RECORD = "the ledger has it: time by phase, memory and norms, every step or every telemetry.every"
_COMMITS = "commits are whole and verified, are written beside training, and any mesh loads any other's"
_TOKENS = "tokens are prepared before the run: `drivetrain data prepare`, or Megatron's own .bin and .idx"
_SERVES = "is about generating, not about training"
_MODEL = "the shipped decoder has no such part: write the model as a task of your own"
_EXPERTS = "how experts' tokens travel: the shipped decoder has all experts of a layer where the layer is"

MODEL: Mapping[str, Rule] = {
    **_each(
        "num-layers hidden-size num-attention-heads seq-length ffn-hidden-size group-query-attention"
        " num-query-groups kv-channels max-position-embeddings vocab-size padded-vocab-size"
        " make-vocab-size-divisible-by untie-embeddings-and-output-weights position-embedding-type"
        " use-rotary-position-embeddings num-experts moe-router-topk moe-ffn-hidden-size"
        " moe-shared-expert-intermediate-size moe-aux-loss-coeff moe-router-load-balancing-type"
        " moe-router-enable-expert-bias moe-router-bias-update-rate moe-expert-capacity-factor moe-layer-freq"
        " moe-router-score-function",
        Elsewhere(),
    ),
    "--normalization": Lost("norms are RMSNorm", off=("RMSNorm",), default="LayerNorm"),
    "--norm-epsilon": To("task.model.norm_eps", 1e-5, number),
    "--swiglu": Asked("there MLPs have GeLU and one matrix up; here they are SwiGLU, with two"),
    "--disable-bias-linear": Asked("there layers have biases; here they have none"),
    "--rotary-base": To("task.model.rope_base", 10000, number),
    "--rotary-percent": Lost("all features of a head turn", off=(1, 1.0)),
    "--hidden-dropout": To("task.model.dropout", 0.1, number, "on the residual branches"),
    "--attention-dropout": Lost("attention's weights are never dropped", off=(0, 0.0), default=0.1),
    "--init-method-std": Lost("weights begin with 0.02, those into the residual with less by depth", off=(0.02,)),
    "--mtp-num-layers": Lost(_MODEL, off=(0, None)),
    **_each(
        "rotary-interleaved use-rope-scaling rope-scaling-factor rotary-scaling-factor apply-layernorm-1p"
        " qk-layernorm qk-l2-norm kv-lora-rank q-lora-rank qk-head-dim qk-pos-emb-head-dim v-head-dim mscale"
        " mscale-all-dim add-qkv-bias squared-relu quick-geglu multi-latent-attention window-size softmax-type"
        " num-moe-experts moe-router-num-groups moe-router-group-topk moe-router-topk-scaling-factor"
        " moe-z-loss-coeff moe-shared-expert-gate moe-latent-size hybrid-layer-pattern hybrid-override-pattern"
        " is-hybrid-model spec init-method-xavier-uniform no-position-embedding attention-output-gate"
        " experimental-attention-variant apply-query-key-layer-scaling enable-gpt-oss use-mup"
        " mup-base-hidden-size bert-no-binary-head moe-router-pre-softmax",
        Lost(_MODEL),
    ),
    "--model-provider": Lost(_MODEL, off=("gpt",)),
}

TRAINING: Mapping[str, Rule] = {
    **_each(
        "micro-batch-size global-batch-size step-batch-size-schedule train-iters train-samples lr min-lr"
        " lr-decay-style lr-decay-iters lr-decay-samples lr-warmup-fraction lr-warmup-iters lr-warmup-samples"
        " lr-warmup-init lr-wsd-decay-style lr-wsd-decay-iters lr-wsd-decay-samples optimizer adam-beta1"
        " adam-beta2 adam-eps sgd-momentum muon-momentum bf16 fp16 loss-scale initial-loss-scale"
        " min-loss-scale loss-scale-window hysteresis recompute-activations recompute-granularity clip-grad"
        " weight-decay",
        Elsewhere(),
    ),
    "--seed": To("seed", 1234, lambda value: whole(value, 0)),
    "--rampup-batch-size": Lost("it does nothing there any more; `batch.ramp` does"),
    "--decoupled-lr": Lost("`optimizer.groups` gives embeddings and head a rate of their own, by pattern"),
    "--decoupled-min-lr": Lost("`optimizer.groups` gives embeddings and head a rate of their own, by pattern"),
    **_each("start-weight-decay end-weight-decay", Lost("`optimizer.weight_decay_schedule` has both ends as factors")),
    "--weight-decay-incr-style": Lost("`optimizer.weight_decay_schedule` has both ends as factors", off=("constant",)),
    "--calculate-per-token-loss": Spare("each loss is divided by the tokens of the whole step"),
    "--iterations-to-skip": To("guard.skip", convert=several),
    "--check-for-spiky-loss": Lost("`guard: {spike: {}}` looks for losses and norms that stand out"),
    "--check-weight-hash-across-dp-replicas-interval": To("guard.replicas.steps", convert=whole),
    "--no-check-for-nan-in-loss-and-grad": Lost("a step that is not finite is never made: guard.nonfinite"),
    "--rerun-mode": Lost(
        "`guard.recompute` has each process compute a share of its neighbour's again",
        off=("disabled", "validate_results"),
    ),
    **_each("error-injection-rate error-injection-type", Lost("faults are not injected by a recipe")),
    "--deterministic-mode": Spare("equal runs have equal bits; with `exact: true` on any number of processes"),
    "--recompute-method": Spare("activations says which modules, by pattern"),
    "--recompute-num-layers": Lost("`activations` takes patterns of modules instead of a number"),
    "--recompute-modules": Lost("`activations` takes patterns of modules"),
    "--accumulate-allreduce-grads-in-fp32": Spare("gradients are summed in fp32"),
    "--grad-reduce-in-bf16": Lost("gradients are summed in fp32"),
    "--use-precision-aware-optimizer": Lost("the optimizer's state is fp32; `torchao_adamw8bit` keeps it in few bits"),
    **_each("main-params-dtype main-grads-dtype exp-avg-dtype exp-avg-sq-dtype", Lost("is fp32", off=("fp32",))),
    "--optimizer-cpu-offload": Lost("nothing is moved to host memory; share the state out (parallel.shard)"),
    "--apply-wd-to-qk-layernorm": Lost("norms have no weight decay, unless `optimizer.groups` gives it to them"),
}

LAYOUT: Mapping[str, Rule] = {
    **_each(
        "tensor-model-parallel-size pipeline-model-parallel-size context-parallel-size sequence-parallel"
        " num-layers-per-virtual-pipeline-stage num-virtual-stages-per-pipeline-rank use-distributed-optimizer"
        " use-torch-fsdp2 use-megatron-fsdp data-parallel-sharding-strategy nproc_per_node nproc-per-node"
        " nnodes",
        Elsewhere(),
    ),
    "--expert-model-parallel-size": Lost("experts are shared out along parallel.shard", off=(1,)),
    "--expert-tensor-parallel-size": Lost("experts are not split", off=(1,)),
    "--num-distributed-optimizer-instances": Lost(
        "`parallel: {replicate, shard}` makes groups that share out", off=(1,)
    ),
    "--pipeline-model-parallel-layout": Lost("stages have as many layers as each other"),
    **_each(
        "decoder-first-pipeline-num-layers decoder-last-pipeline-num-layers"
        " account-for-embedding-in-pipeline-split account-for-loss-in-pipeline-split",
        Lost("stages have as many layers as each other"),
    ),
    "--cp-comm-type": Spare(_MESSAGES),
    "--hierarchical-context-parallel-sizes": Spare(_MESSAGES),
    "--decrease-batch-size-if-needed": Lost("batch.size stays as it is on any number of processes that divides lanes"),
    **_each(
        "overlap-grad-reduce overlap-param-gather ddp-bucket-size ddp-num-buckets ddp-average-in-collective"
        " ddp-pad-buckets-for-high-nccl-busbw tp-comm-overlap tp-comm-overlap-cfg overlap-p2p-communication"
        " no-overlap-p2p-communication overlap-p2p-communication-warmup-flush use-nccl-ub fsdp-double-buffer"
        " overlap-param-gather-with-optimizer-step distributed-backend distributed-timeout-minutes"
        " distributed-timeout-seconds-after-init use-tp-pp-dp-mapping disable-gloo-process-groups"
        " nccl-communicator-config-path defer-embedding-wgrad-compute wgrad-deferral-limit delay-wgrad-compute"
        " high-priority-stream-groups microbatch-group-size-per-virtual-pipeline-stage"
        " outer-dp-sharding-strategy init-model-with-meta-device use-cpu-initialization"
        " megatron-fsdp-main-params-dtype megatron-fsdp-main-grads-dtype megatron-fsdp-grad-comm-dtype"
        " use-ring-exchange-p2p",
        Spare(_MESSAGES),
    ),
    **_each(
        "node_rank node-rank master_addr master-addr master_port master-port rdzv_backend rdzv_endpoint"
        " rdzv_id tee local-ranks-filter max_restarts log_dir redirects",
        Spare("`drivetrain submit` and `--processes` start the processes"),
    ),
}

DATA: Mapping[str, Rule] = {
    **_each("data-path train-data-path valid-data-path test-data-path split mock-data", Elsewhere()),
    **_each("data-args-path per-split-data-args-path", Lost("is another file: give its paths as data.train.sources")),
    "--eod-mask-loss": Lost("`task.documents.loss: within` leaves the step over a document's end out"),
    "--reset-attention-mask": Lost("`task.documents.attention: within` does both"),
    "--reset-position-ids": Lost("`task.documents.attention: within` does both"),
    "--dataloader-type": Lost("each sample comes once in an epoch, in an order by seed", off=("single", "cyclic")),
    "--num-workers": To("data.train.workers", 2, lambda value: whole(value, 0), "reading never changes samples"),
    **_each("sft finetune-hf-dataset fim-data fim-rate fim-spm-rate", Lost("`text` sources of a task of your own")),
    **_each(
        "tokenizer-type tokenizer-model vocab-file merge-file tiktoken-pattern vocab-extra-ids"
        " trust-remote-code no-use-tokenizer-model-from-checkpoint-args legacy-tokenizer",
        Spare(_TOKENS),
    ),
    **_each(
        "data-cache-path no-mmap-bin-files no-create-attention-mask-in-dataloader"
        " create-attention-mask-in-dataloader dataloader-fast-cache-load dataloader-defer-npy-index-mmap"
        " mid-level-dataset-surplus no-data-sharding data-sharding",
        Spare("samples are found by position, and no index of them is kept"),
    ),
}

OTHERS: Mapping[str, Rule] = {
    **_each(
        "eval-interval eval-iters save-interval profile profile-step-start profile-step-end profile-ranks", Elsewhere()
    ),
    "--save": Spare("commits lie in the run directory"),
    "--save-retain-interval": To("checkpoint.keep_every.steps", convert=whole),
    "--load": Spare("a run that is started again goes on by itself"),
    **_each(
        "pretrained-checkpoint finetune", Lost("`init: {from: PATH}` begins with weights of commits or safetensors")
    ),
    **_each(
        "no-load-optim no-load-rng no-save-optim no-save-rng use-checkpoint-args use-mp-args-from-checkpoint-args",
        Lost("`init` begins with weights alone; a resume takes all of the state"),
    ),
    "--exit-duration-in-mins": To("stop.deadline", convert=lambda value: 60 * number(value), note="minutes x 60"),
    "--exit-interval": Lost("`stop.at` lists the steps after which it commits and ends"),
    "--phase-transition-iterations": To("stop.at", convert=several),
    "--skip-train": Lost("`drivetrain evaluate RUN` scores a run without training"),
    "--tensorboard-dir": To(
        "watch.tensorboard",
        convert=lambda _: True,
        note="event files lie in the run directory",
    ),
    "--wandb-project": To("watch.wandb.project", convert=str),
    "--wandb-entity": To("watch.wandb.entity", convert=str),
    "--manual-gc-interval": To("telemetry.gc.steps", convert=whole),
    **_each(
        "manual-gc no-manual-gc-eval", Spare("telemetry.gc says when garbage is collected, on all processes alike")
    ),
    "--full-validation": Spare("evaluate.budget is left out: whole sets"),
    "--exit-signal-handler": Spare("SIGTERM commits and ends"),
    **_each(
        "override-opt-param-scheduler override-opt_param-scheduler use-checkpoint-opt-param-scheduler"
        " use-checkpoint-opt_param-scheduler",
        Spare("the recipe says the schedule; another one is another run"),
    ),
    "--cuda-graph-impl": Lost("steps are not captured", off=("none",)),
    **_each(
        "transformer-impl attention-backend attention-softmax-in-fp32 use-flash-attn"
        " no-gradient-accumulation-fusion no-rope-fusion no-bias-gelu-fusion no-bias-swiglu-fusion"
        " no-bias-dropout-fusion no-masked-softmax-fusion cross-entropy-loss-fusion cross-entropy-fusion-impl"
        " no-persist-layer-norm use-mcore-models te-rng-tracker empty-unused-memory-level"
        " use-flashinfer-fused-rope use-fused-weighted-squared-relu use-transformer-engine-op-fuser"
        " enable-experimental disable-bf16-reduced-precision-matmul reuse-grad-buf-for-mxfp8-param-ag"
        " no-check-for-large-grads cuda-graph-modules enable-cuda-graph cuda-graph-warmup-steps",
        Spare(_KERNEL),
    ),
    **_each(
        "log-interval timing-log-level timing-log-option logging-level tensorboard-log-interval"
        " wandb-exp-name wandb-save-dir no-record-throughput check-for-large-grads export-te-mcore-model",
        Spare(_RECORD),
    ),
    **_each(
        "async-save use-persistent-ckpt-worker async-strategy async-mode auto-detect-ckpt-format"
        " verify-integrity exit-on-missing-checkpoint ckpt-step no-ckpt-fully-parallel-save",
        Spare(_COMMITS),
    ),
    **_each(
        "temperature top_k top_p prompts prompt-file num-tokens-to-generate out-seq-length output-path"
        " max-tokens-to-oom enable-chunked-prefill flash-decode use-legacy-static-engine termination-id"
        " output-every-n-results",
        Spare(_SERVES),
    ),
    **_each(
        "moe-grouped-gemm moe-token-dispatcher-type moe-permute-fusion moe-router-dtype moe-router-fusion"
        " moe-shared-expert-overlap moe-layer-recompute moe-flex-dispatcher-backend moe-per-layer-logging"
        " overlap-moe-expert-parallel-comm moe-pad-expert-input-to-capacity moe-token-drop-policy",
        Spare(_EXPERTS),
    ),
}

# The first that fits counts, so a longer beginning stands before a shorter one.
PREFIXES: tuple[tuple[str, Rule], ...] = (
    ("--log-", Spare(_RECORD)),
    ("--timing-", Spare(_RECORD)),
    ("--straggler", Spare("the ledger names the slowest process of each telemetry record")),
    ("--disable-straggler", Spare("the ledger names the slowest process of each telemetry record")),
    ("--otel-", Spare(_RECORD)),
    ("--ckpt-", Spare(_COMMITS)),
    ("--dist-ckpt-", Spare(_COMMITS)),
    ("--async-", Spare(_COMMITS)),
    ("--non-persistent-", Spare(_COMMITS)),
    ("--inference-", Spare(_SERVES)),
    ("--incoming-requests-", Spare(_SERVES)),
    ("--return-", Spare(_SERVES)),
    ("--fp8-", Lost("there is no fp8: precision is fp32, bf16 or fp16")),
    ("--fp4-", Lost("there is no fp4: precision is fp32, bf16 or fp16")),
    ("--first-last-layers", Lost("there is no fp8: precision is fp32, bf16 or fp16")),
    ("--num-layers-at-", Lost("there is no fp8: precision is fp32, bf16 or fp16")),
    ("--rl-", Lost("there is no training by generation")),
    ("--grpo-", Lost("there is no training by generation")),
    ("--mamba-", Lost(_MODEL)),
    ("--linear-", Lost(_MODEL)),
    ("--vision-", Lost(_MODEL)),
    ("--encoder-", Lost(_MODEL)),
    ("--decoder-", Lost(_MODEL)),
    ("--yarn-", Lost(_MODEL)),
    ("--muon-", Lost("`optimizer: {kind: muon}` has momentum, iterations, adjust")),
    ("--inprocess-", Spare("a broken process is replaced by its supervisor (launch.restarts)")),
    ("--ft-", Spare("a hang is found by launch.hang_after")),
    ("--fault-injector-", Lost("faults are not injected by a recipe")),
    ("--flight-recorder-", Spare("a hang's record has every process's stack")),
    ("--cuda-graph-", Lost("steps are not captured")),
    ("--export-", Spare("is about other programs of theirs")),
    ("--modelopt-", Spare("is about other programs of theirs")),
    ("--adlr-", Spare("is about their own machines")),
    ("--moe-", Lost(_MODEL)),
)
"""Families of arguments without a rule of their own, by their first letters."""

RULES: Mapping[str, Rule] = {**MODEL, **TRAINING, **LAYOUT, **DATA, **OTHERS}
"""By argument."""


def apply_rules(keys: Keys, names: Iterable[str]) -> None:
    """Apply each rule, and say of the file's other arguments what their family is, or that nobody knows them."""
    # Rules of arguments that the file does not have are asked as well: a default of theirs may be another one here.
    for name, rule in RULES.items():
        rule.apply(keys, (name,))
    for name in names:
        if name not in RULES:
            _rule_of(name).apply(keys, (name,))


def _rule_of(name: str) -> Rule:
    for prefix, rule in PREFIXES:
        if name.startswith(prefix):
            return rule
    # Listed whatever its value: of what nobody knows nothing is known to be off.
    return Lost("nothing here is known to do that", off=())
