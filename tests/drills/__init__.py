"""Faults on purpose, in real runs: `make drill` tries as many as there is time for; a short fixed part runs in CI."""
