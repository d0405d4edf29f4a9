"""The fields that other projects' kinds have in their `spec`, as their definitions name them, without the pods' own.

Facts of JobSet 0.12 (v1alpha2), Kubeflow Trainer 2.3 (v1alpha1), its training operator 1.9 (kubeflow.org/v1) and the
SDK of SageMaker HyperPod 3.12 (sagemaker.amazonaws.com/v1). A dict has these fields, `{EVERY: x}` any, a list items of
one kind; a tuple is what a text may be.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

EVERY = "*"
ANY = object()
"""What is of Kubernetes itself, such as pods: it is checked by its own schemas."""
_NAMES: Mapping[type, str] = {str: "string", int: "integer", bool: "boolean"}

SPECS: Mapping[str, Mapping[str, Any]] = {
    "JobSet": {
        "replicatedJobs": [
            {
                "name": str,
                "groupName": str,
                "replicas": int,
                "template": ANY,
                "dependsOn": [{"name": str, "status": str}],
            }
        ],
        "network": {"enableDNSHostnames": bool, "subdomain": str, "publishNotReadyAddresses": bool},
        "successPolicy": {"operator": ("All", "Any"), "targetReplicatedJobs": [str]},
        "failurePolicy": {
            "maxRestarts": int,
            "restartStrategy": ("Recreate", "BlockingRecreate"),
            "rules": [
                {
                    "name": str,
                    "action": ("FailJobSet", "RestartJobSet", "RestartJobSetAndIgnoreMaxRestarts"),
                    "onJobFailureReasons": [
                        (
                            *("BackoffLimitExceeded", "DeadlineExceeded", "PodFailurePolicy"),
                            *("FailedIndexes", "MaxFailedIndexesExceeded"),
                        )
                    ],
                    "targetReplicatedJobs": [str],
                }
            ],
        },
        "startupPolicy": {"startupPolicyOrder": ("AnyOrder", "InOrder")},
        "suspend": bool,
        "coordinator": {"replicatedJob": str, "jobIndex": int, "podIndex": int},
        "managedBy": str,
        "ttlSecondsAfterFinished": int,
    },
    "TrainJob": {
        "runtimeRef": {"name": str, "apiGroup": str, "kind": str},
        "initializer": ANY,
        "trainer": {
            "image": str,
            "command": [str],
            "args": [str],
            "env": [ANY],
            "numNodes": int,
            "numProcPerNode": ANY,
            "resourcesPerNode": ANY,
        },
        "labels": {EVERY: str},
        "annotations": {EVERY: str},
        "podTemplateOverrides": [ANY],
        "suspend": bool,
        "managedBy": str,
    },
    "PyTorchJob": {
        "elasticPolicy": {
            "minReplicas": int,
            "maxReplicas": int,
            "maxRestarts": int,
            "metrics": [ANY],
            "nProcPerNode": int,
            "rdzvBackend": ("c10d", "etcd", "etcd-v2"),
            "rdzvConf": [{"key": str, "value": str}],
            "rdzvHost": str,
            "rdzvId": str,
            "rdzvPort": int,
            "standalone": bool,
        },
        "nprocPerNode": str,
        "pytorchReplicaSpecs": {
            EVERY: {"replicas": int, "restartPolicy": ("Always", "OnFailure", "Never", "ExitCode"), "template": ANY}
        },
        "runPolicy": {
            "activeDeadlineSeconds": int,
            "backoffLimit": int,
            "cleanPodPolicy": ("All", "Running", "None"),
            "managedBy": str,
            "schedulingPolicy": ANY,
            "suspend": bool,
            "ttlSecondsAfterFinished": int,
        },
    },
    "HyperPodPyTorchJob": {
        "nprocPerNode": str,
        "replicaSpecs": [{"name": str, "replicas": int, "maxReplicas": int, "spares": int, "template": ANY}],
        "elasticPolicy": ANY,
        "runPolicy": {
            "activeDeadlineSeconds": int,
            "cleanPodPolicy": str,
            "faultDeadlineSeconds": int,
            "jobMaxRetryCount": int,
            "logMonitoringConfiguration": [ANY],
            "restartPolicy": ANY,
            "startupDeadlineSeconds": int,
            "suspend": bool,
            "ttlSecondsAfterFinished": int,
            "workloadMode": str,
        },
    },
}


def unfitting(given: Any, wanted: Any, place: str = "spec") -> Iterator[str]:
    """The places where something is given that the definition has not."""
    if wanted is ANY:
        return
    if isinstance(wanted, dict) and isinstance(given, Mapping):
        for name, value in given.items():
            if (below := wanted.get(name, wanted.get(EVERY))) is None:
                yield f"{place}.{name}"
            else:
                yield from unfitting(value, below, f"{place}.{name}")
    elif isinstance(wanted, list) and isinstance(given, list):
        for number, value in enumerate(given):
            yield from unfitting(value, wanted[0], f"{place}[{number}]")
    elif not (given in wanted if isinstance(wanted, tuple) else type(given) is wanted):
        yield place


def definition(version: str, kind: str, plural: str) -> dict[str, Any]:
    """A CustomResourceDefinition for a server."""
    group, _, number = version.partition("/")
    schema = {"type": "object", "properties": {"spec": _schema(SPECS[kind]), "status": _schema(ANY)}}
    one = {"name": number, "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{group}"},
        "spec": {
            "group": group,
            "scope": "Namespaced",
            "names": {"plural": plural, "kind": kind},
            "versions": [{**one, "subresources": {"status": {}}}],
        },
    }


def _schema(wanted: Any) -> dict[str, Any]:
    if wanted is ANY:
        return {"x-kubernetes-preserve-unknown-fields": True}
    if isinstance(wanted, tuple):
        return {"type": "string", "enum": list(wanted)}
    if isinstance(wanted, list):
        return {"type": "array", "items": _schema(wanted[0])}
    if not isinstance(wanted, dict):
        return {"type": _NAMES[wanted]}
    if EVERY in wanted:
        return {"type": "object", "additionalProperties": _schema(wanted[EVERY])}
    return {"type": "object", "properties": {name: _schema(below) for name, below in wanted.items()}}
