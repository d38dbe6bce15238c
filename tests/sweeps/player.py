"""A job of a few lines, which starts at once: `python -m tests.sweeps.player DOES FILE`."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

from calattn.sweeps.jobs import Job
from calattn.sweeps.worker import ended, obey_starter

ROOT = Path(__file__).parents[2]


def job(name: str, folder: Path, *, does: str = "", after: tuple[str, ...] = ()) -> Job:
    """A process that writes its number to `folder`/<name>.started, one line a try, and then does what `_play` says."""
    paths = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    command = ("tests.sweeps.player", does, str(folder / f"{name}.started"))
    return Job(name=name, command=command, log=folder / f"{name}.log", environment={"PYTHONPATH": paths}, after=after)


def tries(name: str, folder: Path) -> list[int]:
    """The process numbers of a job, one for each try."""
    path = folder / f"{name}.started"
    return [int(line) for line in path.read_text().split()] if path.exists() else []


def gone(number: int) -> bool:
    try:
        os.kill(number, 0)
    except ProcessLookupError:
        return True
    return (
        Path(f"/proc/{number}/stat").read_text().split()[2] == "Z" if Path(f"/proc/{number}/stat").exists() else False
    )


def _play(does: str, started: Path) -> None:
    print("GPUs:", os.environ.get("CUDA_VISIBLE_DEVICES"))
    with started.open("a") as file:
        file.write(f"{os.getpid()}\n")
    if does == "waits":
        time.sleep(600)
    while does == "waits once" and not (started.parent / "go").exists():
        time.sleep(0.02)
    if does == "fails":
        raise ValueError("no such thing")
    if does == "dies":
        os.kill(os.getpid(), signal.SIGKILL)
    if does == "dies once" and len(started.read_text().split()) == 1:
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    obey_starter()
    sys.exit(ended(lambda: _play(sys.argv[1], Path(sys.argv[2]))))
