"""What only Linux has, taken away: `python bare.py ARGUMENTS` is `drivetrain ARGUMENTS` where there is none of it.

What a Mac has and Linux has not stays untried."""

import builtins
import ctypes
import os
import socket
import sys

import torch  # noqa: F401 - before anything is taken away: it asks for it, and knows other ways
from torch import distributed  # noqa: F401

for module, name in (
    (os, "pidfd_open"),
    (os, "memfd_create"),
    (os, "sched_getaffinity"),
    (os, "posix_fadvise"),
    (os, "POSIX_FADV_DONTNEED"),
    (os, "POSIX_FADV_SEQUENTIAL"),
    (os, "MFD_CLOEXEC"),
    (socket, "SOCK_SEQPACKET"),
):
    delattr(module, name)


class NoLibrary:
    """A C library without anything of Linux's or glibc's."""


def opened(path, *arguments, real=builtins.open, **options):
    if str(path).startswith("/proc/"):
        raise FileNotFoundError(path)
    return real(path, *arguments, **options)


ctypes.CDLL = lambda name, *arguments, **options: NoLibrary()
builtins.open = opened

if __name__ == "__main__":
    from drivetrain.cli.main import main

    sys.exit(main())
