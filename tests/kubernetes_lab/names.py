"""What kube-dns does, for the one thing that pods of a job ask: the address of another pod by host and subdomain."""

from __future__ import annotations

import socketserver
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from kubernetes_lab.api import Answered, Api

DOMAIN = "cluster.local"
_FOUND, _UNKNOWN = 0x8580, 0x8583  # flags of an answer by one who knows: no error; no such name
_ADDRESS = 1  # the type of a question for an address of IPv4
_HERE = 0xC00C  # the name that was asked, by its place in the message
_SECONDS = 1  # for which an answer may be kept


@contextmanager
def name_server(api: Api, address: str) -> Iterator[None]:
    """Answers on port 53 of the address, from the endpoints of the headless services."""

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            message, back = self.request
            back.sendto(answer(message, api), self.client_address)

    with socketserver.ThreadingUDPServer((address, 53), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield
        server.shutdown()


def answer(message: bytes, api: Api) -> bytes:
    """The answer to a message with one question."""
    labels, place = [], 12
    while length := message[place]:
        labels.append(message[place + 1 : place + 1 + length].decode().lower())
        place += 1 + length
    question, (kind,) = message[12 : place + 5], struct.unpack_from("!H", message, place + 1)
    found = _addresses(labels, api)
    told = found if kind == _ADDRESS else []
    records = [struct.pack("!HHHIH4s", _HERE, _ADDRESS, 1, _SECONDS, 4, _packed(one)) for one in told]
    flags = _FOUND if found else _UNKNOWN
    return message[:2] + struct.pack("!5H", flags, 1, len(records), 0, 0) + question + b"".join(records)


def _addresses(labels: list[str], api: Api) -> list[str]:
    """Of HOST.SERVICE.NAMESPACE.svc.cluster.local."""
    if len(labels) != 6 or labels[3:] != ["svc", *DOMAIN.split(".")]:
        return []
    host, service, namespace = labels[:3]
    try:
        subsets = api("GET", f"/api/v1/namespaces/{namespace}/endpoints/{service}").get("subsets", ())
    except Answered:
        return []
    every = [one for subset in subsets for one in (*subset.get("addresses", ()), *subset.get("notReadyAddresses", ()))]
    return [one["ip"] for one in every if one.get("hostname") == host]


def _packed(address: str) -> bytes:
    return bytes(int(part) for part in address.split("."))
