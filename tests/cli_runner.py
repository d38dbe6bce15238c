"""Running the command line in this process, and prediction files for it to read."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import calattn
from calattn.cli.app import run
from tests.samples import logits_and_labels


@dataclasses.dataclass(frozen=True)
class Result:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


def invoke(capsys: pytest.CaptureFixture[str], *arguments: object) -> Result:
    """One command line through the same path as the console command, all but the process."""
    capsys.readouterr()
    code = run([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    return Result(code, captured.out, captured.err)


def ran(capsys: pytest.CaptureFixture[str], *arguments: object) -> Result:
    """What a command line that succeeds has printed."""
    result = invoke(capsys, *arguments)
    assert result.code == 0, result.err
    return result


def refused(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """What a command line with wrong usage or input says on stderr; its exit code is 2."""
    result = invoke(capsys, *arguments)
    assert result.code == 2, result.err
    return result.err


def document_in(path: Path) -> dict:
    """What a page shows, read back from the file."""
    text = path.read_text(encoding="utf-8")
    found = re.search(r'<script type="application/json" id="document">(.*?)</script>', text, re.DOTALL)
    assert found is not None
    return json.loads(found.group(1))


def predictions(seed: int = 0, *, n: int = 600, sharpness: float = 1.0, **fields: Any) -> calattn.Predictions:
    logits, labels = logits_and_labels("ten_classes", seed)
    return calattn.Predictions(logits=sharpness * logits[:n].float(), labels=labels[:n], **fields)


def write_npz(path: Path, found: calattn.Predictions) -> Path:
    np.savez(path, logits=found.logits.numpy(), labels=found.labels.numpy())
    return path


def write_run(
    path: Path, *, seed: int = 0, sharpness: float = 1.0, rules: tuple[str, ...] = ("last",), spec: str = "seed: 0\n"
) -> Path:
    """A run folder as training leaves it, as far as the commands right of the seam look at it. `seed`: of the samples."""
    (path / "predictions").mkdir(parents=True)
    (path / "spec.yaml").write_text(spec)
    for place, rule in enumerate(rules):
        for split, offset in (("validation", 100), ("test", 0)):
            name = split if rule == "last" else f"{split}.{rule}"
            found = predictions(
                seed + offset, sharpness=sharpness * (1 + place), indices=torch.arange(600), split=split
            )
            calattn.save_predictions(found, path / "predictions" / name)
    return path
