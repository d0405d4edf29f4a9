"""Runs whose every record and final bit is kept in `expected/`: what code says that is changed must still do.

Only surfaces that users have are used: the command line, the files of a run directory, the public Python API.

    PYTHONPATH=tests python -m golden compare [NAME ...]
"""
