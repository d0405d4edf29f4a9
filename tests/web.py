"""A web server of this machine that gives parts of files, as object stores do."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer


class Ranges(SimpleHTTPRequestHandler):
    """Gives parts of files, as object stores do, and remembers what it was asked for."""

    asked: list[tuple[str, str]] = []
    whole = False
    token = ""  # that every request has to have

    def log_message(self, *_):
        pass

    def send_head(self):
        asked = self.headers.get("Range")
        Ranges.asked.append((self.command, self.path))
        if "forbidden" in self.path:
            self.send_error(403)
            return None
        if self.token and self.headers.get("Authorization") != f"Bearer {self.token}":
            self.send_error(401)
            return None
        path = self.translate_path(self.path)
        if asked is None or self.whole or not os.path.isfile(path):
            return super().send_head()
        first, last = map(int, re.fullmatch(r"bytes=(\d+)-(\d+)", asked).groups())
        size = os.path.getsize(path)
        file = open(path, "rb")  # noqa: SIM115 - whoever answers closes it
        file.seek(first)
        self.send_response(206)
        self.send_header("Content-Range", f"bytes {first}-{min(last, size - 1)}/{size}")
        self.send_header("Content-Length", str(min(last + 1, size) - first))
        self.end_headers()
        return Part(file, min(last + 1, size) - first)

    def end_headers(self):
        self.send_header("Accept-Ranges", "none" if self.whole else "bytes")
        super().end_headers()


class Part:
    def __init__(self, file, left):
        self.file, self.left = file, left

    def read(self, size):
        data = self.file.read(min(size, self.left))
        self.left -= len(data)
        return data

    def close(self):
        self.file.close()


@contextmanager
def serving(folder) -> Iterator[str]:
    """The URL that a folder is served at."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Ranges, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
