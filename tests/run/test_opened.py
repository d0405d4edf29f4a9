"""What is noticed when an attempt opens its run."""

from drivetrain.run.opened import unlike_environments


def test_the_first_difference_of_the_ranks_environments_is_named():
    one = {"torch": "2.13", "threads": 1, "package.numpy": "2.1"}
    assert unlike_environments([one, dict(one), dict(one)]) == ""
    assert unlike_environments([one, one | {"package.numpy": "2.0"}]) == "rank 1 has numpy 2.0, rank 0 2.1"
    assert unlike_environments([one, one, one | {"threads": 4}]) == "rank 2 has threads 4, rank 0 1"
