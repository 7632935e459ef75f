"""Freed memory stays with the process: activations of every step have the same sizes."""

from __future__ import annotations

import ctypes
import logging

log = logging.getLogger(__name__)

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # malloc.h


def keep_freed_memory() -> None:
    """Tell glibc to reuse large blocks instead of giving them back.

    By default every tensor of some hundred kilobytes is mapped and unmapped anew, and a CPU training step
    spends a third of its time in the kernel, clearing pages. Does nothing where the allocator is another.
    """
    try:
        mallopt = ctypes.CDLL("libc.so.6").mallopt
    except (OSError, AttributeError):
        log.debug("no glibc: large blocks are mapped anew every time")
        return
    mallopt(M_MMAP_THRESHOLD, 1 << 30)
    mallopt(M_TRIM_THRESHOLD, (1 << 31) - 1)
