import pytest

from drivetrain.board.keys import keys_of
from drivetrain.spec.exits import Exit, Failure


def test_a_board_that_starts_again_knows_its_pages_and_has_a_new_token(tmp_path):
    first, second = keys_of(tmp_path), keys_of(tmp_path)
    assert (first.session, first.key) == (second.session, second.key)
    assert first.token != second.token
    assert (tmp_path / "keys.json").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("harm", ["open", "link", "text", "short", "pipe"])
def test_keys_that_others_may_have_read_or_made_are_refused(tmp_path, harm):
    import os

    keys_of(tmp_path)
    path = tmp_path / "keys.json"
    if harm == "open":
        path.chmod(0o644)
    elif harm == "link":
        path.rename(tmp_path / "other")
        path.symlink_to(tmp_path / "other")
    elif harm == "pipe":
        path.unlink()
        os.mkfifo(path, 0o600)
    else:
        path.write_text("no JSON" if harm == "text" else '{"session": "x", "key": "y"}')
    with pytest.raises(Failure) as found:
        keys_of(tmp_path)
    assert found.value.outcome.code == Exit.SECURITY
