"""Where a run is started: the local supervisor and its forkserver. Never imports torch (the forkserver preloads it)."""
