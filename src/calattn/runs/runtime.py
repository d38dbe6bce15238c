"""Where a run runs: devices, processes, threads, folders. None of it is part of the spec."""

from __future__ import annotations

import atexit
import dataclasses
import gc
import os
import re
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import torch
import torch.distributed as dist
from lightning_fabric import Fabric

from calattn import data
from calattn.engine.log import Logger
from calattn.runs.spec import RunSpec

_ACCELERATORS = ("auto", "cpu", "cuda", "gpu", "mps", "tpu")
_STRATEGIES = ("auto", "ddp", "ddp_find_unused_parameters_true", "fsdp")
_LARGE = 128  # pixels a side from which a step keeps a GPU busy


@dataclasses.dataclass(frozen=True, kw_only=True)
class Runtime:
    """`devices` is a number or a list such as "0,2"; `strategy` is auto, ddp or fsdp; `workers` decode large data sets.

    `track` names trackers (`runs.trackers.TRACKERS`), or holds loggers of Lightning, that get the log too.
    """

    accelerator: str = "auto"
    devices: str = "1"
    nodes: int = 1
    strategy: str = "auto"
    threads: int | None = None
    workers: int | None = None
    data_root: Path | None = None
    save_seconds: float = 60.0
    track: Sequence[str | Logger] = ()
    heartbeat_seconds: float = 5.0  # of several processes: one that misses ten is gone, and the others end
    until_epoch: int | None = None  # stop there; the run is unfinished, and goes on without this

    def fabric(self, precision: str) -> Fabric:
        """The launched Fabric: after this, every process runs the same code with its own rank."""
        devices = self._checked_devices()
        if self.threads is not None:
            torch.set_num_threads(self.threads)
        try:
            fabric = Fabric(
                accelerator=self.accelerator,
                devices=devices,
                num_nodes=self.nodes,
                strategy=self._strategy(),
                precision=precision,  # type: ignore[arg-type]
            )
        except (RuntimeError, TypeError, ValueError) as error:
            flags = f"--accelerator {self.accelerator} --devices {self.devices} --strategy {self.strategy}"
            raise ValueError(f"{flags}: {' '.join(str(error).split())}") from None
        if sys.flags.safe_path:  # the processes that Fabric starts must not import from the current folder either
            os.environ["PYTHONSAFEPATH"] = "1"
        before = _in_group()
        fabric.launch()
        if _in_group() and not before:  # a group that was there is somebody else's, or that of an earlier run
            atexit.register(_leave_group)
        return fabric

    def _checked_devices(self) -> int | str | list[int]:
        """The devices as Fabric takes them; what it would refuse in its own words is refused in the user's."""
        if self.accelerator not in _ACCELERATORS:
            raise ValueError(f"--accelerator {self.accelerator!r} is unknown; known: {', '.join(_ACCELERATORS)}")
        if self.accelerator in ("cuda", "gpu") and not torch.cuda.is_available():
            raise ValueError(
                f"--accelerator {self.accelerator}: torch finds no CUDA device here; pass --accelerator cpu, or see "
                "`calattn doctor`"
            )
        if self.accelerator == "mps" and not torch.backends.mps.is_available():
            raise ValueError(
                "--accelerator mps: this machine has no Apple GPU that torch can use; pass --accelerator cpu"
            )
        if self.strategy not in _STRATEGIES:  # Fabric has more, whose checkpoints we could not read again
            raise ValueError(f"--strategy {self.strategy!r} is unknown; use auto, ddp or fsdp")
        if self.threads is not None and self.threads < 1:
            raise ValueError(f"--threads must be at least 1, got {self.threads}")
        return _devices(self.devices)

    def _strategy(self) -> Any:
        if self.strategy == "fsdp":
            from calattn.engine.sharding import ShardedStrategy

            return ShardedStrategy()
        return self.strategy

    @property
    def uses_gpu(self) -> bool:
        return self.accelerator in ("auto", "gpu", "cuda") and torch.cuda.is_available()

    @property
    def num_devices(self) -> int:
        chosen = _devices(self.devices)
        if isinstance(chosen, str):
            chosen = max(1, torch.cuda.device_count())
        return (len(chosen) if isinstance(chosen, list) else chosen) * self.nodes

    def usable_precision(self, precision: str) -> str:
        """A run trained in half precision on a GPU can be predicted with on a CPU: in float32."""
        return precision if self.uses_gpu else "32-true"

    def place(self, fabric: Fabric) -> dict[str, Any]:
        """What a loader has to know about this process."""
        rank = {"rank": fabric.global_rank, "world_size": fabric.world_size}
        return {**rank, "device": fabric.device, "workers": self.num_workers}

    @property
    def num_workers(self) -> int:
        return self.workers if self.workers is not None else min(16, max(1, (os.cpu_count() or 2) - 1))


def settled(spec: RunSpec, runtime: Runtime) -> RunSpec:
    """The spec with every "auto" replaced by what it means on this machine, so that the run's record says what was done."""
    gpu = runtime.uses_gpu
    precision, compiled, fused = spec.train.precision, spec.train.compile, spec.optimizer.fused
    if precision == "auto":
        precision = "bf16-mixed" if gpu and torch.cuda.is_bf16_supported() else "32-true"
    if compiled == "auto":
        # A sharded step gathers its weights between graphs: nobody has measured whether compiling it pays.
        compiled = _mode(spec) if gpu and runtime.strategy != "fsdp" else False
    if fused is None:
        fused = gpu
    dataset = data.describe(spec.data.name)
    size, flip = spec.data.size, spec.augment.flip
    if size is None and dataset.size is not None and dataset.size[0] == dataset.size[1]:
        size = dataset.size[0]
    if flip is None:
        flip = dataset.flip
    return spec.model_copy(
        update={
            "data": spec.data.model_copy(update={"size": size}),
            "augment": spec.augment.model_copy(update={"flip": flip}),
            "train": spec.train.model_copy(update={"precision": precision, "compile": compiled}),
            "optimizer": spec.optimizer.model_copy(update={"fused": fused}),
        }
    )


def _leave_group() -> None:
    """Ends gloo's threads while Python is still there: one that comes back to it later aborts the process, which has done its
    work by then, and torchrun kills the others for it. Of NCCL's group Fabric takes care."""
    if _in_group() and dist.get_backend() != "nccl":
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        gc.collect()  # wrapped networks hold the group too
        dist.destroy_process_group()


def _in_group() -> bool:
    return dist.is_available() and dist.is_initialized()


def _mode(spec: RunSpec) -> Literal["default", "reduce-overhead"]:
    """CUDA graphs for small images, whose steps are shorter than the host takes to queue them.

    Measured on an H200, DeiT-S at 32 px and batch 512: 27,000 images/s with graphs, 19,300 without; at 224 px the host keeps up.
    """
    native = data.describe(spec.data.name).size
    side = spec.data.size or (max(native) if native else _LARGE)
    return "reduce-overhead" if side < _LARGE else "default"


def _devices(text: str) -> int | str | list[int]:
    if text == "auto":
        return text
    # -1 is Fabric's word for all of them.
    if re.fullmatch(r"-1|[1-9]\d*", text):
        return int(text)
    if "," in text and re.fullmatch(r"\d+(,\d+)*,?", text):
        return [int(part) for part in text.split(",") if part]
    raise ValueError(f"--devices {text!r} must be a number from 1 on, a list such as 0,2, or auto")
