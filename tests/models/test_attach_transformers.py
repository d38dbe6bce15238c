"""What only Hugging Face's classifiers do under `attach`; `test_attach_layers.py` tests them beside others."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from calattn.models.attach import Adapter, CalibratedModel, attach
from tests.models import hugging_face
from tests.models.hugging_face import VIT

transformers = pytest.importorskip("transformers")


def build() -> torch.nn.Module:
    torch.manual_seed(0)
    return hugging_face.build("ViT", num_classes=7, **VIT)


def images(n: int = 2) -> torch.Tensor:
    return torch.randn(n, 3, 64, 64, generator=torch.Generator().manual_seed(n))


def awake() -> CalibratedModel:
    model = attach(build().eval())
    with torch.no_grad():
        for parameter in model.head.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
    return model


def test_what_a_processor_gives() -> None:
    model = awake()
    processor = transformers.ViTImageProcessor(size={"height": 64, "width": 64})
    pictures = [np.full((80, 90, 3), shade, dtype=np.uint8) for shade in (10, 200)]
    inputs = processor(pictures, return_tensors="pt")
    assert torch.equal(model(**inputs), model(inputs["pixel_values"]))
    assert torch.equal(model(**inputs, output_hidden_states=True), model(**inputs))
    with pytest.raises(ValueError, match=r"labels=… asks for a loss of the uncalibrated logits"):
        model(**inputs, labels=torch.tensor([0, 1]))
    with pytest.raises(ValueError, match="returned tuple, neither logits"):
        model(**inputs, return_dict=False)


def test_gradient_checkpointing_changes_nothing() -> None:
    plain, saving = awake(), awake()
    saving.load_state_dict(plain.state_dict())
    saving.train().backbone.gradient_checkpointing_enable()
    for model in (plain.train(), saving):
        torch.manual_seed(2)
        model(pixel_values=images()).square().sum().backward()
    for first, second in zip(plain.parameters(), saving.parameters(), strict=True):
        assert torch.equal(first.grad, second.grad) if first.grad is not None else second.grad is None


def test_a_timm_network_in_transformers_clothes() -> None:
    config = transformers.TimmWrapperConfig(architecture="test_resnet", num_labels=7)
    net = transformers.TimmWrapperForImageClassification(config).eval()
    model = attach(net)
    assert model.adapter.layer == "timm_model.fc"
    assert torch.equal(model(pixel_values=images()), net(images()).logits)


def test_distilled_deit_needs_a_name() -> None:
    config = transformers.DeiTConfig(num_labels=7, **VIT)
    net = transformers.DeiTForImageClassificationWithTeacher(config).eval()
    with pytest.raises(ValueError, match=r"not the output of 'distillation_classifier'.*classifier='…'"):
        attach(net)(images())
    model = attach(net, classifier="cls_classifier")
    assert torch.equal(model(pixel_values=images()), net(images()).logits)


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
