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
def cluster() -> Iterator[Any]:
    """A head with one core; this process is connected."""
    import ray
    from ray.cluster_utils import Cluster

    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    checks = {
        "health_check_period_ms": 500,
        "health_check_failure_threshold": 3,
    }  # a lost node is noticed within seconds
    head = {"num_cpus": 1, "include_dashboard": False, "_system_config": checks}
    made = Cluster(initialize_head=True, head_node_args=head)
    try:
        ray.init(made.address, log_to_driver=False, logging_level=logging.ERROR)
        yield made
    finally:
        ray.shutdown()
        made.shutdown()
        for number, handler in handlers.items():
            signal.signal(number, handler)


class SecondNode:
    """Another node with one core, which is lost when a test says so."""

    def __init__(self, nodes: Any) -> None:
        self._nodes, self._node = nodes, nodes.add_node(num_cpus=1)  # waits until the node is there
        self.lost = False

    def lose(self) -> None:
        """As in a power cut: none of the node's processes has the time for a last word."""
        if not self.lost:
            self._nodes.worker_nodes.discard(self._node)
            raylet = self._node.all_processes["raylet"][0].process.pid
            for each in [*_below(raylet), raylet]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(each, signal.SIGKILL)
        self.lost = True


def _below(process: int) -> list[int]:
    """Its children and theirs."""
    try:
        with open(f"/proc/{process}/task/{process}/children") as file:
            found = [int(each) for each in file.read().split()]
    except OSError:
        return []
    return [each for child in found for each in [*_below(child), child]]
