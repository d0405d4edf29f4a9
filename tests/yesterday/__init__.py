"""Run directories that an older drivetrain has left: the README says when they are made."""
