"""Time and peak memory of one call."""

from __future__ import annotations

import ctypes
import gc
import resource
import threading
import time
from collections.abc import Callable
from pathlib import Path


def best_of(call: Callable[[], object], repeats: int) -> float:
    """Seconds of the fastest of `repeats` calls; slow calls are not repeated."""
    best = float("inf")
    for _ in range(repeats):
        gc.collect()
        start = time.perf_counter()
        call()
        best = min(best, time.perf_counter() - start)
        if best > 5:
            break
    return best


def _resident() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def peak_extra(call: Callable[[], object]) -> float:
    """MB by which resident memory rises above where it stood, sampled every millisecond while the call runs.

    The call runs once before, so that thread pools and lookup tables are not counted; then the allocator hands its free
    pages back, so that what the measured call takes must be mapped anew and shows.
    """
    call()
    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    before, peak, done = _resident(), 0, threading.Event()

    def watch() -> None:
        nonlocal peak
        while not done.is_set():
            peak = max(peak, _resident())
            time.sleep(0.001)

    thread = threading.Thread(target=watch)
    thread.start()
    call()
    done.set()
    thread.join()
    return max(0, peak - before) / 2**20
