"""The Python that forks are made from."""

from __future__ import annotations

import atexit
import fcntl
import gc
import importlib
import json
import os
import pkgutil
import resource
import runpy
import selectors
import signal
import socket
import subprocess
import sys
import threading
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

LARGEST = 1 << 20
_LOADED = ("torch", "torch._dynamo")
_MOST_FILES = 64
_STOPPING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_AT_IMPORT = (
    *("PYTHON", "LANG", "LC_", "LD_", "OMP_", "MKL_", "KMP_", "GOMP_", "OPENBLAS_", "TORCH", "PYTORCH", "CUDA"),
    *("TERM", "FORCE_COLOR", "NO_COLOR", "PY_COLORS", "GITHUB_ACTIONS", "TYPER"),
)
"""How variables begin that are read when Python starts or when what is loaded here is imported."""
_LATER = ("PYTHONPATH", "TORCHINDUCTOR_CACHE_DIR")
"""Those among them that are not: a fork is given its own path; and torch sets the folder itself where it compiles, so
that a test which does would keep all that come after it from being forks."""


@dataclass(frozen=True)
class Request:
    """A Python that somebody starts: its command line without the program, and all that a process is given.

    `files` are the numbers that the descriptors have there, `session` 0 is a new one.
    """

    command: list[str]
    folder: str
    environment: dict[str, str]
    files: list[int]
    session: int
    group: int
    limits: dict[int, tuple[int, int]]
    umask: int
    blocked: list[int]
    ignored: list[int]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def own(self) -> list[str]:
        """The folders in which this Python looks for modules before its own."""
        first = [] if self.environment.get("PYTHONSAFEPATH") else [self._first]
        return [*first, *filter(None, self.environment.get("PYTHONPATH", "").split(os.pathsep))]

    @property
    def _first(self) -> str:
        if self.command[0] == "-c":
            return ""
        return self.folder if self.command[0] == "-m" else str(Path(self.folder, self.command[0]).parent)


class Server:
    """What a Python has that has loaded what forks share."""

    def __init__(self) -> None:
        path = os.environ.pop("PYTHONPATH").split(os.pathsep)
        self._path = [folder for folder in sys.path[1:] if folder not in path]
        self._environment = _at_import(os.environ)
        for module in (*_LOADED, *_shipped()):
            importlib.import_module(module)
        from drivetrain.spec.load import load, shipped_names

        for recipe in shipped_names():
            load(recipe)  # what checks a kind of settings is kept for the next
        gc.collect()
        gc.freeze()  # what is collected in a fork is its own: pages stay shared

    def alike(self, asked: Request) -> bool:
        """Whether a fork is what the interpreter would be."""
        return (
            is_run(asked.command)
            and asked.session in (0, os.getsid(0))
            and _at_import(asked.environment) == self._environment
            and os.path.isdir(asked.folder)
            and not any(map(_shadows, (os.path.join(asked.folder, folder) for folder in asked.own)))
        )

    def serve(self, listener: socket.socket) -> None:
        """Fork at each request and tell each end, until the standard input ends."""
        with selectors.DefaultSelector() as selector:
            selector.register(listener, selectors.EVENT_READ)
            selector.register(sys.stdin, selectors.EVENT_READ)
            while True:
                for key, _ in selector.select():
                    if key.fileobj is sys.stdin:
                        return
                    if key.fileobj is listener:
                        caller = listener.accept()[0]
                        if pid := self._answer(caller):
                            selector.register(os.pidfd_open(pid), selectors.EVENT_READ, (pid, caller))
                    else:
                        selector.unregister(key.fd)
                        os.close(key.fd)
                        _tell_end(*key.data)

    def _answer(self, caller: socket.socket) -> int:
        """Fork, where that is the same; the process or 0 is told to who asks."""
        message, files, _, _ = socket.recv_fds(caller, LARGEST, _MOST_FILES)
        pid = 0
        if message:
            asked = Request(**json.loads(message))
            pid = self._fork(asked, list(files)) if self.alike(asked) else 0
        for file in files:
            os.close(file)
        _tell(caller, pid)
        return pid

    def _fork(self, asked: Request, files: list[int]) -> int:
        pid = os.fork()
        if pid:
            return pid
        try:
            _become(asked, files)
            sys.path[:] = [*asked.own, *self._path]
            os._exit(_ended(asked))
        finally:
            os._exit(70)


def _shipped() -> list[str]:
    import drivetrain

    return [found.name for found in pkgutil.walk_packages(drivetrain.__path__, "drivetrain.") if "__" not in found.name]


