"""State tree to files and back: commit, verify, retain, fall back, export."""
