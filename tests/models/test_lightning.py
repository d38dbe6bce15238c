"""`TeachHead` under the real Lightning: what it teaches, what checkpoints hold, and what it refuses."""

from __future__ import annotations

import lightning
import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader
from torchmetrics import MetricCollection

import calattn
from calattn.heads import Lesson
from calattn.lightning import TeachHead
from calattn.metrics.torchmetrics import CalibrationMetric

RNG = np.random.default_rng(0)
ROWS = [(image, int(image[..., 0].mean() > 127)) for image in RNG.integers(0, 256, (60, 8, 8, 3), dtype=np.uint8)]
LESSON = Lesson(readings=60, shifted=40, steps=20, hidden=128)


def transform(image):
    return torch.from_numpy(np.array(image)).permute(2, 0, 1) / 255


def batches(rows):
    return DataLoader([(transform(image), label) for image, label in rows], batch_size=20)


class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.model = calattn.attach(nn.Sequential(nn.Flatten(), nn.Linear(192, 2)), head="taught")
        each = {name: CalibrationMetric(name, num_classes=2, from_logits=True) for name in ("nll", "ece")}
        self.metrics = MetricCollection(each, prefix="val_")

    def training_step(self, batch, _):
        return nn.functional.cross_entropy(self.model(batch[0]), batch[1])

    def validation_step(self, batch, _):
        self.metrics.update(self.model(batch[0]), batch[1])
        self.log_dict(self.metrics, on_epoch=True)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def trainer(*callbacks, folder, **options):
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    return lightning.Trainer(
        max_epochs=2, accelerator="cpu", default_root_dir=folder, callbacks=list(callbacks), **quiet | options
    )


def test_it_teaches_what_calattn_teach_does_and_checkpoints_hold_it(tmp_path):
    module = Module()
    fitted = trainer(TeachHead(ROWS[:40], ROWS[40:], transform, lesson=LESSON), folder=tmp_path)
    fitted.fit(module, batches(ROWS[:40]), batches(ROWS[40:]))
    assert module.model.head.is_taught
    images = torch.stack([transform(image) for image, _ in ROWS])
    found = module.model.output(images)
    by_hand = calattn.teach(module.model.backbone, ROWS[:40], ROWS[40:], transform, lesson=LESSON)
    assert torch.equal(found.probs, by_hand.output(images).probs)

    fitted.save_checkpoint(tmp_path / "taught.ckpt")
    loaded = Module.load_from_checkpoint(tmp_path / "taught.ckpt", map_location="cpu").eval()
    assert torch.equal(loaded.model.output(images).probs, found.probs)
    (before,) = (tmp_path / "checkpoints").glob("*.ckpt")  # of the last epoch, before the head: the same tensors
    assert not Module.load_from_checkpoint(before, map_location="cpu").model.head.is_taught


def test_a_collection_of_metrics_logs_what_evaluate_says(tmp_path):
    module = Module()
    run = trainer(folder=tmp_path, enable_checkpointing=False)
    (logged,) = run.validate(module, batches(ROWS), verbose=False)
    expected = calattn.evaluate(calattn.predict(module.model, batches(ROWS)), metrics=["nll", "ece"], num_bootstrap=0)
    assert logged == pytest.approx({f"val_{name}": row.value for name, row in expected.items()}, abs=1e-6)


def test_a_network_that_is_not_there_is_named(tmp_path):
    callback = TeachHead(ROWS[:40], ROWS[40:], transform, attribute="network")
    with pytest.raises(ValueError, match="Module has no network called 'network'; name it by TeachHead"):
        trainer(callback, folder=tmp_path, enable_checkpointing=False).fit(Module(), batches(ROWS[:40]))


def test_shards_are_refused():
    class FSDPStrategy: ...

    class Run:
        strategy = FSDPStrategy()

    with pytest.raises(ValueError, match=r"in shards; call calattn\.teach after fit"):
        TeachHead([], [], transform).on_train_end(Run(), Module())