def _tell_end(pid: int, caller: socket.socket) -> None:
    with caller:
        _tell(caller, os.waitpid(pid, 0)[1])


def _tell(caller: socket.socket, number: int) -> None:
    with suppress(OSError):  # it has ended
        caller.send(str(number).encode())


def _at_import(environment: Any) -> dict[str, str]:
    return {k: v for k, v in environment.items() if k.startswith(_AT_IMPORT) and k not in _LATER}


def _shadows(folder: str) -> bool:
    """Whether something that is loaded here would be imported from this folder instead."""
    with suppress(OSError):
        return any(_is_another(Path(folder, name)) for name in os.listdir(folder))
    return False


def _is_another(path: Path) -> bool:
    name = path.name.partition(".")[0]
    module = sys.modules.get(name)
    found = path / "__init__.py" if path.is_dir() else path
    file = getattr(module, "__file__", None)
    importable = found.is_file() and found.suffix in (".py", ".so", ".pyc")
    if name in ("sitecustomize", "usercustomize"):
        return importable
    return importable and file is not None and not os.path.samefile(found, file)


def _become(asked: Request, files: list[int]) -> None:
    """Have what a process is given, and nothing else open."""
    os.umask(asked.umask)
    if asked.session:
        os.setpgid(0, asked.group)
    else:
        os.setsid()
    for number, limit in asked.limits.items():
        if resource.getrlimit(int(number)) != tuple(limit):
            resource.setrlimit(int(number), tuple(limit))
    for number in asked.ignored:
        signal.signal(number, signal.SIG_IGN)
    above = max([*asked.files, *files]) + 1
    moved = [fcntl.fcntl(file, fcntl.F_DUPFD, above) for file in files]
    for file, number in zip(moved, asked.files, strict=True):
        os.dup2(file, number)
    for number in {int(name) for name in os.listdir("/proc/self/fd")} - {*asked.files}:
        with suppress(OSError):
            os.close(number)
    os.chdir(asked.folder)
    os.environ.clear()
    os.environ.update(asked.environment)
    _open_streams()
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()
    importlib.invalidate_caches()


def _open_streams() -> None:
    sys.stdin = sys.__stdin__ = _stream(0)
    sys.stdout = sys.__stdout__ = _stream(1, mode="w")
    sys.stderr = sys.__stderr__ = _stream(2, mode="w", errors="backslashreplace", buffering=1)


def _stream(number: int, **options: Any) -> Any:
    return open(number, closefd=False, **options)


def _ended(asked: Request) -> int:
    """Run a command line as the interpreter does, to its end; the exit code."""
    try:
        signal.pthread_sigmask(signal.SIG_SETMASK, asked.blocked)
        run(asked.command)
        code = 0
    except SystemExit as end:
        code = _code(end)
    except BaseException as error:
        error.__traceback__ = _own(error.__traceback__)
        sys.excepthook(type(error), error, error.__traceback__)
        if isinstance(error, KeyboardInterrupt):
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGINT)
        code = 1
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stderr.flush()
    try:
        sys.stdout.flush()
    except OSError:
        code = 120
    return code & 0xFF


def _own(trace: TracebackType | None) -> TracebackType | None:
    """Without the functions of this file."""
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    return trace


def run(command: list[str]) -> None:
    """What an interpreter does with its command line."""
    sys.argv[:] = [command[0], *command[1 + command[0].startswith("-") :]]
    sys.orig_argv[:] = [sys.executable, *command]
    main = vars(sys.modules["__main__"])
    if command[0] == "-m":
        runpy._run_module_as_main(command[1])
    elif command[0] == "-c":
        exec(compile(command[1], "<string>", "exec"), main)
    else:
        main["__file__"] = os.path.abspath(command[0])
        exec(compile(Path(command[0]).read_bytes(), main["__file__"], "exec"), main)


def is_run(command: list[Any]) -> bool:
    """Whether `run` does what an interpreter would with its command line: it knows no options."""
    if command[:1] in (["-c"], ["-m"]):
        return len(command) > 1
    return bool(command) and os.fspath(command[0]).endswith(".py")


def _code(end: SystemExit) -> int:
    if end.code is None or isinstance(end.code, int):
        return end.code or 0
    print(end.code, file=sys.stderr)
    return 1


def main(listener: int) -> None:
    """The server's process, which listens on this descriptor."""
    from warm.popen import Popen

    subprocess.Popen = Popen
    signal.pthread_sigmask(signal.SIG_BLOCK, _STOPPING)  # forks hear them once they run
    Server().serve(socket.socket(fileno=listener))
    os._exit(0)
