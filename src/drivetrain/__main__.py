"""`python -m drivetrain` is the `drivetrain` command."""

import sys

if __name__ == "__main__":
    if not (sys.flags.isolated or getattr(sys.flags, "safe_path", False)):
        del sys.path[0]  # the current folder: a random.py there is not Python's, and nothing of ours is looked up there
    from drivetrain.cli.main import main

    main()
