"""Kubernetes' own programs, built from Debian's source: `python -m kubernetes_lab.build FOLDER`.

The source package of 1.20.2 (Debian 12) is the last one that has the whole of Kubernetes with all that it depends on;
later ones have kubectl alone. It is built by the distribution's own Go in GOPATH mode, once the API's definitions have
been generated, which upstream does not ship: a quarter of an hour on two cores, once. From the packages of Debian's
`sid`, in a root of their own, comes the server of 1.36 for definitions of other projects' kinds.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

PROGRAMS = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet")
EXTENSIONS = "apiextensions-apiserver"
_VERSION, _EXTENSIONS_VERSION = "1.20.2", "1.36"
_GO = Path("/usr/lib/go-1.19")
_REFLECT = Path("github.com/modern-go/reflect2")  # what is vendored goes wrong with any Go from 1.18 on
_PACKAGED = Path("/usr/share/gocode")  # Debian's own libraries for Go
_SOURCES = Path("/etc/apt/sources.list.d/debian.sources")
_MARK = "+k8s:openapi-gen=true"
_LEFT_OUT = re.compile(r"/testdata|_examples|/example|sample|code-generator|wardle")
_INSTALL = """
printf '#!/bin/sh\\nexit 101\\n' > /usr/sbin/policy-rc.d && chmod +x /usr/sbin/policy-rc.d
apt-get -o Acquire::Check-Valid-Until=false update -qq  # a mirror may be behind
apt-get install -y -qq --no-install-recommends golang-go golang-k8s-apiextensions-apiserver-dev ca-certificates
"""


def main(folder: Path) -> None:
    """Build what is not there yet."""
    if absent := [str(place) for place in (_GO, _PACKAGED / "src" / _REFLECT) if not place.exists()]:
        sys.exit(f"{', '.join(absent)} not here: apt-get install golang-1.19-go golang-github-modern-go-reflect2-dev")
    folder.mkdir(parents=True, exist_ok=True)
    work = folder / "build"
    if not all((folder / name).exists() for name in PROGRAMS):
        _kubernetes(_source(work), work, folder)
    if not (folder / EXTENSIONS).exists():
        _extensions(work / "sid", folder)


def _source(work: Path) -> Path:
    """The unpacked source, from the mirror that this machine's apt uses."""
    (work / "apt" / "lists" / "partial").mkdir(parents=True, exist_ok=True)
    (work / "apt" / "parts").mkdir(exist_ok=True)
    asked = re.sub(r"^Types:.*", "Types: deb-src", _SOURCES.read_text(), flags=re.MULTILINE)
    (work / "apt" / "parts" / "source.sources").write_text(asked)
    places = {"sourcelist": "/dev/null", "sourceparts": work / "apt" / "parts"}
    options = [f"-oDir::Etc::{name}={place}" for name, place in places.items()]
    apt = ["apt-get", "-qq", *options, f"-oDir::State::lists={work}/apt/lists"]
    _run([*apt, "update"], work)
    _run([*apt, "source", "--download-only", "kubernetes"], work)
    (archive,) = work.glob(f"kubernetes_*{_VERSION}.orig.tar.gz")
    _run(["tar", "xf", archive], work)
    source = work / f"kubernetes-{_VERSION}"
    shutil.rmtree(source / "vendor" / _REFLECT)
    shutil.copytree(_PACKAGED / "src" / _REFLECT, source / "vendor" / _REFLECT)
    return source


def _kubernetes(source: Path, work: Path, folder: Path) -> None:
    root = work / "go" / "src" / "k8s.io" / "kubernetes"
    root.parent.mkdir(parents=True, exist_ok=True)
    if not root.exists():
        root.symlink_to(source)
    own = {"GO111MODULE": "off", "GOPATH": str(work / "go"), "GOCACHE": str(work / "cache"), "CGO_ENABLED": "0"}
    path = f"{_GO}/bin:{os.environ['PATH']}"
    environment = {**os.environ, **own, "GOROOT": str(_GO), "PATH": path, "PWD": str(root)}  # not where the link leads
    generator = work / "openapi-gen"
    _run(["go", "build", "-o", generator, "./vendor/k8s.io/kube-openapi/cmd/openapi-gen"], root, environment)
    output = ["-O", "zz_generated.openapi", "-p", "k8s.io/kubernetes/pkg/generated/openapi"]
    header = ["-h", "hack/boilerplate/boilerplate.generatego.txt", "--output-base", work / "go" / "src"]
    reported = ["--logtostderr", "--report-filename", work / "violations"]
    _run([generator, "-i", ",".join(_described(source)), *output, *header, *reported], root, environment)
    commands = [f"./cmd/{name}" for name in PROGRAMS]
    _run(
        ["go", "build", "-ldflags", _flags(_VERSION, "k8s.io/kubernetes/vendor/"), "-o", f"{folder}/", *commands],
        root,
        environment,
    )


def _described(source: Path) -> list[str]:
    """The Go packages whose types the API describes."""
    found = {"k8s.io/kubernetes/vendor/k8s.io/apimachinery/pkg/version"}
    for top, package in (("staging/src", "vendor"), ("pkg", "pkg"), ("cmd", "cmd")):
        for file in (source / top).rglob("*.go"):
            place = f"k8s.io/kubernetes/{package}/{file.parent.relative_to(source / top)}"
            if not _LEFT_OUT.search(place) and _MARK in file.read_text():
                found.add(place)
    return sorted(found)


def _extensions(root: Path, folder: Path) -> None:
    if not (root / "usr" / "bin" / "apt-get").exists():
        (mirror,) = re.findall(r"^URIs: (.*)", _SOURCES.read_text(), flags=re.MULTILINE)[:1]
        _run(["debootstrap", "--variant=minbase", "sid", root, mirror], folder)
    flags = _flags(f"{_EXTENSIONS_VERSION}.0", "")
    own = "GO111MODULE=off GOPATH=/usr/share/gocode GOCACHE=/cache CGO_ENABLED=0 HOME=/root"
    build = f"cd / && env {own} go build -ldflags '{flags}' -o /{EXTENSIONS} k8s.io/{EXTENSIONS}"
    _run(["chroot", root, "bash", "-ec", _INSTALL + build], folder)
    (root / EXTENSIONS).rename(folder / EXTENSIONS)


def _flags(version: str, vendored: str) -> str:
    package = f"{vendored}k8s.io/component-base/version"
    major, minor, _ = version.split(".")
    told = {"gitVersion": f"v{version}", "gitMajor": major, "gitMinor": minor}
    return " ".join(["-s -w", *(f"-X {package}.{name}={value}" for name, value in told.items())])


def _run(command: list[object], place: Path, environment: dict[str, str] | None = None) -> None:
    subprocess.run([str(word) for word in command], cwd=place, env=environment, check=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]).absolute())
