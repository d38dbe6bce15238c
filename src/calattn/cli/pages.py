"""From subjects to the HTML page: what a command knows about each, gathered into exhibits."""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from calattn.cli.console import note, progress
from calattn.cli.subjects import Blocks, Subject
from calattn.readers import PredictionFileMissing
from calattn.report.page import Exhibit, build_document, page_html, write_page
from calattn.report.page.document import drawn
from calattn.types import Predictions

if TYPE_CHECKING:
    from calattn import Difference, Evaluation
    from calattn.workbench.folder import RunFolder

_THUMBNAIL = 96  # pixels of the longer side; small images are enlarged by the browser


def write(
    path: Path,
    found: Sequence[Subject],
    sources: Sequence[Predictions | Blocks],
    evaluations: Sequence[Evaluation],
    *,
    comparisons: Mapping[int, Mapping[str, Difference]] | None = None,
    validations: Mapping[int, Predictions] | None = None,
    title: str | None = None,
    home: str | None = None,
    data_root: Path | None = None,
) -> None:
    """Writes the page of the subjects; `validations` by subject number, where a caller was given some."""
    given = validations or {}
    read = [sampled(source) for source in sources]
    with progress() as bar:
        task = bar.add_task("page", total=2 * len(found) + 1)
        exhibits = []
        for place, each in enumerate(found):
            bar.update(task, description=f"page: gathering {_plain(each)}")
            predictions, rows = read[place]
            made = exhibit(each, predictions, evaluations[place], given.get(place), data_root)
            exhibits.append(dataclasses.replace(made, rows=rows))
            bar.advance(task)

        def step(text: str) -> None:
            bar.update(task, description=text)
            bar.advance(task)

        document = build_document(exhibits, comparisons=comparisons, title=title, home=home, step=step)
        write_page(page_html(document), path)
        bar.advance(task)
    note(f"wrote {path} ({path.stat().st_size / 1e6:.1f} MB)")


def exhibit(
    subject: Subject,
    predictions: Predictions,
    evaluation: Evaluation,
    validation: Predictions | None = None,
    data_root: Path | None = None,
) -> Exhibit:
    """All that is known: of a file its name and content, of a run its spec, log, machine and, if at hand, images."""
    facts: dict[str, Any] = {}
    provenance = [("file", str(subject.path)), ("content", predictions.fingerprint())]
    if subject.reader.floor:
        provenance.append(("floor", f"probabilities below {subject.reader.floor:g} were raised to it"))
    if subject.run is not None:
        from calattn.workbench.folder import RunFolder

        folder = RunFolder(subject.run)
        provenance = [("run", str(subject.run)), ("split", str(subject.split)), *provenance[1:], *_run_facts(folder)]
        provenance.insert(2, ("checkpoint", str(subject.checkpoint)))
        facts = _run_parts(folder, subject, predictions, data_root)
        validation = _validation(subject) if validation is None else validation
    if subject.temperature is not None:
        provenance.append(("temperature", f"{subject.temperature:.4g}, applied before anything was computed"))
        validation = None  # its T* is 1 by construction
    return Exhibit(
        title=_plain(subject),
        predictions=predictions,
        evaluation=evaluation,
        validation=validation,
        provenance=provenance,
        **facts,
    )


def sampled(source: Predictions | Blocks) -> tuple[Predictions, torch.Tensor | None]:
    """The predictions; of a file that does not fit into memory, some at random, and their rows."""
    if isinstance(source, Predictions):
        return source, None
    total = source.stream.num_rows
    if total is None:
        total = sum(len(block) for block in source)
    rows = drawn(total)
    rows = torch.arange(total) if rows is None else rows
    parts, offset = [], 0
    for block in source:
        inside = rows[(rows >= offset) & (rows < offset + len(block))] - offset
        if len(inside):
            parts.append(block.select(inside))
        offset += len(block)
    return _joined(parts), rows


def _joined(parts: Sequence[Predictions]) -> Predictions:
    first = parts[0]
    names = ("logits", "labels", "scale", "stated_probs", "indices")
    tensors = {name: torch.cat([getattr(p, name) for p in parts]) for name in names if getattr(first, name) is not None}
    return Predictions(**tensors, class_names=first.class_names, split=first.split, spec_hash=first.spec_hash)


def _validation(subject: Subject) -> Predictions | None:
    if subject.split == "validation":
        return None
    try:
        return subject.validation().predictions()
    except PredictionFileMissing:
        return None


def _run_facts(folder: RunFolder) -> list[tuple[str, str]]:
    """Who made the run, with what and on what, as far as its files say."""
    from calattn.workbench.folder import read_json

    found: list[tuple[str, str]] = []
    if folder.summary_path.is_file():
        summary = read_json(folder.summary_path)
        found += [("spec hash", str(summary["spec_hash"])), ("seed", str(summary["seed"]))]
        found += [("epochs", str(summary["epochs"])), ("training time", f"{summary['training_seconds']:,.0f} s")]
    if folder.environment_path.is_file():
        made = read_json(folder.environment_path)
        commit = (made.get("commit") or {}).get("hash")
        devices = ", ".join(str(device.get("name") or device.get("type")) for device in made.get("devices", []))
        cpu = (made.get("cpu") or {}).get("model")
        packages = ", ".join(
            f"{name} {made['packages'][name]}" for name in ("torch", "timm") if name in made["packages"]
        )
        rows = [
            ("started", made.get("started")),
            ("commit", commit),
            ("hardware", devices or cpu),
            ("packages", packages),
        ]
        found += [(name, str(value)) for name, value in rows if value]
    return found


def _run_parts(folder: RunFolder, subject: Subject, predictions: Predictions, data_root: Path | None) -> dict[str, Any]:
    from calattn.engine.log import RunLog
    from calattn.workbench.folder import read_json

    parts: dict[str, Any] = {}
    if folder.spec_path.is_file():
        parts["spec"] = folder.spec_path.read_text(encoding="utf-8")
        parts["images"] = _pictures(folder, subject, predictions, data_root)
    if folder.log_path.is_file():
        parts["log"] = [row for row in RunLog(folder.log_path).rows() if row.get("event") == "epoch"]
    if folder.summary_path.is_file():
        results = read_json(folder.summary_path)["results"]
        parts["marks"] = {rule: result["epoch"] for rule, result in results.items() if rule != "last"}
    return parts


def _pictures(folder: RunFolder, subject: Subject, predictions: Predictions, data_root: Path | None) -> Any:
    """Something that gives thumbnails of sample rows; None where the data set is not at hand."""
    from calattn import data
    from calattn.workbench import build

    if predictions.indices is None or subject.split not in ("test", "validation"):
        return None
    try:
        found = build.load_data(folder.spec(), root=data_root)
    except (data.DataError, ValueError, OSError) as error:
        note(f"no pictures of mistakes: {error}")
        return None
    images = found.test if subject.split == "test" else found.train
    where = predictions.indices

    def thumbnails(rows: Sequence[int]) -> dict[int, bytes]:
        return {row: _png(images.decode(int(where[row]))) for row in rows}

    return thumbnails


def _png(image: torch.Tensor) -> bytes:
    from PIL import Image

    array = image.permute(1, 2, 0).numpy()
    picture = Image.fromarray(array[:, :, 0] if array.shape[2] == 1 else array)
    picture.thumbnail((_THUMBNAIL, _THUMBNAIL))
    file = io.BytesIO()
    picture.save(file, format="PNG", optimize=True)
    return file.getvalue()


def _plain(subject: Subject) -> str:
    return subject.title.replace("\n", " ")
