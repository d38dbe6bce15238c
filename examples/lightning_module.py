"""Lightning: metrics by `log_dict`, a head taught when training ends. Ten seconds: `python examples/lightning_module.py`."""

import calattn  # before lightning, timm and torchvision
import lightning
import torch
from calattn.lightning import TeachHead
from calattn.metrics.torchmetrics import CalibrationMetrics
from digits import TEST, TRAIN, VALIDATION, transform
from torch.utils.data import DataLoader


class Classifier(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        network = calattn.backbones.create("vit_micro_patch2_8", num_classes=10, in_chans=1)  # or yours
        self.model = calattn.attach(network, head="taught")  # the network's own logits, until the head is taught
        self.metrics = CalibrationMetrics(["accuracy", "nll", "ece"], num_classes=10, from_logits=True)

    def training_step(self, batch: list[torch.Tensor], _: int) -> torch.Tensor:
        images, labels = batch
        return torch.nn.functional.cross_entropy(self.model(images), labels)

    def validation_step(self, batch: list[torch.Tensor], _: int) -> None:
        images, labels = batch
        self.metrics.update(self.model(images), labels)

    def on_validation_epoch_end(self) -> None:
        self.log_dict(self.metrics.compute(), prog_bar=True)
        self.metrics.reset()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.model.parameters(), lr=3e-3, weight_decay=0.05)


def loader(rows: list, shuffle: bool = False) -> DataLoader:
    return DataLoader([(transform(image), label) for image, label in rows], batch_size=50, shuffle=shuffle)


lightning.seed_everything(0)
module = Classifier()
lesson = calattn.heads.Lesson(readings=1000, shifted=250, steps=200)  # only for this example: leave it out
quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
teaching = TeachHead(TRAIN, VALIDATION, transform, lesson=lesson)
trainer = lightning.Trainer(max_epochs=12, accelerator="cpu", callbacks=[teaching], **quiet)
trainer.fit(module, loader(TRAIN, shuffle=True), loader(VALIDATION))

untaught = calattn.attach(module.model.backbone, head="none")
for name, model in {"as trained": untaught, "calattn": module.model}.items():
    found = calattn.evaluate(calattn.predict(model, loader(TEST)), metrics=["accuracy", "nll", "ece"])
    print(f"{name}: " + ", ".join(f"{metric} {row.value:.3f}" for metric, row in found.items()))
(shown,) = trainer.validate(module, loader(TEST), verbose=False)  # the same, by Lightning
print(f"by log_dict: nll {shown['nll']:.3f}")
