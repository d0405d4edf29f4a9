"""Pythons that tests start without the seconds that `import torch` takes: forks of one that has it loaded.

A fork is a process of its own with the files, environment, folder, limits and signals that it was asked to have, and
runs what an interpreter would run; the Pythons that it starts are forks too. Where a fork would not be the same, and
in tests with the mark `cold`, the interpreter itself is started. What forks share and interpreters do not is the
seed of str's hashes.
"""
