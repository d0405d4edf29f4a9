"""Settings of a target on Kubernetes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

from drivetrain.launch.targets.recipe import Container, Text, Word
from drivetrain.spec.settings import Count, nothing


@dataclass(frozen=True, kw_only=True)
class KubernetesTarget(Container):
    """A Kubernetes cluster that kubectl reaches."""

    unused: ClassVar[tuple[str, ...]] = ("fruitless",)
    factory: ClassVar[str] = "drivetrain.launch.targets.kubernetes:Kubernetes"
    kind: Annotated[Literal["kubernetes"], nothing("jobs in pods")] = "kubernetes"
    api: Annotated[
        Literal["job", "jobset", "trainjob", "pytorchjob", "hyperpod"],
        nothing(
            "what runs the pods: Kubernetes itself, JobSet, Kubeflow's Trainer 2, its older operator, or HyperPod's"
        ),
    ] = "job"
    context: Annotated[Text | None, nothing("of your kubeconfig; null: the current one")] = None
    grace: Annotated[Count, nothing("seconds from SIGTERM to SIGKILL: a commit must fit")] = 120
    runtime: Annotated[Word, nothing("ClusterTrainingRuntime of a TrainJob")] = "torch-distributed"
    shared_memory: Annotated[Count, nothing("MiB of /dev/shm, through which data workers hand over batches")] = 1024
    node_selector: Annotated[Mapping[Text, Text], nothing("labels that machines must have")] = field(
        default_factory=dict
    )
    tolerations: Annotated[tuple[Word, ...], nothing("keys of taints that do not keep its pods away")] = ()
    annotations: Annotated[Mapping[Text, Text], nothing("of the job and its pods")] = field(default_factory=dict)
