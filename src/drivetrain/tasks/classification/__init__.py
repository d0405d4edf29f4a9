"""Texts with a label or a score: GLUE, and a user's own."""
