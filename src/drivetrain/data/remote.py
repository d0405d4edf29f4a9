"""Files behind URLs, of any file system that fsspec knows: found, known again by what it tells of them, and read in
stretches. Credentials are the file systems' own (environment, their files, fsspec's configuration): URLs hold none."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from fnmatch import fnmatch
from pathlib import PurePosixPath
from typing import Any, BinaryIO
from urllib.parse import urlsplit

from drivetrain.spec.exits import Exit, Failure
from drivetrain.spec.secrets import error_without_secrets

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_MARKS = ("size", "ETag", "etag", "version_id", "md5Hash", "crc32c", "content_md5", "Content-MD5", "Digest")
_TIMES = ("mtime", "LastModified", "last_modified", "Last-Modified", "updated", "modified", "created")
"""What file systems tell of a file, which another content would change."""
_LOCAL = "file://"
_NEAR = 1 << 20
"""Bytes between two stretches that are read along: one request for both takes less time."""
_CREDENTIAL_HINT = "give credentials as this file system takes them: by its environment variables or its own files"


def is_url(path: str) -> bool:
    """Whether it is a URL, and no path of this machine."""
    return _URL.match(path) is not None


def local_path(path: str) -> str:
    """The path that a `file://` URL means; any other text as it is."""
    return path.removeprefix(_LOCAL)


def suffix_of(path: str) -> str:
    """What the name of a file ends in, in lower case; in a URL without what follows a question mark."""
    if is_url(path):
        path = urlsplit(path).path
    return PurePosixPath(path).suffix.lower()


def find_remote(url: str, include: Sequence[str]) -> list[str]:
    """The files that a URL means: one file, those that match a pattern, or those of a folder that match `include`; by
    name, hidden ones never. Over HTTP a folder is what ends with a slash.

    Raises Failure(66) where there is none, and as `told`."""
    with told(url):
        system, path = _system(url)
        if any(sign in path for sign in "*?[") and not (urlsplit(url).query or system.exists(path)):
            found = [one for one in system.glob(path) if not system.isdir(one)]
        elif not url.endswith("/") and system.info(path)["type"] == "file":
            return [url]
        else:
            found = [one for one in system.find(path) if _taken(one, path, include)]
        # Sorted here, since servers list in any order, and the order of files is the order of samples.
        urls = sorted(system.unstrip_protocol(one) for one in found)
    if not urls:
        raise Failure(Exit.INPUT_MISSING, f"no file to read in {url}", f"files in a folder match {', '.join(include)}")
    return urls


def identity_of(url: str) -> tuple[str, ...]:
    """What tells a file from its other versions: size, and whatever the file system has of digests and times."""
    with told(url):
        system, path = _system(url)
        info = system.info(path)
    if info.get("size") is None:
        raise Failure(Exit.BAD_DATA, f"{url}: nobody tells its size", "copy it to where parts of files can be read")
    return tuple(f"{mark}={info[mark]}" for mark in (*_MARKS, *_TIMES) if info.get(mark) is not None)


def open_remote(url: str) -> BinaryIO:
    """A file to be read in any order; each read is a request for just these bytes."""
    with told(url):
        system, path = _system(url)
        # Without fsspec's own read-ahead: blocks are read whole, and what it fetches beyond would be thrown away.
        return _Told(url, system.open(path, "rb", cache_type="none"))  # type: ignore[return-value]


def near_together(spans: Sequence[tuple[int, int]]) -> Iterator[list[tuple[int, int]]]:
    """Stretches [start, stop) in runs of neighbours, in the order of the file."""
    run: list[tuple[int, int]] = []
    for span in sorted(spans):
        if run and span[0] > run[-1][1] + _NEAR:
            yield run
            run = []
        run.append(span)
    if run:
        yield run


@contextmanager
def told(url: str) -> Iterator[None]:
    """What file systems raise, which may be anything, as a Failure that says where: 66 where a file, a right or a
    library is missing, 78 for a scheme that nobody knows, 69 where nobody answers."""
    try:
        yield
    except Failure:
        raise
    except ImportError as error:
        raise Failure(
            Exit.INPUT_MISSING, f"{url}: {error_without_secrets(error)}", "pip install what it names", file=url
        ) from error
    except Exception as error:
        raise _failure(url, error) from error


def _failure(url: str, error: Exception) -> Failure:
    # Over HTTP all that goes wrong is a file that is not there; the cause says why.
    cause = error.__cause__ if isinstance(error, FileNotFoundError) else None
    if isinstance(cause, Exception):
        error = cause
    status = getattr(error, "status", None)
    if isinstance(error, FileNotFoundError) or status == 404:
        return Failure(Exit.INPUT_MISSING, f"{url} is not there", "mend the URL", file=url)
    if isinstance(error, PermissionError) or status in (401, 403):
        return Failure(Exit.INPUT_MISSING, f"{url}: it may not be read", _CREDENTIAL_HINT, file=url)
    if isinstance(error, ValueError):
        if "Protocol not known" in str(error):
            what = f"{url}: {error_without_secrets(error)}"
            return Failure(Exit.BAD_RECIPE, what, "give a URL that fsspec knows", file=url)
        if re.search("range requests|Cannot seek", str(error)):
            what = f"{url}: its server gives whole files only"
            return Failure(Exit.BAD_DATA, what, "copy it to where parts of files can be read", file=url)
    what = f"{url} cannot be read: {type(error).__name__}: {error_without_secrets(error)}"
    return Failure(Exit.PEER_UNAVAILABLE, what, "look at the network and its server; the same command goes on")


class _Told:
    """An open file whose errors are told with its URL."""

    def __init__(self, url: str, file: Any) -> None:
        self._url, self._file = url, file

    def __enter__(self) -> _Told:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def closed(self) -> bool:
        return self._file.closed

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def close(self) -> None:
        self._file.close()

    def seek(self, offset: int, whence: int = 0) -> int:
        with told(self._url):
            return self._file.seek(offset, whence)

    def tell(self) -> int:
        return self._file.tell()

    def read(self, size: int = -1) -> bytes:
        with told(self._url):
            return self._file.read(size)


def _system(url: str) -> tuple[Any, str]:
    """The file system of a URL, and the path there. What it has listed before is not believed."""
    try:
        from fsspec.core import url_to_fs
    except ImportError:
        hint = "pip install 'drivetrain[urls]', and what the scheme needs, such as s3fs"
        raise Failure(Exit.INPUT_MISSING, f"{url} needs fsspec", hint, file=url) from None
    return url_to_fs(url, use_listings_cache=False)


def _taken(path: str, folder: str, include: Sequence[str]) -> bool:
    inside = PurePosixPath(path.removeprefix(folder))
    hidden = any(part.startswith(".") for part in inside.parts)
    return not hidden and any(fnmatch(inside.name, pattern) for pattern in include)
