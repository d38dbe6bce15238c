"""Ray as an engine: one remote task per job, which starts the job's process on its machine and waits for it."""

from __future__ import annotations

import contextlib
import logging
import pickle
import signal
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from calattn.errors import InputWarning
from calattn.sweeps.jobs import STOP_SECONDS, End, Job, end_of, start, stop

_TICK = 0.1
_EXTRA = "Ray is not installed; install it with: pip install 'calattn[ray]'"


@contextlib.contextmanager
def cluster(address: str | None) -> Iterator[Any]:
    """The `ray` module, connected: to a cluster ("auto", HOST:PORT), or without an address to one made of this machine."""
    try:
        import ray
    except ModuleNotFoundError:
        raise ModuleNotFoundError(_EXTRA, name="ray") from None
    ours = not ray.is_initialized()
    if ours:
        handler = signal.getsignal(signal.SIGTERM)
        try:
            dashboard = None if address else False
            ray.init(address or "local", include_dashboard=dashboard, log_to_driver=False, logging_level=logging.ERROR)
        except ConnectionError as error:
            raise ConnectionError(
                f"--address {address}: no Ray cluster answers there ({error}); `ray start --head` starts one"
            ) from None
        if handler is not None:
            signal.signal(signal.SIGTERM, handler)  # Ray sets its own, which leaves with code 15
    with contextlib.redirect_stdout(sys.stderr):  # Ray says there what has become of a node; ours is for results
        try:
            yield ray
        finally:
            if ours:
                ray.shutdown()


class OnRay:
    """Jobs on a cluster. All are handed over at once: Ray waits for cores and GPUs, of which a fraction will do."""

    slots = sys.maxsize

    def __init__(self, ray: Any, *, cpus: int = 1, gpus: float = 0) -> None:
        self._ray = ray
        # A job that has died is started again by `run_jobs`, here as on one machine; Ray itself tries once.
        self._remote = ray.remote(num_cpus=cpus, num_gpus=gpus, max_retries=0)(run)
        self._running: dict[Any, Job] = {}

    def start(self, job: Job) -> None:
        self._running[self._remote.options(name=job.name).remote(job)] = job

    def ended(self) -> Iterator[tuple[str, End]]:
        for reference in self._done(0):
            job = self._running.pop(reference)
            yield job.name, self._end(reference)

    def stop(self) -> None:
        for reference in self._running:
            self._ray.cancel(reference)
        self._done(STOP_SECONDS)

    def _done(self, seconds: float) -> list[Any]:
        """Those that have ended after so many seconds, or before; Ray cannot wait for none."""
        every = list(self._running)
        return self._ray.wait(every, num_returns=len(every), timeout=seconds)[0] if every else []

    def _end(self, reference: Any) -> End:
        try:
            return End(*self._ray.get(reference))
        except self._ray.exceptions.RayTaskError as error:  # what `run` itself raised: no such folder on that machine
            return End(" ".join(str(error.cause).split()))
        except self._ray.exceptions.RayError as error:
            return End(f"Ray lost it: {type(error).__name__}", died=True)


def mapped(ray: Any, *, retries: int = 3) -> Callable[..., Iterator[Any]]:
    """As `map`, on a cluster, results in order. What a lost machine had is computed again on another one."""
    remote = ray.remote(num_cpus=1, max_retries=retries)(_called)

    def over(function: Callable[..., Any], *arguments: Iterable[Any]) -> Iterator[Any]:
        shared = ray.put(pickle.dumps(function))  # by its name: Ray would send the code
        references = [remote.remote(shared, *each) for each in zip(*arguments, strict=True)]
        for reference in references:
            try:
                result, said = ray.get(reference)
            except ray.exceptions.RayTaskError as error:
                raise error.cause from None
            except ray.exceptions.RayError as error:
                raise ConnectionError(
                    f"Ray lost a part of the work {retries + 1} times: {type(error).__name__}"
                ) from None
            for each in said:
                warnings.warn(each, stacklevel=2)
            yield result

    return over


def _called(function: bytes, *arguments: Any) -> tuple[Any, list[Warning]]:
    """The result, and our own warnings, which would be lost over there."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        result = pickle.loads(function)(*arguments)
    return result, [each.message for each in said if isinstance(each.message, InputWarning)]


def run(job: Job) -> End:
    """On the machine that Ray chose: the same process as anywhere, which ends with this one."""
    process = start(job)
    try:
        while (code := process.poll()) is None:  # Ray cancels a task between two of its lines, not while it waits
            time.sleep(_TICK)
        return end_of(job, code)
    finally:
        stop([process])
