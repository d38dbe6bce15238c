"""Hugging Face's Trainer: an attached model is trained as any of theirs, then its head is taught.

Fifteen seconds on one core, without a download: `python examples/huggingface_trainer.py`.
"""

import tempfile

import calattn  # before transformers, timm and torchvision
import numpy as np
import torch
from digits import TEST, TRAIN, VALIDATION, transform
from transformers import EvalPrediction, Trainer, TrainingArguments, ViTConfig, ViTForImageClassification, set_seed

METRICS = ["accuracy", "nll", "ece"]


def rows(data: list) -> list[dict[str, torch.Tensor | int]]:
    return [{"pixel_values": transform(image), "labels": label} for image, label in data]


def compute_metrics(found: EvalPrediction) -> dict[str, float]:
    logits, labels = np.asarray(found.predictions), np.asarray(found.label_ids)
    evaluation = calattn.evaluate(calattn.Predictions(logits=logits, labels=labels), metrics=METRICS, num_bootstrap=0)
    return {name: row.value for name, row in evaluation.items()}


set_seed(0)
sizes = {"hidden_size": 48, "num_hidden_layers": 4, "num_attention_heads": 3, "intermediate_size": 192}
config = ViTConfig(image_size=8, patch_size=2, num_channels=1, num_labels=10, **sizes)
network = ViTForImageClassification(config)  # yours: ViTForImageClassification.from_pretrained(…)
model = calattn.attach(network, head="taught")  # the network's own logits, until the head is taught

with tempfile.TemporaryDirectory() as folder:
    arguments = TrainingArguments(
        output_dir=folder,
        num_train_epochs=12,
        per_device_train_batch_size=50,
        per_device_eval_batch_size=256,
        learning_rate=3e-3,
        eval_strategy="epoch",
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
    )
    trainer = Trainer(
        model, arguments, train_dataset=rows(TRAIN), eval_dataset=rows(VALIDATION), compute_metrics=compute_metrics
    )
    trainer.train()
    lesson = calattn.heads.Lesson(readings=1000, shifted=250, steps=200)  # only for this example: leave it out
    taught = calattn.teach(model, TRAIN, VALIDATION, transform, lesson=lesson)
    for name, each in {"as trained": model, "calattn": taught}.items():
        trainer.model = each
        found = trainer.evaluate(rows(TEST), metric_key_prefix="test")
        print(f"{name}: " + ", ".join(f"{metric} {found['test_' + metric]:.3f}" for metric in METRICS))
