"""The traps that tests were seen to catch still find their places in the sources."""

import pytest

from mutants import MUTANTS, ROOT


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.trap)
def test_a_trap_finds_its_place_once(mutant):
    assert (ROOT / "src" / "drivetrain" / mutant.file).read_text().count(mutant.old) == 1
    assert (ROOT / mutant.test.partition("::")[0]).is_file()
