"""The heartbeat of several processes: where one is gone the others end too, with a message and within a minute."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from datetime import timedelta
from typing import Self

import torch.distributed as dist
from lightning_fabric import Fabric


class Heartbeat:
    """While the block runs each process tells the first that it lives, and the first tells them all.

    gloo notices at once that a process has died, but NCCL after ten minutes, and of a machine that has lost its power or its
    network neither knows for as long. A collective operation that waits for such a one cannot be called off: the process ends.
    """

    def __init__(self, fabric: Fabric, *, seconds: float = 5.0, missed: int = 9) -> None:
        self._rank, self._world, self._seconds, self._missed = fabric.global_rank, fabric.world_size, seconds, missed
        self._watched = [] if self._world == 1 else [0] if self._rank else [*range(1, self._world)]
        self._heard: dict[int, bytes] = {}
        self._stopped = threading.Event()
        if self._watched:
            self._store = self._connected(fabric)

    def _connected(self, fabric: Fabric) -> dist.TCPStore:
        """Of its own: a thread of ours must not wait behind what a process group asks the store that it met by."""
        host, patience = os.environ.get("MASTER_ADDR", "127.0.0.1"), timedelta(minutes=5)
        if self._rank == 0:
            store = dist.TCPStore(host, 0, is_master=True, timeout=patience, wait_for_workers=False)
            fabric.broadcast(store.port)
            return store
        return dist.TCPStore(host, fabric.broadcast(0), is_master=False, timeout=patience)

    def __enter__(self) -> Self:
        if self._watched:
            for work in (self._talk, self._watch):
                threading.Thread(target=work, name=f"calattn heartbeat {work.__name__}", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()

    def _talk(self) -> None:
        beat = 0
        with contextlib.suppress(RuntimeError):  # the first process is gone: nothing more is heard of it
            while not self._stopped.wait(self._seconds):
                beat += 1
                self._store.set(str(self._rank), str(beat))
                for other in self._watched:
                    if self._store.check([str(other)]):
                        self._heard[other] = self._store.get(str(other))

    def _watch(self) -> None:
        """Counts looks and not seconds: a machine that was asleep has missed none."""
        last, silent = dict(self._heard), dict.fromkeys(self._watched, 0)
        while not self._stopped.wait(self._seconds):
            for other in self._watched:
                silent[other] = 0 if self._heard.get(other) != last.get(other) else silent[other] + 1
            last = dict(self._heard)
            gone = [other for other in self._watched if silent[other] > self._missed]
            if gone and not self._stopped.is_set():
                _leave(f"process {gone[0]} of {self._world} is no longer there, see its own messages")


def _leave(why: str) -> None:
    sys.stderr.write(f"calattn: error: {why}; the same command resumes from the last checkpoint\n")
    sys.stderr.flush()
    os._exit(1)
