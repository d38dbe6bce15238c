"""A Ray cluster of several nodes on this machine, for tests. Without Ray they are skipped, and a line says so."""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest


def missing() -> str | None:
    """Why the tests of Ray cannot run; None where they can."""
    return None if importlib.util.find_spec("ray") else "Ray is not installed (pip install 'calattn[ray]')"


needs_ray = pytest.mark.skipif(missing() is not None, reason=str(missing()))


@contextlib.contextmanager
def cluster(*cores: int) -> Iterator[Any]:
    """One node for each number of cores; this process is connected, and no job runs on the head but where it has cores."""
    import ray
    from ray.cluster_utils import Cluster

    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    made = Cluster(initialize_head=True, head_node_args={"num_cpus": cores[0], "include_dashboard": False})
    try:
        for each in cores[1:]:
            made.add_node(num_cpus=each)
        ray.init(made.address, log_to_driver=False, logging_level=logging.ERROR)
        made.wait_for_nodes()
        yield made
    finally:
        ray.shutdown()
        made.shutdown()
        for number, handler in handlers.items():
            signal.signal(number, handler)


def kill(node: Any) -> None:
    """As a power cut does: none of the node's processes has the time for a last word."""
    with contextlib.suppress(ProcessLookupError):
        raylets = [each.process.pid for each in node.all_processes["raylet"]]
        for raylet in raylets:
            for child in _below(raylet):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(child, signal.SIGKILL)
            os.kill(raylet, signal.SIGKILL)


def _below(process: int) -> list[int]:
    """Its children and theirs."""
    try:
        with open(f"/proc/{process}/task/{process}/children") as file:
            found = [int(each) for each in file.read().split()]
    except OSError:
        return []
    return [each for child in found for each in [*_below(child), child]]
