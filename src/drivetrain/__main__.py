"""`python -m drivetrain` is the `drivetrain` command."""

from drivetrain.cli.main import main

if __name__ == "__main__":
    main()
