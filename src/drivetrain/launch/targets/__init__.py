"""The places where a job can run: one file for each kind. docs/launch/index.md says how another one is written."""
