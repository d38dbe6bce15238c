"""Damaged files of a run folder: read as they are, or refused in one sentence; never a traceback, a hang or an expansion."""

from __future__ import annotations

import copy
import json
import random
import shutil
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from calattn.engine.log import RunLog
from calattn.files.predictions import load_predictions
from calattn.runs.environment import warn_of_changed_plugins
from calattn.runs.facts import RunFacts, data_of
from calattn.runs.folder import RunFolder
from calattn.runs.interface import read_interface
from calattn.runs.resolving import resolve
from calattn.runs.train import is_finished, train_run
from tests.faults import tally
from tests.faults.mutations import OTHER_VALUES, mutated
from tests.small_runs import CPU, small_spec

SPEC = small_spec("data.limit=120", "train.epochs=1", "schedule.warmup_epochs=0")


def _facts(folder: RunFolder) -> None:
    facts = RunFacts(folder.path, say=lambda _: None)
    for fact in (facts.provenance, facts.spec_text, facts.spec, facts.epochs, facts.marks, lambda: facts.unfinished):
        fact()
    data_of(folder.predictions_path("test"))


def _spec(folder: RunFolder) -> None:
    assert RunFolder.open(folder.path).spec().hash
    resolve(str(folder.spec_path))


READERS: dict[str, Callable[[RunFolder], object]] = {
    "spec.yaml": _spec,
    "summary.json": lambda folder: (folder.progress(), is_finished(folder, SPEC), folder.summary()),
    "log.jsonl": lambda folder: RunLog(folder.log_path).epochs(),
    "interface.json": lambda folder: read_interface(folder).augment(),
    "environment.json": lambda folder: warn_of_changed_plugins(folder),
    "predictions/test/manifest.json": lambda folder: load_predictions(folder.predictions_path("test")),
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return train_run(SPEC, tmp_path_factory.mktemp("runs") / "trained", runtime=CPU)


@pytest.mark.parametrize("name", READERS)
def test_a_damaged_file_is_read_or_refused(name: str, trained: RunFolder, tmp_path: Path) -> None:
    folder = RunFolder(shutil.copytree(trained.path, tmp_path / "run"))
    path, lost, injected = folder.path / name, [], 0
    text = path.read_text(encoding="utf-8")
    for changed in mutations(text, tally.times(120, 2_000), structured=_structured(name, text), dump=_dump(name)):
        path.write_bytes(changed)
        injected += 1
        for read in (READERS[name], _facts):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                try:
                    read(folder)
                except (ValueError, OSError):  # what the command line tells in a line, with exit code 1 or 2
                    continue
                except Exception as error:  # all else is exit code 70
                    lost.append((error, changed[:200]))
    tally.count("mutation", name.rpartition("/")[2], injected=injected, lost=len(lost))
    assert not lost, f"{len(lost)} of {injected}: {lost[0][0]!r} after {lost[0][1]!r}"


def mutations(text: str, count: int, *, structured: Any, dump: Callable[[Any], str]) -> Iterator[bytes]:
    """Bytes changed; values replaced by others; brackets without end."""
    chance, content = random.Random(0), text.encode()
    yield from (
        b"",
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b"- " * 100_000,
        b"\xff\xfe" + content,
        content + b"]",
        b"null",
        b"\0",
    )
    yield content.replace(b": ", b": " + b"[" * 50_000, 1)
    top = structured if isinstance(structured, dict) else {}
    yield from (dump(top | {key: value}).encode() for key in top for value in (None, float("-inf"), 10**400))
    for _ in range(count):
        if chance.random() < 0.5:
            yield mutated(content, chance)
            continue
        changed = copy.deepcopy(structured)
        holder, key = chance.choice(list(_places(changed)))
        if chance.random() < 0.15:
            del holder[key]
        else:
            holder[key] = chance.choice(OTHER_VALUES)
        yield dump(changed).encode("utf-8", "surrogatepass")


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    for key in list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield value, key
        yield from _places(value[key])


def _structured(name: str, text: str) -> Any:
    if name.endswith("yaml"):
        return yaml.safe_load(text)
    return [json.loads(line) for line in text.splitlines()] if name.endswith("jsonl") else json.loads(text)


def _dump(name: str) -> Callable[[Any], str]:
    if name.endswith("yaml"):
        return lambda value: yaml.safe_dump(value, allow_unicode=True, sort_keys=False)
    if name.endswith("jsonl"):
        return lambda rows: "".join(f"{json.dumps(row)}\n" for row in rows)
    return json.dumps


def test_aliases_of_aliases_do_not_expand(tmp_path: Path) -> None:
    """Ten levels of ten would be 10¹⁰ values in whatever prints or checks them."""
    levels = "\n".join(f"  a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 11))
    (tmp_path / "bomb.yaml").write_text(f"loss:\n  a0: &a0 [x]\n{levels}\n")
    with pytest.raises(ValueError, match=r"bomb\.yaml holds more values by its aliases than it is long"):
        resolve(str(tmp_path / "bomb.yaml"))
