"""Credentials that text may hold: where URLs have them, and words of others without them."""

from __future__ import annotations

import os
import re
from urllib.parse import parse_qsl, urlsplit

from drivetrain.spec.exits import Exit, Failure

_KEY = re.compile(
    r"sig(nature)?$|token|secret|passw|^(pw|pwd|pass|key|sas|jwt)$|credential|access.?key|api.?key|^auth", re.IGNORECASE
)
_VARIABLE = re.compile(r"SECRET|TOKEN|KEY|PASSWORD|SAS|CREDENTIAL")
_NO_USERS = ("github",)
"""Schemes whose URLs have other things in a user's place: github://ORGANIZATION:REPOSITORY@BRANCH/PATH."""
_HINT = "leave it out: file systems take credentials from the environment, or from files of their own"


def secret_in(text: str) -> str | None:
    """What part of a URL is a credential, in words; None: there is none. It may be one of several, with commas between,
    or a chain of file systems, such as simplecache::https://host/a.csv."""
    for url in re.split(r"::|,\s*(?=[\w+.-]+://)", text.strip()):
        if "://" in url and (found := _secret_in(url)):
            return found
    return None


def _secret_in(url: str) -> str | None:
    try:
        parts = urlsplit(url)
    except ValueError:  # no URL, such as one with half of a bracket
        return None
    if parts.scheme not in _NO_USERS:
        if parts.password is not None:
            return "a password"
        if parts.username is not None and parts.scheme.startswith("http"):  # a token takes a user's place there
            return "a user"
    pairs = re.sub(r"[;?#]", "&", f"{parts.path};{parts.query}#{parts.fragment}")
    for key, _ in parse_qsl(pairs.partition("&")[2], keep_blank_values=True):
        if _KEY.search(key):
            return f"a credential ({key})"
    return None


def masked(override: str) -> str:
    """The KEY=VALUE of a command line as messages show it: without a value that looks as if a URL in it had a
    credential."""
    keys = re.findall(r"[?&;#]([\w.-]+)=", override)
    if re.search(r"://.*@", override) or ("://" in override and any(_KEY.search(key) for key in keys)):
        return f"{override.partition('=')[0]}=..."
    return override


def require_no_secret(text: str, what: str) -> None:
    """Raises Failure(64), which does not tell it, where a part of a command line is a URL with a credential."""
    if found := secret_in(text):
        raise Failure(Exit.BAD_COMMAND, f"{what} has {found} in a URL", _HINT)


def without_secret(text: str) -> str:
    """A text as it may be shown: if it is a URL with a credential, without its users, and without a query that has
    one."""
    if secret_in(text):
        text = without_users(text)
    return re.sub(r"[?;#][^\s,]+", "?...", text) if secret_in(text) else text


def without_users(text: str) -> str:
    """A text without the user and password of any URL in it."""
    return re.sub(r"(?<=://)[^/@\s]+@", "", text)


def error_without_secrets(error: BaseException) -> str:
    """An error in one short line, without users of URLs, without the values of secret variables of the environment, and
    without queries, where tokens stand."""
    text = " ".join(str(error).partition("Debug source:")[0].split()) or type(error).__name__
    for name, value in os.environ.items():
        if len(value) >= 6 and _VARIABLE.search(name.upper()):
            text = text.replace(value, "***")
    return re.sub(r"\?\S+", "?...", without_users(text))[:300]
