"""The board's server: one process, on this machine's own address unless it is told otherwise."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from drivetrain.spec.exits import Exit, Failure

if TYPE_CHECKING:
    from drivetrain.board.board import Board

PORT = 8642
"""Where the board listens where nothing is said."""
_PACKAGES = ("starlette", "uvicorn")
_PATIENCE = 2  # seconds that open answers have at the end


def require_packages() -> None:
    """Raises Failure(64) where what the board needs is not installed."""
    missing = [name for name in _PACKAGES if find_spec(name) is None]
    if missing:
        cause = f"the board needs {' and '.join(missing)}, which {'is' if len(missing) == 1 else 'are'} not installed"
        raise Failure(Exit.BAD_COMMAND, cause, "pip install 'drivetrain[board]'")


def serve(
    folders: Sequence[Path],
    *,
    port: int,
    host: str = "127.0.0.1",
    read_only: bool = False,
    say: Callable[[str], None] = print,
) -> None:
    """Show the runs below these folders until Ctrl-C or SIGTERM; `say` is told the first address.

    Raises Failure: 64 where the port is taken or packages are missing, 66 where a folder is not there or none has a
    run.
    """
    require_packages()
    _require_runs(folders)
    from drivetrain.board.app import application
    from drivetrain.board.board import Board
    from drivetrain.board.guard import Guard, hosts_of
    from drivetrain.board.keys import keys_of
    from drivetrain.board.notes import Notes
    from drivetrain.board.runs import Runs

    listening = listen(host, port)
    port = listening.getsockname()[1]
    state = state_folder()
    keys = keys_of(state)
    board = Board(Runs(folders, cache_folder()), Notes(state), read_only)
    guarded = Guard(application(board), keys, hosts_of(host, port), read_only)

    server_of(guarded, board, lambda: say(f"http://{_shown(host)}:{port}/?token={keys.token}")).run([listening])


def server_of(app: Any, board: Board, started: Callable[[], None] = lambda: None) -> Any:
    """uvicorn's server for the board, without extras; `started` is called once it answers."""
    import uvicorn

    class Server(uvicorn.Server):
        """Streams end with the server: they would hold it up until its patience ends."""

        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            started()

        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            board.news.close()
            await super().shutdown(sockets)

    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,  # the first address has the token
        server_header=False,
        date_header=False,
        http="h11",
        loop="asyncio",
        ws="none",
        lifespan="on",
        timeout_graceful_shutdown=_PATIENCE,
    )
    return Server(config)


def state_folder() -> Path:
    """Where the board keeps what the user said, and its keys."""
    base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return _own(Path(base) / "drivetrain" / "board")


def cache_folder() -> Path | None:
    """Where indexes are kept; None where nothing can be: then they are made at each start."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    try:
        return _own(Path(base) / "drivetrain" / "board")
    except Failure:
        return None


def _own(folder: Path) -> Path:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise Failure(Exit.CANNOT_CREATE, f"{folder} cannot be made: {error}", "set XDG_STATE_HOME") from error
    return folder


def _require_runs(folders: Sequence[Path]) -> None:
    from drivetrain.board.runs import find

    for folder in folders:
        if not folder.is_dir():
            raise Failure(Exit.INPUT_MISSING, f"there is no folder {folder}", "name a run, or a folder of runs")
    if not any(next(find(folder.resolve()), None) for folder in folders):
        named = ", ".join(map(str, folders))
        raise Failure(Exit.INPUT_MISSING, f"no run in {named}", "name a run, or a folder of runs")


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens there; port 0 is any that is free. Raises Failure(64)."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
        listening.listen(128)
    except (OSError, OverflowError) as error:
        listening.close()
        cause = f"{_shown(host)}:{port} cannot be listened at: {error}"
        raise Failure(Exit.BAD_COMMAND, cause, "another board may be there; --port N, or --port 0 for any") from error
    return listening


def _shown(host: str) -> str:
    return f"[{host}]" if ":" in host else host
