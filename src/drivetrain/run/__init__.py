"""The one place where recipe, task, engine and loop are wired together."""
