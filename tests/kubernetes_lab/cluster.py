"""The cluster's own programs: etcd, the control plane of Kubernetes, and on each node containerd and a kubelet."""

from __future__ import annotations

import io
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from pathlib import Path

import drivetrain
from kubernetes_lab import jobs
from kubernetes_lab.api import Api, true_conditions
from kubernetes_lab.build import EXTENSIONS, PROGRAMS
from kubernetes_lab.daemons import Daemons, bridge, free_ports, processes_with, until
from kubernetes_lab.names import DOMAIN, name_server

NODES = ("n0", "n1")
IMAGE = "docker.io/lab/this-machine:1"
"""An image with nothing in it: what a pod runs is the machine's own, by mounts of `HOST`."""
SOURCE = Path(drivetrain.__file__).parent.parent
HOST = tuple(dict.fromkeys(str(place) for place in ("/usr", sys.base_prefix, sys.prefix, SOURCE)))
INSTALLED = ("etcd", "containerd", "runc", "ctr", "ip", "nsenter", "unshare", "kubectl", "busybox", "openssl")
_PAUSE = "docker.io/lab/pause:1"
_BRIDGE, _ADDRESS, _NETWORK = "drivetrain0", "10.244.0.1", "10.244.0.0/24"
_WITHOUT = (  # they ask for kinds that this server has not
    *("NamespaceLifecycle", "MutatingAdmissionPolicy", "MutatingAdmissionWebhook"),
    *("ValidatingAdmissionPolicy", "ValidatingAdmissionWebhook"),
)
# A kubelet removes the logs of pods that are not its own: each node has a /var/log/pods that the other does not see.
_OWN_LOGS = 'mkdir -p "$1" /var/log/pods; mount --bind "$1" /var/log/pods; shift; exec "$@"'
_FOREVER = str(2**31 - 1)


def missing(programs: Path) -> str | None:
    """Why there can be no cluster here; None where there can."""
    absent = [name for name in PROGRAMS if not (programs / name).exists()]
    absent += [name for name in INSTALLED if shutil.which(name) is None]
    if absent:
        return f"{', '.join(absent)} not here: `make drill-kubernetes` builds them, or says what to install"
    return None if os.geteuid() == 0 else "the lab's daemons want root"


@dataclass(frozen=True)
class Cluster:
    """A cluster. `config` is its kubeconfig, with Indexed Jobs, `api` is its own server, `store` its etcd."""

    config: Path
    api: Api
    store: str

    def define(self, definition: dict) -> None:
        """Have a kind of somebody else's."""
        path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
        own = f"{path}/{self.api('POST', path, definition)['metadata']['name']}"
        until(lambda: "Established" in true_conditions(self.api("GET", own)), f"{own} is not served")

    def kubectl(self, *arguments: str) -> str:
        """What kubectl says."""
        command = ["kubectl", f"--kubeconfig={self.config}", *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=180).stdout

    def worker(self, job: str, node: int) -> int:
        """The process that a pod of the job began with, as this machine numbers it."""
        return processes_with(f"\0HOSTNAME={job}-{node}\0".encode(), "environ")[0]

    def pods(self, job: str) -> list[dict]:
        """The pods of a job, oldest first."""
        found = json.loads(self.kubectl("get", "pods", "-o", "json", "-l", f"drivetrain-job={job}"))["items"]
        return sorted(found, key=lambda pod: pod["metadata"]["creationTimestamp"])


@contextmanager
def cluster(programs: Path, folder: Path) -> Iterator[Cluster]:
    """A cluster with all it has in a new folder; everything that was started is ended."""
    folder.mkdir(mode=0o700)
    server, front, store, peers, *others = free_ports(6 + 2 * len(NODES))
    api = Api(server, secrets.token_hex(16))
    config = _kubeconfig(folder / "config", f"https://127.0.0.1:{front}", api.token)
    made = Cluster(config, api, f"http://127.0.0.1:{store}")
    with ExitStack() as undo:
        undo.callback(_sweep, folder)
        undo.enter_context(bridge(_BRIDGE, f"{_ADDRESS}/24"))
        daemons = Daemons(folder)
        undo.callback(daemons.end)
        _server(daemons, programs, folder, made, f"http://127.0.0.1:{peers}")
        made.define(jobs.DEFINITION)
        _control(daemons, programs, folder, api, others[:2])
        undo.enter_context(name_server(api, _ADDRESS))
        for number, name in enumerate(NODES):
            _node(daemons, programs, folder, name, number, others[2 + 2 * number :][:2])
        until(lambda: _ready_nodes(api) == len(NODES), f"the nodes are not ready: see {folder}/*.log")
        undo.enter_context(jobs.controller(api))
        undo.enter_context(jobs.front(api, front, folder / "certificate", folder / "key"))
        undo.callback(_empty, made)
        yield made


