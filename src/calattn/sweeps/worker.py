"""The process of one run: `python -P -m calattn.sweeps.worker ORDER`, see `order`."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import stat
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from calattn.sweeps.jobs import FAILED, INTERRUPTED, STOP_SECONDS, TERMINATED

if TYPE_CHECKING:
    from calattn.runs.runtime import Runtime
    from calattn.runs.spec import RunSpec

# What a run may meet without being a defect of ours: a wrong spec, missing data, a full disk or device, a loss that blew up.
EXPECTED = (ValueError, OSError, RuntimeError, ArithmeticError, MemoryError)
_PATIENCE = 60.0  # seconds in which an earlier worker of the folder, whose starter died, must have stopped


def obey_starter() -> None:
    """Whoever started this process holds a pipe to it. When that ends, they have died, and this process stops too."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(TERMINATED))
    if stat.S_ISFIFO(os.fstat(0).st_mode):  # else somebody has started it by hand
        threading.Thread(target=_stop_at_end, daemon=True).start()


def _stop_at_end() -> NoReturn:
    while os.read(0, 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(STOP_SECONDS)
    os._exit(TERMINATED)


def ended(work: Callable[[], object]) -> int:
    """The exit code of some work; why it failed becomes the last line that is printed."""
    import logging

    from calattn import plugins
    from calattn.engine.interrupt import Interrupted

    logging.getLogger("lightning_fabric").setLevel(logging.WARNING)  # it announces every process
    try:
        plugins.load()  # those of the command that started this process
        work()
    except Interrupted as error:
        return 128 + int(error.signal)
    except KeyboardInterrupt:
        return INTERRUPTED
    except EXPECTED as error:
        print(reason_of(error), file=sys.stderr, flush=True)
        return FAILED
    return 0


def reason_of(error: BaseException) -> str:
    """In one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


def order(spec: RunSpec, folder: Path, runtime: Runtime) -> str:
    """What is to be trained, where and how, as text for a command line."""
    fields = {"spec": spec.model_dump(mode="json"), "folder": folder, "runtime": dataclasses.asdict(runtime)}
    return json.dumps(fields, default=str)


def train(text: str) -> None:
    """Trains what is ordered, or resumes it."""
    from calattn.runs.resolving import checked
    from calattn.runs.runtime import Runtime
    from calattn.runs.train import train_run

    found = json.loads(text)
    root, folder = found["runtime"]["data_root"], Path(found["folder"])
    runtime = Runtime(**found["runtime"] | {"data_root": None if root is None else Path(root), "track": ()})
    wait_for(folder)
    train_run(checked(found["spec"]), folder, runtime=runtime)


def wait_for(folder: Path) -> None:
    """Until nobody writes to a run folder. An earlier worker that has lost its starter needs a moment to save and stop."""
    from calattn.runs.folder import RunFolder

    deadline = time.monotonic() + _PATIENCE
    if os.environ.get("LOCAL_RANK", "0") == "0":  # the first process of a run is the one that locks
        while RunFolder(folder).writer() is not None and time.monotonic() < deadline:
            time.sleep(0.2)


if __name__ == "__main__":
    obey_starter()
    sys.exit(ended(lambda: train(sys.argv[1])))
