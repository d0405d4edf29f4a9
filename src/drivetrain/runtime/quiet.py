"""Warnings of libraries that say nothing to whoever trains, kept off the terminal: each by its own words and place."""

from __future__ import annotations

import logging
import warnings
from typing import NamedTuple


class _Logged(NamedTuple):
    """Messages of one logger that begin so."""

    logger: str
    begins: str


_LOGGED = (
    # A wheel has its compiled kernels for several Pythons and GPUs; those for other ones cannot be loaded.
    _Logged("torchao", "Failed to load "),
    # torchao's classes to torch, in their own words: nothing that a recipe could change.
    _Logged("torch.utils._pytree", "%s is an Enum subclass and is now natively supported"),
    # A faster kernel for inference in 4 bits on CPUs, which no optimizer and no adapter of ours uses.
    _Logged("bitsandbytes.backends.cpu.ops", "Failed to load CPU gemm_4bit_forward"),
    # Of what TorchRec asks torch: nobody traces a graph here.
    _Logged("torch.fx._symbolic_trace", "is_fx_tracing will return true for both"),
)


class _Warned(NamedTuple):
    """Warnings of one module (a regular expression) that begin so (another one)."""

    begins: str
    module: str
    category: type[Warning] = UserWarning


_WARNED = (
    # Whether the compiler finds its own work of another process again; the numbers are the same.
    _Warned(r"\w+ does not implement _stable_hash_for_caching", r"torch\._functorch\._aot_autograd\.autograd_cache"),
    # Names that TorchRec has for what torch now calls otherwise.
    _Warned(r"`torch\.distributed\.\w+` is deprecated", r"torch\.distributed\.c10d_logger", FutureWarning),
)


def quiet_libraries() -> None:
    """Keep these warnings back from now on. Called before the libraries are imported, as some warn then."""
    for logged in _LOGGED:
        logger = logging.getLogger(logged.logger)
        if not any(isinstance(known, _Begins) for known in logger.filters):
            logger.addFilter(_Begins(logged.begins))
    for warned in _WARNED:
        warnings.filterwarnings("ignore", message=warned.begins, category=warned.category, module=warned.module)


class _Begins(logging.Filter):
    """Lets no message through that begins so."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self._text = text

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether a message is told."""
        return not str(record.msg).startswith(self._text)
