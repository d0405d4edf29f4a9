"""Who may ask the board: each way in that was tried, over a real socket."""

import json
import socket

import pytest

from boards import KEYS, made_run, serving
from records import attempt, step

COMMANDS = "/api/runs/0/commands"


@pytest.fixture(scope="module")
def asked(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    made_run(folder / "one", [attempt(), *(step(at) for at in range(1, 30))])
    with serving(folder) as found:
        yield found


def posted(asked, headers, body=b"{}"):
    return asked.ask("POST", COMMANDS, headers, body).status


def test_a_page_of_the_board_is_answered_and_who_has_no_cookie_is_not(asked):
    assert asked.ask(path="/api/runs", headers=asked.own).status == 200
    for path in ("/", "/api/runs", "/api/events", "/static/board.js", "/nothing"):
        answer = asked.ask(path=path)
        assert answer.status == 401
        assert "open the address" in answer.json["hint"]


@pytest.mark.parametrize(
    "host", ["evil.example:{port}", "127.0.0.1:9", "localhost.:{port}", "0.0.0.0:{port}", "127.0.0.1", "", None]
)
def test_another_name_for_this_machine_is_turned_away(asked, host):
    """DNS rebinding: the browser believes that the board is a page of evil.example."""
    answer = asked.ask(path="/api/runs", headers=asked.own, host=host and host.format(port=asked.port))
    assert answer.status in (400, 421)


@pytest.mark.parametrize("host", ["127.0.0.1:{port}", "localhost:{port}", "LOCALHOST:{port}", "[::1]:{port}"])
def test_the_names_of_this_machine_are_taken(asked, host):
    assert asked.ask(path="/api/runs", headers=asked.own, host=host.format(port=asked.port)).status == 200


def test_the_first_address_gives_the_cookie_without_a_redirect_and_only_with_the_token(asked):
    entered = asked.ask(path=f"/?token={KEYS.token}")
    assert entered.status == 200
    cookie = entered.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    assert KEYS.key in entered.body.decode()
    assert KEYS.token not in entered.body.decode()
    for wrong in ("x", KEYS.token.upper(), "", "%ff", KEYS.token + "t"):
        answer = asked.ask(path=f"/?token={wrong}")
        assert answer.status in (401, 403)
        assert "set-cookie" not in answer.headers


def test_a_link_on_another_site_leads_to_the_page_and_nothing_else_is_answered_to_it(asked):
    there = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}
    assert asked.ask(path=f"/?token={KEYS.token}", headers=there).status == 200
    assert asked.ask(path="/static/enter.js", headers={"sec-fetch-site": "cross-site"}).status in (200, 404)
    for site in ("cross-site", "same-site"):
        assert asked.ask(path="/api/runs", headers=asked.own | {"sec-fetch-site": site}).status == 403
        assert posted(asked, asked.own | {"sec-fetch-site": site}) == 403


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://127.0.0.1:8888", "https://127.0.0.1:{port}"])
def test_what_another_origin_sends_is_not_taken(asked, origin):
    assert posted(asked, asked.own | {"origin": origin.format(port=asked.port)}) == 403


def test_a_change_needs_origin_json_and_the_key_that_no_other_port_has(asked):
    assert posted(asked, asked.own, json.dumps({"verb": "pause"}).encode()) == 404  # there is no such run
    for missing, status in (("origin", 403), ("content-type", 415), ("x-board-key", 403), ("cookie", 401)):
        assert posted(asked, {name: value for name, value in asked.own.items() if name != missing}) == status
    assert posted(asked, asked.own | {"content-type": "text/plain"}) == 415
    assert posted(asked, asked.own | {"x-board-key": KEYS.session}) == 403


def test_a_board_that_only_shows_steers_nothing(tmp_path):
    made_run(tmp_path / "one", [attempt()])
    with serving(tmp_path, read_only=True) as asked:
        assert asked.get("/api/runs")["read_only"]
        for method in ("POST", "PUT", "PATCH", "DELETE"):
            assert asked.ask(method, COMMANDS, asked.own, b"{}").status == 403


@pytest.mark.parametrize("path", ["/", "/api/runs", "/static/board.css", "/nothing", "/api/runs/0", "/?token=x"])
def test_every_answer_has_the_strict_policy(asked, path):
    for headers in ({}, asked.own):
        told = asked.ask(path=path, headers=headers).headers
        assert "script-src 'self'" in told["content-security-policy"]
        assert "unsafe" not in told["content-security-policy"]
        assert "frame-ancestors 'none'" in told["content-security-policy"]
        assert told["x-content-type-options"] == "nosniff"
        assert told["cache-control"] == "no-store"
        assert "access-control-allow-origin" not in told


@pytest.mark.parametrize(
    "path",
    [
        "/static/../guard.py",
        "/static/%2e%2e/guard.py",
        "/static/..%2f..%2f..%2fetc%2fpasswd",
        "//etc/passwd",
        "/static//etc/passwd",
        "/static/vendor",
        "/static/%00",
        "/api/runs/..%2f..%2fx/record?step=1",
    ],
)
def test_no_path_leads_out_of_the_page(asked, path):
    assert asked.ask(path=path, headers=asked.own).status in (400, 404)


def test_questions_out_of_bounds_are_said_and_cost_nothing(asked):
    curves = f"/api/runs/{asked.run('one')['id']}/curves"
    for query in ("n=train/loss", "n=train/loss&points=0", "n=train/loss&points=-5", "n=train/loss&lo=9e99&hi=1"):
        assert asked.ask(path=f"{curves}?{query}", headers=asked.own).status == 200
    wrong = {
        "n=nosuch": 404,
        "n=train/loss&by=../../x": 400,
        "n=train/loss&lo=nan": 400,
        "n=train/loss&hi=inf": 400,
        "n=train/loss&points=x": 400,
        "&".join(["n=train/loss"] * 100): 400,
        f"n={'x' * 600}": 400,
    }
    for query, status in wrong.items():
        answer = asked.ask(path=f"{curves}?{query}", headers=asked.own)
        assert answer.status == status
        assert answer.json["error"]


def test_a_long_body_is_cut_off_with_or_without_its_length(asked):
    assert posted(asked, asked.own, b"[" + b"1," * 3_000_000 + b"1]") == 413
    with socket.create_connection(("127.0.0.1", asked.port)) as sending:
        head = "".join(f"{name}: {value}\r\n" for name, value in asked.own.items())
        first = f"POST {COMMANDS} HTTP/1.1\r\nhost: 127.0.0.1:{asked.port}\r\n{head}transfer-encoding: chunked\r\n\r\n"
        sending.sendall(first.encode())
        try:
            for _ in range(1000):
                sending.sendall(b"4000\r\n" + b"x" * 0x4000 + b"\r\n")
        except OSError:
            pass
        assert b"413" in sending.recv(200)


def test_half_requests_do_not_keep_others_out(asked):
    held = [socket.create_connection(("127.0.0.1", asked.port)) for _ in range(200)]
    for one in held:
        one.sendall(b"GET / HT")
    assert asked.ask(path="/api/runs", headers=asked.own).status == 200
    for one in held:
        one.close()
