"""An object store behind a URL: every request tried again, sizes checked, and errors without secrets in them."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import IO, Any, TypeVar
from urllib.parse import unquote, urlsplit

from drivetrain.spec.exits import Exit, Failure
from drivetrain.spec.secrets import error_without_secrets

_SCHEMES = ("s3", "gs", "az", "file")
_WAITS = (1.0, 4.0, 16.0)  # seconds before each further try
_BACKOFF = timedelta(milliseconds=100)  # obstore's own, before two tries within each of them
BLOCK = 8 << 20  # bytes that one request carries
_PARTS = 9000  # S3 takes at most 10,000 parts of an object

_T = TypeVar("_T")


class Unavailable(Exception):  # noqa: N818 - says what the store is, and is always caught
    """Why the store did not do what was asked, in one line without secrets."""


class Unfit(Exception):  # noqa: N818 - says what a commit is, and is always caught
    """Why a commit is not uploaded, or not taken from the mirror."""


@dataclass(frozen=True)
class Stored:
    """What the store's listing says of an object."""

    size: int
    modified: datetime


class ObjectStore:
    """An object store in which every request is tried again, and only Unavailable and FileNotFoundError come out."""

    def __init__(
        self,
        url: str,
        sleep: Callable[[float], object],
        abandoned: threading.Event | None = None,
        create: bool = False,
    ) -> None:
        """`create` makes the folder of a `file://` URL; the one above it has to be there, as a bucket has."""
        self._sleep = sleep
        self._abandoned = abandoned or threading.Event()
        self._store = self._opened(url, create)

    def list(self, prefix: str) -> dict[str, Stored]:
        """All objects below `prefix`, by name."""
        import obstore

        def listed() -> dict[str, Stored]:
            if self._store is None:
                return {}
            found: dict[str, Stored] = {}
            for chunk in obstore.list(self._store, prefix):
                for meta in chunk:
                    found[meta["path"]] = Stored(meta["size"], meta["last_modified"])
            return found

        return self._patient(listed)

    def read(self, key: str, start: int, stop: int) -> bytes:
        """Bytes of an object. Raises FileNotFoundError where it is not there; may be fewer where it is shorter."""
        import obstore

        if start == stop:
            return b""
        return self._patient(lambda: bytes(obstore.get_range(self._store, key, start=start, end=stop)), missing=True)

    def put(self, key: str, content: bytes) -> None:
        """Write a small object, and see that it has its size."""
        import obstore

        def written() -> None:
            obstore.put(self._store, key, content, use_multipart=False)
            self._see(key, len(content))

        self._patient(written)

    def put_file(self, key: str, file: IO[bytes], size: int, digest: str) -> None:
        """Write a file's bytes in parts. Raises Unfit, with no object left, where they do not have their SHA-256."""
        import obstore

        block = max(BLOCK, -(-size // _PARTS))

        def written() -> str:
            file.seek(0)  # each try begins anew
            seen = hashlib.sha256()
            # One request for small files: an upload in parts takes three.
            if size <= block:
                content = file.read(size)
                seen.update(content)
                obstore.put(self._store, key, content, use_multipart=False)
            else:
                obstore.put(self._store, key, _blocks(file, block, seen), chunk_size=block, max_concurrency=4)
            self._see(key, size)
            return seen.hexdigest()

        # Hashed as it was sent: a file that changed while it was read must not lie there under a manifest that has
        # another hash.
        if self._patient(written) != digest:
            self.remove(key)
            raise Unfit(f"{key.rpartition('/')[2]} does not have its SHA-256 any more")

    def remove(self, key: str) -> None:
        """Take an object away, where it is there."""
        import obstore

        with suppress(FileNotFoundError):
            self._patient(lambda: obstore.delete(self._store, key), missing=True)

    def _see(self, key: str, size: int) -> None:
        import obstore

        there = obstore.head(self._store, key)["size"]
        if there != size:
            raise OSError(f"{key} has {there} bytes in the store instead of {size}")

    def _opened(self, url: str, create: bool) -> Any:
        """The store, or None for a `file://` folder which nobody made yet, in one that is there."""
        from obstore.store import LocalStore, from_url

        if urlsplit(url).scheme == "file":
            folder = Path(unquote(urlsplit(url).path))
            if not folder.parent.is_dir():
                raise Unavailable(f"{folder.parent} is not there")
            if create:
                self._patient(lambda: folder.mkdir(mode=0o700, exist_ok=True))
            elif not folder.is_dir():
                return None
            return self._patient(lambda: LocalStore(folder, automatic_cleanup=True))
        # Options that are given hide those of the environment, so that one is looked up here.
        plain = os.environ.get("AWS_ALLOW_HTTP", "").lower() in ("1", "true", "yes", "on")
        backoff: Any = {"init_backoff": _BACKOFF, "max_backoff": timedelta(seconds=2), "base": 2}
        return self._patient(
            lambda: from_url(
                url,
                client_options={"timeout": "60s", "connect_timeout": "5s", "allow_http": plain},
                retry_config={"max_retries": 2, "backoff": backoff, "retry_timeout": timedelta(seconds=60)},
            )
        )

    def _patient(self, request: Callable[[], _T], missing: bool = False) -> _T:
        """What `request` returns, at the latest at the fourth try; `missing` lets FileNotFoundError through."""
        from obstore.exceptions import BaseError

        for wait in (*_WAITS, None):
            if self._abandoned.is_set():
                raise Unavailable("given up")
            try:
                return request()
            except (BaseError, OSError, ValueError) as error:
                if missing and isinstance(error, FileNotFoundError):
                    raise
                if wait is None or _lasting(error):
                    # Without the error itself: its text may have a signed URL, and a traceback would show it.
                    raise Unavailable(error_without_secrets(error)) from None
                self._sleep(wait)
        raise AssertionError


def check_url(url: str) -> None:
    """Raises Failure(78) for a URL of no store that is known, or with credentials in it, and without obstore."""
    parts = urlsplit(url)
    local = parts.scheme == "file"
    if parts.scheme not in _SCHEMES or bool(parts.netloc) == local or (local and not parts.path.strip("/")):
        known = "s3://bucket/path, gs://bucket/path, az://container/path or file:///path"
        raise Failure(Exit.BAD_RECIPE, f"checkpoint.mirror is no {known}", "correct the URL")
    if "@" in parts.netloc or parts.query or parts.fragment:
        hint = "credentials are taken from the environment, as in AWS_ACCESS_KEY_ID"
        raise Failure(Exit.BAD_RECIPE, "checkpoint.mirror has more than a bucket and a path in its URL", hint)
    try:
        import obstore  # noqa: F401
    except ImportError:
        raise Failure(Exit.BAD_RECIPE, "checkpoint.mirror needs obstore", "pip install 'drivetrain[mirror]'") from None


def _lasting(error: Exception) -> bool:
    """Whether another try would fail as well."""
    from obstore import exceptions

    return isinstance(
        error,
        (
            ValueError,
            FileNotFoundError,
            exceptions.PermissionDeniedError,
            exceptions.UnauthenticatedError,
            exceptions.InvalidPathError,
            exceptions.NotSupportedError,
            exceptions.UnknownConfigurationKeyError,
        ),
    )


def _blocks(file: IO[bytes], size: int, seen: Any) -> Iterator[bytes]:
    """A file's bytes in blocks, hashed as they go."""
    while block := file.read(size):
        seen.update(block)
        yield block


def open_file(path: Path) -> IO[bytes]:
    """A local file, for reading; no link is followed."""
    return os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb")
