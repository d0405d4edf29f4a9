"""The shipped tasks: each a small, whole example of the task interface."""