@contextmanager
def extensions(programs: Path, made: Cluster) -> Iterator[Cluster]:
    """A newer server beside a cluster, for kinds that others define; the cluster says who may ask."""
    folder = made.config.parent / "extensions"
    folder.mkdir()
    (port,) = free_ports(1)
    api = Api(port, made.api.token)
    own = made.config.parent / "own"
    daemons = Daemons(folder)
    daemons.start(
        *("server", programs / EXTENSIONS, f"--etcd-servers={made.store}", "--etcd-prefix=/extensions"),
        *("--bind-address=127.0.0.1", f"--secure-port={port}", f"--cert-dir={folder}", f"--kubeconfig={own}"),
        *(f"--authentication-kubeconfig={own}", "--authentication-skip-lookup=true"),
        *(f"--authorization-kubeconfig={own}", "--enable-priority-and-fairness=false"),
        f"--disable-admission-plugins={','.join(_WITHOUT)}",
    )
    try:
        until(api.ready, f"no server: see {folder}/server.log")
        yield Cluster(_kubeconfig(folder / "config", f"https://127.0.0.1:{port}", api.token), api, made.store)
    finally:
        daemons.end()


def _server(daemons: Daemons, programs: Path, folder: Path, made: Cluster, peers: str) -> None:
    """What keeps the objects, and answers for them."""
    daemons.start(
        *("etcd", "etcd", f"--data-dir={folder}/etcd", "--unsafe-no-fsync", f"--listen-client-urls={made.store}"),
        *(f"--advertise-client-urls={made.store}", f"--listen-peer-urls={peers}"),
        *(f"--initial-advertise-peer-urls={peers}", f"--initial-cluster=default={peers}"),
    )
    pair = ["-keyout", folder / "key", "-out", folder / "certificate", "-days", "2", "-subj", "/CN=lab"]
    subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", *pair], check=True, capture_output=True)
    (folder / "tokens").write_text(f"{made.api.token},admin,admin,system:masters\n")
    daemons.start(
        *("apiserver", programs / "kube-apiserver", f"--etcd-servers={made.store}", "--bind-address=127.0.0.1"),
        *(f"--secure-port={made.api.port}", "--insecure-port=0", f"--cert-dir={folder}/certificates"),
        *(f"--token-auth-file={folder}/tokens", "--authorization-mode=RBAC", "--service-account-issuer=https://lab"),
        *(f"--service-account-key-file={folder}/key", f"--service-account-signing-key-file={folder}/key"),
        *("--service-cluster-ip-range=10.96.0.0/16", "--kubelet-preferred-address-types=InternalIP"),
        *(f"--kubelet-client-certificate={folder}/certificate", f"--kubelet-client-key={folder}/key"),
    )
    until(made.api.ready, f"no API server: see {folder}/apiserver.log")


def _control(daemons: Daemons, programs: Path, folder: Path, api: Api, ports: list[int]) -> None:
    """What acts on the objects."""
    config = _kubeconfig(folder / "own", f"https://127.0.0.1:{api.port}", api.token)
    common = [f"--kubeconfig={config}", "--leader-elect=false", "--port=0"]
    daemons.start(
        *("manager", programs / "kube-controller-manager", *common, f"--secure-port={ports[0]}"),
        *(f"--service-account-private-key-file={folder}/key", "--use-service-account-credentials=true"),
        "--controllers=*,-nodeipam,-cloud-node-lifecycle,-route,-service,-job,-cronjob",
    )
    daemons.start("scheduler", programs / "kube-scheduler", *common, f"--secure-port={ports[1]}")
    accounts = "/api/v1/namespaces/default/serviceaccounts"
    until(lambda: api("GET", accounts)["items"], f"no account for pods: see {folder}/manager.log")


def _node(daemons: Daemons, programs: Path, lab: Path, name: str, number: int, ports: list[int]) -> None:
    folder = lab / name
    (folder / "cni").mkdir(parents=True)
    socket = folder / "containerd.sock"
    (folder / "containerd.toml").write_text(_containerd(folder, socket))
    (folder / "cni" / "lab.conflist").write_text(json.dumps(_network(folder, number)))
    logs = ["unshare", "--mount", "sh", "-ec", _OWN_LOGS, "sh", folder / "pods"]
    containerd = daemons.start(f"{name}-containerd", *logs, "containerd", "-c", folder / "containerd.toml")
    until(socket.exists, f"no containerd: see {lab}/{name}-containerd.log")
    for image, layer, command in (_pause_image(), _host_image()):
        (folder / "image.tar").write_bytes(_image(image, layer, command))
        until(partial(_imported, socket, folder / "image.tar"), f"{image} cannot be imported")
    (folder / "resolv.conf").touch()
    settings = {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": _ADDRESS,
        "port": ports[0],
        "healthzPort": ports[1],
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": False},
            "x509": {"clientCAFile": str(lab / "certificate")},
        },
        "authorization": {"mode": "AlwaysAllow"},
        "cgroupsPerQOS": False,  # two kubelets of one machine would clean up each other's
        "enforceNodeAllocatable": [],
        "makeIPTablesUtilChains": False,
        "failSwapOn": False,
        "imageGCHighThresholdPercent": 100,
        "evictionHard": {"memory.available": "1%", "nodefs.available": "1%", "imagefs.available": "1%"},
        "clusterDNS": [_ADDRESS],
        "clusterDomain": DOMAIN,
        "resolvConf": str(folder / "resolv.conf"),
    }
    (folder / "kubelet.json").write_text(json.dumps(settings))
    daemons.start(
        *(f"{name}-kubelet", "nsenter", f"--target={containerd}", "--mount", programs / "kubelet"),
        *(f"--config={folder}/kubelet.json", f"--kubeconfig={lab}/own"),
        *("--container-runtime=remote", f"--container-runtime-endpoint=unix://{socket}", f"--hostname-override={name}"),
        *(f"--root-dir={folder}/kubelet", f"--cert-dir={folder}/certificates", f"--node-ip={_ADDRESS}"),
    )


