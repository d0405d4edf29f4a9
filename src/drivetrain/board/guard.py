"""Who may ask: the first thing that a request meets. A page of another site, another port or another name for this
machine is turned away before anything is looked up."""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from dataclasses import dataclass
from html import escape
from http.cookies import CookieError, SimpleCookie
from typing import Any, TypeAlias
from urllib.parse import parse_qs

from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response

from drivetrain.board.keys import Keys

Message: TypeAlias = MutableMapping[str, Any]
Scope: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
App: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]

MOST = 64 << 10
"""Bytes of what may be sent."""
KEY = "x-board-key"
"""The header that what changes something must have."""
_ENTER = "/static/enter.js"
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; media-src 'self'; "
    "connect-src 'self'; font-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
_HEADERS = {
    "content-security-policy": _POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
    "permissions-policy": "camera=(), microphone=(), geolocation=()",
}


@dataclass(frozen=True)
class Refusal:
    """Why a request is not answered."""

    status: int
    why: str


def hosts_of(host: str, port: int) -> frozenset[str]:
    """Names by which a browser may call the board: other names are another site's, which had them lead here."""
    names = {f"[{host}]" if ":" in host else host}
    if host in ("127.0.0.1", "::1", "localhost"):
        names |= {"127.0.0.1", "localhost", "[::1]"}
    return frozenset(f"{name}:{port}".lower() for name in names)


class Guard:
    """An application that only answers those who may ask."""

    def __init__(self, app: App, keys: Keys, hosts: frozenset[str], read_only: bool) -> None:
        self._app = app
        self._keys = keys
        self._hosts = hosts
        self._read_only = read_only
        port = min(hosts).rpartition(":")[2]
        self._cookie = f"drivetrain-board-{port}"
        """With the port: boards on two ports of a host would take each other's."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = _headers(scope)

        async def sealed(message: Message) -> None:
            if message["type"] == "http.response.start":
                own = [(name.encode(), value.encode()) for name, value in _HEADERS.items()]
                message["headers"] = [*message.get("headers", []), *own]
            await send(message)

        refusal = self._refusal(scope, headers)
        if refusal:
            body = {"error": refusal.why, "hint": "open the address that `drivetrain board` printed"}
            await JSONResponse(body, refusal.status)(scope, receive, sealed)
        elif scope["path"] == "/" and "token" in _query(scope):
            await self._enter()(scope, receive, sealed)
        else:
            await self._within(scope, receive, sealed)

    def _refusal(self, scope: Scope, headers: Mapping[str, list[str]]) -> Refusal | None:
        """The first reason against a request; None where there is none."""
        reads = scope["method"] in ("GET", "HEAD")
        public = scope["path"] == _ENTER and reads
        entering = scope["path"] == "/" and reads and "token" in _query(scope)
        # A link to the first address may stand anywhere; that page then loads its one script.
        foreign = self._foreign(headers, anywhere=entering or public or self._navigates(scope, headers))
        if foreign or public:
            return foreign
        if entering:
            given = _query(scope)["token"][0]
            return None if _same(given, self._keys.token) else Refusal(403, "a wrong token")
        if not _same(_cookie(headers, self._cookie), self._keys.session):
            return Refusal(401, "this browser has no key to the board")
        return None if reads else self._against_change(headers)

    def _foreign(self, headers: Mapping[str, list[str]], *, anywhere: bool) -> Refusal | None:
        """Whether it comes from another place than a page of the board, or calls it by another name. `anywhere`: it may
        come from another site."""
        hosts = headers.get("host", [])
        if len(hosts) != 1 or hosts[0].lower() not in self._hosts:
            return Refusal(421, "the board is not called by this name")
        for origin in headers.get("origin", []):
            if origin.lower().removeprefix("http://") not in self._hosts:
                return Refusal(403, "from another origin")
        if not anywhere and headers.get("sec-fetch-site", ["none"])[0] not in ("same-origin", "none"):
            return Refusal(403, "from another site")
        return None

    def _navigates(self, scope: Scope, headers: Mapping[str, list[str]]) -> bool:
        """Whether somebody goes to the page itself, which changes nothing."""
        return scope["path"] == "/" and headers.get("sec-fetch-mode") == ["navigate"] and scope["method"] == "GET"

    def _against_change(self, headers: Mapping[str, list[str]]) -> Refusal | None:
        if self._read_only:
            return Refusal(403, "this board only shows: it was started with --read-only")
        if "origin" not in headers:
            return Refusal(403, "from no page of the board")
        if headers.get("content-type", [""])[0].partition(";")[0] != "application/json":
            return Refusal(415, "only JSON is taken")
        if not _same(headers.get(KEY, [""])[0], self._keys.key):
            return Refusal(403, "without the key that the board's own pages have")
        length = headers.get("content-length", ["0"])[0]
        return None if length.isdecimal() and int(length[:20]) <= MOST else Refusal(413, "too much was sent")

    def _enter(self) -> Response:
        """The first page: it takes the token out of the address by itself. After a redirect from another site the
        browser would not send the new cookie."""
        page = (
            '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Drivetrain board</title>'
            f'<meta name="board-key" content="{escape(self._keys.key)}">'
            f'<script type="module" src="{_ENTER}"></script></head>'
            '<body><p><a href="/">To the board</a></p></body></html>'
        )
        answer = Response(page, media_type="text/html")
        answer.set_cookie(self._cookie, self._keys.session, httponly=True, samesite="strict", path="/")
        return answer

    async def _within(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let it in, but for a body that grows beyond its bound: without a length one may be endless."""
        taken = 0

        async def counted() -> Message:
            nonlocal taken
            message = await receive()
            taken += len(message.get("body", b""))
            if taken > MOST:
                raise HTTPException(413, "too much was sent")
            return message

        await self._app(scope, counted, send)


def _headers(scope: Scope) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name, value in scope["headers"]:
        found.setdefault(name.decode("latin-1").lower(), []).append(value.decode("latin-1"))
    return found


def _query(scope: Scope) -> dict[str, list[str]]:
    return parse_qs(scope["query_string"].decode("latin-1"))


def _cookie(headers: Mapping[str, list[str]], name: str) -> str:
    try:
        jar = SimpleCookie("; ".join(headers.get("cookie", [])))
    except CookieError:
        return ""
    return jar[name].value if name in jar else ""


def _same(given: str, own: str) -> bool:
    """Compared in a time that tells nothing of where they differ."""
    return hmac.compare_digest(given.encode(), own.encode())
