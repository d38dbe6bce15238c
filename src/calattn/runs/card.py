"""The model card: what a classifier was trained on, how it was calibrated and how good it is, for people and for the hub."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

from huggingface_hub import EvalResult, ModelCard, ModelCardData

from calattn.files.atomic import atomic_write
from calattn.heads import Taught
from calattn.metrics.evaluation import Evaluation, evaluate
from calattn.report import reliability_diagram
from calattn.runs.folder import SPEC, RunFolder

if TYPE_CHECKING:
    from calattn.runs.classifier import Classifier

METRICS = ("accuracy", "nll", "brier", "ece", "smooth_ece", "auroc")
_TEXT = """---
{data}
---

# {title}

An image classifier whose confidences are calibrated by calattn: {how}.

```python
import calattn

model = calattn.load("THIS_FOLDER_OR_REPOSITORY")
found = model.predict("pictures/")  # files, folders, PIL images, arrays
print(found.rows(top=3))
```

| | |
|---|---|
| network | {backbone}, head `{head}` |
| images | {size} × {size}, {channels} channel(s), {interpolation} |
| classes | {classes} |
| checkpoint | {checkpoint} |
| calibration | {how} |
{training}
{results}"""
_RESULTS = """
## Test images

Of {name}, {count:,} images; 95 % intervals by resampling them. Fractions; NLL in nats.

| metric | value | 95 % interval |
|---|---|---|
{rows}

![Reliability diagram of the test images](reliability.png)
"""


def model_card(classifier: Classifier, folder: Path | None = None) -> ModelCard:
    """The card of a run's classifier; the reliability diagram is written to `folder`."""
    takes, chosen, origin = classifier.takes, classifier.description.model, classifier.origin
    run = RunFolder(origin) if origin is not None and (origin / SPEC).is_file() else None
    data = ModelCardData(
        library_name="calattn", pipeline_tag="image-classification", tags=["calibration", "image-classification"]
    )
    results = training = ""
    if run is not None:
        spec = run.spec()
        data.datasets = [] if ":" in spec.data.name else [spec.data.name]
        training = (
            f"| trained on | {spec.data.name}, {spec.train.epochs} epochs, seed {spec.seed}, spec {spec.hash} |\n"
        )
        rule = classifier.description.checkpoint
        if run.predictions_path("test", rule).exists():
            results = _results(classifier, run, data, folder)
    classes = ", ".join(takes.class_names[:20]) + (f", … ({takes.num_classes})" if takes.num_classes > 20 else "")
    how = _how(classifier)
    fields = {"size": takes.size, "channels": takes.channels, "interpolation": takes.interpolation}
    text = _TEXT.format(
        data=data.to_yaml(), title=data.model_name or chosen.backbone, how=how, backbone=chosen.backbone, head=chosen.head,
        classes=classes, checkpoint=classifier.description.checkpoint, training=training, results=results, **fields,
    )  # fmt: skip
    return ModelCard(text)


def _results(classifier: Classifier, run: RunFolder, data: ModelCardData, folder: Path | None) -> str:
    """The table, as text and in the hub's own form (model-index)."""
    spec, found = run.spec(), run.predictions("test", classifier.description.checkpoint)
    if classifier.calibrator is not None:
        found = classifier.calibrator.apply_to_block(found)
    evaluation = evaluate(found)
    data.model_name = spec.name or run.path.name
    data.eval_results = [
        EvalResult(
            task_type="image-classification",
            dataset_type=spec.data.name,
            dataset_name=spec.data.name,
            dataset_split="test",
            metric_type=row.name,
            metric_name=row.name,
            metric_value=row.value,
            metric_args={"interval_95": [row.low, row.high]} if row.low is not None else None,
        )
        for row in _shown(evaluation)
    ]
    if folder is not None:
        with atomic_write(folder / "reliability.png") as partial:
            reliability_diagram(found).savefig(partial, dpi=150)
    lines = [
        f"| {row.name} | {row.value:.4f} | " + (f"{row.low:.4f} to {row.high:.4f} |" if row.low is not None else "– |")
        for row in _shown(evaluation)
    ]
    return _RESULTS.format(name=spec.data.name, count=len(found), rows="\n".join(lines))


def _shown(evaluation: Evaluation) -> list:
    return [evaluation[name] for name in METRICS if name in evaluation and math.isfinite(evaluation[name].value)]


def _how(classifier: Classifier) -> str:
    head = classifier.model.head
    parts = []
    if isinstance(head, Taught):
        parts.append(
            "a temperature per image, by a head that was taught after training" if head.is_taught else "not taught yet"
        )
    elif classifier.description.model.head != "none":
        parts.append(
            f"a temperature per image, by a head trained with the network ({classifier.description.model.head})"
        )
    if classifier.calibrator is not None:
        parts.append(f"{type(classifier.calibrator).__name__} on held-out predictions")
    return ", then ".join(parts) or "no calibration"