def _imported(socket: Path, archive: Path) -> bool:
    command = ["ctr", "-a", socket, "-n", "k8s.io", "images", "import", archive]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def _containerd(folder: Path, socket: Path) -> str:
    cri = 'plugins."io.containerd.grpc.v1.cri"'
    return f"""
version = 2
root = "{folder}/root"
state = "{folder}/state"
[grpc]
address = "{socket}"
[{cri}]
sandbox_image = "{_PAUSE}"
restrict_oom_score_adj = true
[{cri}.cni]
bin_dir = "/usr/lib/cni"
conf_dir = "{folder}/cni"
[{cri}.containerd]
default_runtime_name = "runc"
[{cri}.containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
"""


def _network(folder: Path, number: int) -> dict:
    first = 10 + 100 * number
    span = {"subnet": _NETWORK, "rangeStart": f"10.244.0.{first}", "rangeEnd": f"10.244.0.{first + 90}"}
    spans = {"type": "host-local", "dataDir": str(folder / "addresses"), "ranges": [[{**span, "gateway": _ADDRESS}]]}
    plugins = [{"type": "bridge", "bridge": _BRIDGE, "isGateway": True, "ipam": spans}, {"type": "loopback"}]
    return {"cniVersion": "0.4.0", "name": "lab", "plugins": plugins}


def _pause_image() -> tuple[str, bytes, list[str]]:
    """What holds a pod's network: it has to stay."""
    with io.BytesIO() as text:
        with tarfile.open(fileobj=text, mode="w") as layer:
            layer.add(shutil.which("busybox") or "", "bin/busybox")
        return _PAUSE, text.getvalue(), ["/bin/busybox", "sleep", _FOREVER]


def _host_image() -> tuple[str, bytes, list[str]]:
    with io.BytesIO() as text:
        with tarfile.open(fileobj=text, mode="w") as layer:
            for name in ("bin", "sbin", "lib", "lib64"):
                link = tarfile.TarInfo(name)
                link.type, link.linkname = tarfile.SYMTYPE, f"usr/{name}"
                layer.addfile(link)
            for name in ("usr", "tmp", "root", "etc"):
                place = tarfile.TarInfo(name)
                place.type, place.mode = tarfile.DIRTYPE, 0o1777 if name == "tmp" else 0o755
                layer.addfile(place)
            _add(layer, "etc/passwd", b"root:x:0:0:root:/root:/bin/sh\n")
        return IMAGE, text.getvalue(), ["/bin/sh"]


def _image(name: str, layer: bytes, command: list[str]) -> bytes:
    """An archive as `docker save` makes them."""
    variables = ["PATH=/usr/sbin:/usr/bin", f"PYTHONPATH={SOURCE}"]
    config = {
        "architecture": "amd64",
        "os": "linux",
        "config": {"Cmd": command, "Env": variables},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{sha256(layer).hexdigest()}"]},
    }
    manifest = [{"Config": "config.json", "RepoTags": [name], "Layers": ["layer.tar"]}]
    with io.BytesIO() as text:
        with tarfile.open(fileobj=text, mode="w") as archive:
            _add(archive, "layer.tar", layer)
            _add(archive, "config.json", json.dumps(config).encode())
            _add(archive, "manifest.json", json.dumps(manifest).encode())
        return text.getvalue()


def _add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(content)
    archive.addfile(member, io.BytesIO(content))


def _kubeconfig(file: Path, server: str, token: str) -> Path:
    place = {"server": server, "insecure-skip-tls-verify": True}
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "lab", "cluster": place}],
        "users": [{"name": "admin", "user": {"token": token}}],
        "contexts": [{"name": "lab", "context": {"cluster": "lab", "user": "admin"}}],
        "current-context": "lab",
    }
    file.write_text(json.dumps(config))
    return file


def _ready_nodes(api: Api) -> int:
    return sum("Ready" in true_conditions(node) for node in api("GET", "/api/v1/nodes")["items"])


def _empty(made: Cluster) -> None:
    """Leave no pod behind: what it runs in is the kubelet's to take down."""
    made.kubectl("delete", "jobs.batch,pods", "--all", "--grace-period=1", "--wait=false")
    until(lambda: not made.api("GET", "/api/v1/pods")["items"], "pods stay")


def _sweep(folder: Path) -> None:
    """Shims of containerd outlive it. Mounts go with the last process of their node."""
    for pid in processes_with(str(folder).encode(), "cmdline"):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    shutil.rmtree(folder, ignore_errors=True)
