"""Objects of one namespace of a Kubernetes cluster, by name: made, found, deleted; and the pods of a job."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlencode

from drivetrain.launch.targets.remote import Refused

Place = tuple[str, str]
"""Where objects of one kind are: the API's version and the plural of the kind."""


class KubernetesObjects:
    """The objects of a namespace. Every method asks the cluster, and raises what `Kubectl` raises."""

    def __init__(self, call: Any, namespace: str) -> None:
        """`call` is a `Kubectl`, or what answers as one."""
        self._call = call
        self._namespace = namespace

    def version(self) -> str:
        """The server's."""
        return self._call("GET", "/version")["gitVersion"]

    def require_kind(self, place: Place) -> None:
        """Raises Refused (78) where the cluster does not know this kind of object."""
        self._call("GET", self._path(place, limit="1"))

    def create(self, manifest: Mapping[str, Any]) -> dict[str, Any] | None:
        """The object as it was made; None where there is one of this name."""
        # Strict: by default a server drops fields that it does not know, and the job would run without them.
        path = self._path(place_of(manifest), fieldValidation="Strict")
        try:
            return self._call("POST", path, manifest)
        except Refused as refused:
            if refused.word != "AlreadyExists":
                raise
            return None

    def give(self, owner: Mapping[str, Any], place: Place, name: str) -> None:
        """Have an object go with its owner. What is put back has the version that it was read with."""
        path = self._path(place, name)
        found = self._call("GET", path)
        self._call("PUT", path, {**found, "metadata": {**found["metadata"], "ownerReferences": [owner]}})

    def get(self, place: Place, name: str) -> dict[str, Any]:
        """The object of this name; Refused (78) where there is none."""
        return self._call("GET", self._path(place, name))

    def find(self, place: Place, name: str) -> dict[str, Any] | None:
        """The object of this name; None where there is none."""
        try:
            return self.get(place, name)
        except Refused as refused:
            if refused.word != "NotFound":
                raise
            return None

    def delete(self, place: Place, name: str) -> None:
        """Delete an object, with its pods, which the object waits for; one that is not there is no error."""
        try:
            self._call("DELETE", self._path(place, name, propagationPolicy="Foreground"))
        except Refused as refused:
            if refused.word != "NotFound":
                raise

    def labelled(self, place: Place, labels: Mapping[str, str]) -> list[dict[str, Any]]:
        """The objects that have these labels."""
        wanted = ",".join(f"{name}={value}" for name, value in labels.items())
        return self._call("GET", self._path(place, labelSelector=wanted))["items"]

    def printed(self, pod: str, follow: bool) -> Iterator[str]:
        """Lines of what a pod has printed, with `follow` until it ends; none where it is gone."""
        more = {"follow": "true"} if follow else {}
        path = self._path(("v1", "pods"), f"{pod}/log", **more)
        try:
            yield from self._call.lines(path)
        except Refused as refused:
            if refused.word not in ("NotFound", "BadRequest"):  # gone meanwhile, or its container is not there yet
                raise

    def _path(self, place: Place, name: str = "", **query: str) -> str:
        version, plural = place
        # The core group has no name of its own, and another root.
        root = f"/apis/{version}" if "/" in version else f"/api/{version}"
        path = f"{root}/namespaces/{self._namespace}/{plural}"
        if name:
            path += f"/{name}"
        if query:
            path += f"?{urlencode(query)}"
        return path


def place_of(manifest: Mapping[str, Any]) -> Place:
    """Where an object of this manifest lies."""
    return manifest["apiVersion"], f"{manifest['kind'].lower()}s"
