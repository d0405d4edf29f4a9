"""A user's own code as part of what is asked for: where it lies, and a digest of what it does. Nothing is imported."""
