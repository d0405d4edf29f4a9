"""What happened: one append-only, hash-chained file, and all that is derived from it. Never imports torch."""
