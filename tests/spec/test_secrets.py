"""Credentials in URLs: found wherever URLs have them, and told nowhere."""

import pytest

from drivetrain.cli.main import run as main
from drivetrain.spec.exits import Exit, Failure
from drivetrain.spec.load import load
from drivetrain.spec.secrets import error_without_secrets, require_no_secret, secret_in, without_secret

HELD = [
    "https://u:hunter2@host/x.csv",
    "https://hunter2@host/x.csv",
    "sftp://u:hunter2@host/x.csv",
    "simplecache::https://u:hunter2@host/x.csv",
    "zip://a.csv::s3://key:hunter2@bucket/a.zip",
    "a.csv, https://host/x?X-Amz-Signature=hunter2",
    "https://host/x?sv=1&sig=hunter2",
    "https://host/x?key=hunter2",
    "https://host/x#access_token=hunter2",
    "https://host/x;auth=hunter2",
    "https://host/x?PWD=hunter2",
]
FREE = ["s3://bucket/a.csv", "sftp://user@host/a.csv", "github://owner:repository@main/a.csv", "https://host/x?page=2"]
FREE += ["a:b@c.csv", "C://x", "https://[half/x", "day=*/*.parquet"]


@pytest.mark.parametrize("url", HELD)
def test_a_credential_is_found_wherever_a_url_has_it_and_not_told(url):
    found = secret_in(url)
    assert found is not None
    with pytest.raises(Failure) as refused:
        require_no_secret(url, "--data")
    assert refused.value.outcome.code is Exit.BAD_COMMAND
    assert "hunter2" not in f"{found} {refused.value}"


@pytest.mark.parametrize("url", FREE)
def test_what_is_none_is_not_taken_for_one(url):
    assert secret_in(url) is None


RECIPE = {
    "task": {"kind": "ranking", "features": {"user": {"hash": 9}}, "labels": {"click": {}}},
    "data": {"train": {"sources": [{"kind": "columns", "path": "log.csv"}]}},
    "batch": {"size": 8},
    "budget": {"steps": 1},
}
PLACES = [
    "data.train.sources[0].path={}",
    "data.validation.v={{kind: columns, path: '{}'}}",
    "data.train.sources[0]={{kind: jsonl, path: '{}'}}",
    "task.lookups.users={{path: '{}', key: id, by: user}}",
    "init.from={}",
    "init=[{{from: '{}'}}]",
]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("url", [HELD[0], HELD[3]])
def test_no_part_of_a_recipe_holds_a_credential(place, url):
    with pytest.raises(Failure) as refused:
        load(RECIPE, [place.format(url)])
    told = f"{refused.value} {refused.value.outcome} {refused.value.details}"
    assert refused.value.outcome.code is Exit.BAD_RECIPE
    assert "in a URL: recipes hold none" in told
    assert "hunter2" not in told


@pytest.mark.parametrize(
    "command",
    [
        ["data", "describe", "{}"],
        ["recipe", "new", "mine.yaml", "--from", "{}"],
        ["predict", "r", "--data", "{}", "--to", "x.csv"],
    ],
    ids=["describe", "new", "predict"],
)
def test_no_command_tells_a_credential_again(command, tmp_path, monkeypatch, capsys):
    pytest.importorskip("torch")  # these commands read data, or a run
    monkeypatch.chdir(tmp_path)
    assert main([part.format(HELD[0]) for part in command]) is Exit.BAD_COMMAND
    told = "".join(capsys.readouterr())
    assert "password in a URL" in told
    assert "hunter2" not in told
    assert list(tmp_path.iterdir()) == []


def test_what_others_say_of_an_error_is_told_without_what_is_secret(monkeypatch):
    monkeypatch.setenv("STORE_TOKEN", "hunter2")
    error = OSError("403 of https://u:hunter3@host/x?sig=hunter4 with hunter2")
    assert error_without_secrets(error) == "403 of https://host/x?... with ***"


@pytest.mark.parametrize("url", HELD)
def test_what_is_shown_of_a_url_has_no_credential_and_what_is_none_is_shown_whole(url):
    shown = without_secret(url)
    assert "hunter2" not in shown
    assert without_secret(shown) == shown
    assert [without_secret(free) for free in FREE] == FREE
