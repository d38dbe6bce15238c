"""What only Hugging Face's classifiers do under `attach`; `test_attach_layers.py` tests them beside others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from calattn.backbones import create
from calattn.models.attach import Adapter, CalibratedModel, attach
from tests.models import hugging_face
from tests.models.hugging_face import VIT


def build() -> torch.nn.Module:
    torch.manual_seed(0)
    return hugging_face.build("ViT", num_classes=7, **VIT)


def images(n: int = 2) -> torch.Tensor:
    return torch.randn(n, 3, 64, 64, generator=torch.Generator().manual_seed(n))


def awake() -> CalibratedModel:
    return hugging_face.shaken(attach(build().eval()))


def test_what_a_processor_gives() -> None:
    model = awake()
    processor = transformers.ViTImageProcessor(size={"height": 64, "width": 64})
    pictures = [np.full((80, 90, 3), shade, dtype=np.uint8) for shade in (10, 200)]
    inputs = processor(pictures, return_tensors="pt")
    expected = model(inputs["pixel_values"])
    assert torch.equal(model(**inputs).logits, expected)
    assert torch.equal(model(**inputs, output_hidden_states=True).logits, expected)
    with pytest.raises(ValueError, match="returned tuple, neither logits"):
        model(**inputs, return_dict=False)


def test_gradient_checkpointing_changes_nothing() -> None:
    plain, saving = awake(), awake()
    saving.load_state_dict(plain.state_dict())
    saving.train().backbone.gradient_checkpointing_enable()
    for model in (plain.train(), saving):
        torch.manual_seed(2)
        model(images()).square().sum().backward()
    for first, second in zip(plain.parameters(), saving.parameters(), strict=True):
        assert torch.equal(first.grad, second.grad) if first.grad is not None else second.grad is None


def test_a_timm_network_in_transformers_clothes() -> None:
    config = transformers.TimmWrapperConfig(architecture="test_resnet", num_labels=7)
    net = transformers.TimmWrapperForImageClassification(config).eval()
    model = attach(net)
    assert model.adapter.layer == "timm_model.fc"
    assert torch.equal(model(pixel_values=images()).logits, net(images()).logits)


def test_distilled_deit_needs_a_name() -> None:
    config = transformers.DeiTConfig(num_labels=7, **VIT)
    net = transformers.DeiTForImageClassificationWithTeacher(config).eval()
    with pytest.raises(ValueError, match=r"not the output of 'distillation_classifier'.*classifier='…'"):
        attach(net)(images())
    model = attach(net, classifier="cls_classifier")
    assert torch.equal(model(pixel_values=images()).logits, net(images()).logits)


def test_an_encoder_has_no_logits() -> None:
    net = transformers.ViTModel(transformers.ViTConfig(**VIT))
    with pytest.raises(ValueError, match=r"ViTModel returned BaseModelOutputWithPooling, neither logits"):
        attach(net)(images())


@pytest.mark.parametrize("features", ["patch_mean", "concat"])
def test_patch_tokens_through_an_adapter(features: str) -> None:
    """The example of docs/attach.md, on the network that it imitates."""

    def read(net: Any, pixel_values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        tokens = net.vit(pixel_values).last_hidden_state
        return tokens[:, 0], tokens[:, 1:]

    net = build().eval()
    adapter = Adapter(
        features=read, classifier=lambda net, z: net.classifier(z), num_features=32, num_patch_features=32
    )
    out = attach(net, features=features, adapter=adapter).output(pixel_values=images())
    assert torch.equal(out.calibrated_logits, net(images()).logits)
    tokens = net(images(), output_hidden_states=True).hidden_states[-1]
    mean = net.vit.layernorm(tokens)[:, 1:].mean(1)
    torch.testing.assert_close(out.features[:, -32:], mean)
    with pytest.raises(ValueError, match=r"offers: 'cls'; '.*' needs patch tokens"):
        attach(net, features=features)


@pytest.mark.parametrize("kind", ["transformers", "timm"])
def test_the_trainer_trains_and_evaluates_it(kind: str, tmp_path: Path) -> None:
    """No arguments but those of any model: columns are found by the signature, the loss and the logits by their names."""
    net = build() if kind == "transformers" else create("vit_nano_patch8_32", num_classes=7)
    model, size = attach(net), 64 if kind == "transformers" else 32
    pictures = torch.randn(24, 3, size, size, generator=torch.Generator().manual_seed(0))
    rows = [{"pixel_values": x, "labels": i % 7, "file": f"{i}.png"} for i, x in enumerate(pictures)]
    arguments = transformers.TrainingArguments(
        output_dir=tmp_path, max_steps=3, per_device_train_batch_size=8, per_device_eval_batch_size=5, report_to=[],
        use_cpu=True, learning_rate=1e-2, disable_tqdm=True, seed=1,
    )  # fmt: skip
    accuracy = lambda found: {"accuracy": float((found.predictions.argmax(1) == found.label_ids).mean())}  # noqa: E731
    trainer = transformers.Trainer(model, arguments, train_dataset=rows, eval_dataset=rows, compute_metrics=accuracy)
    before = [parameter.clone() for parameter in model.parameters()]
    trainer.train()
    moved = [not torch.equal(*pair) for pair in zip(before, model.parameters(), strict=True)]
    assert moved[-1]
    assert sum(moved) > len(moved) / 2
    found = trainer.predict(rows)
    with torch.no_grad():
        logits = model.eval()(pictures)
    torch.testing.assert_close(torch.from_numpy(found.predictions), logits, atol=1e-4, rtol=1e-4)
    expected = torch.nn.functional.cross_entropy(logits, torch.arange(24) % 7)
    assert found.metrics["test_loss"] == pytest.approx(float(expected), rel=1e-4)
    assert found.metrics["test_accuracy"] == (logits.argmax(1) == torch.arange(24) % 7).double().mean()
    unlabelled = [{"pixel_values": x} for x in pictures[:6]]  # in batches of 5 and of 1
    assert torch.from_numpy(trainer.predict(unlabelled).predictions).shape == (6, 7)
