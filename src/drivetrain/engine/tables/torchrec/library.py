"""TorchRec and fbgemm as they are installed here. They are imported when they are used, and kept from talking."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version

from drivetrain.runtime.quiet import quiet_libraries
from drivetrain.spec.exits import Exit, Failure

SERIES = "1.8"
"""The versions that were tried."""
_KERNELS = ("fbgemm-gpu-cpu", "fbgemm-gpu")
_HINT = "pip install 'drivetrain[torchrec]', then pip install --no-deps torchrec==1.8.0"


def versions() -> Mapping[str, str]:
    """The versions of both. Raises Failure(78) where one is not there, or another one than was tried."""
    found = {"torchrec": _version("torchrec"), "fbgemm": next(filter(None, map(_version, _KERNELS)), "")}
    for name, there in found.items():
        if not there:
            raise Failure(Exit.BAD_RECIPE, f"embeddings.backend: torchrec needs {name}, which is not installed", _HINT)
        if not there.startswith(f"{SERIES}."):
            cause = f"embeddings.backend: torchrec was tried with {name} {SERIES}, and {there} is installed"
            raise Failure(Exit.BAD_RECIPE, cause, _HINT)
    return found


def require(*modules: str) -> None:
    """Import these of them. Raises Failure(78) as `versions` does, and where one cannot be loaded beside this torch."""
    versions()
    quiet_libraries()
    for module in modules:
        try:
            with quiet():
                import_module(module)
        except (ImportError, OSError) as error:  # their libraries are those of one version of torch
            first = (str(error).splitlines() or [type(error).__name__])[0]
            cause = f"embeddings.backend: torchrec: {module} cannot be loaded: {first}"
            raise Failure(Exit.BAD_RECIPE, cause, _HINT) from error


@contextmanager
def quiet() -> Iterator[None]:
    """While entered, neither warnings nor log lines below errors are told; handlers of the root logger stay. It is for
    a start: Python shows warnings that it has shown once again after it, and all threads are quiet within."""
    before, handlers = logging.root.manager.disable, list(logging.root.handlers)
    logging.disable(max(before, logging.WARNING))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
        logging.root.handlers[:] = handlers


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""
