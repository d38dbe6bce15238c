"""`attach` on the real Hugging Face classifiers: small configurations, random weights, nothing downloaded.

transformers is no dependency, not even for development (125 MB). To run these tests:
`.venv/bin/pip install -c requirements.lock transformers`.
"""

from __future__ import annotations

import copy
import io
from typing import Any

import numpy as np
import pytest
import torch

from calattn.models.attach import Adapter, CalibratedModel, attach, overhead

transformers = pytest.importorskip("transformers")

_VIT = {
    "image_size": 64,
    "patch_size": 16,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "hidden_dropout_prob": 0.1,
}
_SWIN = {"image_size": 64, "embed_dim": 8, "depths": [1, 1], "num_heads": [2, 2], "window_size": 4}
_STAGES = {"hidden_sizes": [8, 8, 16, 16], "depths": [1, 1, 1, 1]}
_BASIC = {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1], "layer_type": "basic"}

# name: (options of its configuration, the layer that classifies, what that layer reads)
FAMILIES: dict[str, tuple[dict[str, Any], str, int]] = {
    "ViT": (_VIT, "classifier", 32),
    "DeiT": (_VIT, "classifier", 32),
    "Beit": (_VIT, "classifier", 32),
    "Dinov2": (_VIT, "classifier", 64),  # class token and mean of the patches
    "Dinov2WithRegisters": (_VIT, "classifier", 64),
    "Swin": (_SWIN, "classifier", 16),
    "Swinv2": (_SWIN, "classifier", 16),
    "ConvNext": (_STAGES, "classifier", 16),
    "ConvNextV2": (_STAGES, "classifier", 16),
    "ResNet": (_BASIC, "classifier.1", 16),
    "RegNet": ({**_STAGES, "embedding_size": 8, "groups_width": 8}, "classifier.1", 16),
    "MobileNetV2": ({"depth_multiplier": 0.25}, "classifier", 1280),
    "PoolFormer": ({"hidden_sizes": [8, 8, 16, 16], "depths": [1, 1, 1, 1]}, "classifier", 16),
}
FEW = ["ViT", "Swin", "ResNet"]


def build(name: str) -> torch.nn.Module:
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(num_labels=7, **FAMILIES[name][0])
    return getattr(transformers, f"{name}ForImageClassification")(config)


def images(n: int = 2) -> torch.Tensor:
    return torch.randn(n, 3, 64, 64, generator=torch.Generator().manual_seed(n))


def awake(name: str) -> CalibratedModel:
    model = attach(build(name).eval())
    with torch.no_grad():
        for parameter in model.head.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
    return model


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("name", FAMILIES)
def test_drop_in(name: str, training: bool) -> None:
    """Logits and statistics are those of one pass of the bare network, under its own random masks."""
    net, twin = build(name).train(training), build(name).train(training)
    model = attach(net)
    _, layer, width = FAMILIES[name]
    assert (model.adapter.layer, model.adapter.num_features, model.num_classes) == (layer, width, 7)
    read: list[torch.Tensor] = []
    twin.get_submodule(layer).register_forward_pre_hook(lambda _, inputs: read.append(inputs[0]))
    torch.manual_seed(1)
    expected = twin(pixel_values=images()).logits
    passes = []
    counter = net.register_forward_hook(lambda *_: passes.append(1))
    torch.manual_seed(1)
    out = model.output(pixel_values=images())
    counter.remove()
    assert len(passes) == 1
    assert torch.equal(out.calibrated_logits, expected)
    assert torch.equal(out.features, read[0])
    assert all(torch.equal(value, twin.state_dict()[key]) for key, value in net.state_dict().items())


@pytest.mark.parametrize("name", FAMILIES)
def test_gradients(name: str) -> None:
    model = awake(name).train()
    model.output(images()).scale.sum().backward()
    assert all(p.grad is not None and p.grad.any() for p in model.head.parameters())
    assert any(p.grad is not None and p.grad.any() for p in model.backbone.parameters())
    assert model.backbone.get_submodule(model.adapter.layer).weight.grad is None


def test_what_a_processor_gives() -> None:
    model = awake("ViT")
    processor = transformers.ViTImageProcessor(size={"height": 64, "width": 64})
    pictures = [np.full((80, 90, 3), shade, dtype=np.uint8) for shade in (10, 200)]
    inputs = processor(pictures, return_tensors="pt")
    assert torch.equal(model(**inputs), model(inputs["pixel_values"]))
    assert torch.equal(model(**inputs, output_hidden_states=True), model(**inputs))
    with pytest.raises(ValueError, match=r"labels=… asks for a loss of the uncalibrated logits"):
        model(**inputs, labels=torch.tensor([0, 1]))
    with pytest.raises(ValueError, match="returned tuple, neither logits"):
        model(**inputs, return_dict=False)


@pytest.mark.usefixtures("untyped")
@pytest.mark.parametrize("name", FAMILIES)
def test_compile_in_one_graph(name: str) -> None:
    model = awake(name)
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    for _ in range(2):
        torch.testing.assert_close(compiled(pixel_values=images()), model(images()))
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1
    compiled(pixel_values=images()).sum().backward()
    assert model.head.mlp.fc1.weight.grad is not None


@pytest.mark.usefixtures("untyped")
@pytest.mark.parametrize("name", FEW)
def test_export_with_any_batch_size(name: str) -> None:
    model = awake(name)
    program = torch.export.export(model, (images(),), dynamic_shapes=({0: torch.export.Dim.DYNAMIC},))
    torch.testing.assert_close(program.module()(images(5)), model(images(5)))


@pytest.mark.parametrize("name", FEW)
def test_deepcopy_save_and_cost(name: str) -> None:
    model = awake(name)
    twin, other = copy.deepcopy(model), attach(build(name).eval())
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    other.load_state_dict(torch.load(file, weights_only=True))
    assert torch.equal(twin(images()), model(images()))
    assert torch.equal(other(images()), model(images()))
    assert overhead(model).added_params == 128 * FAMILIES[name][2] + 128 + 128 + 1


def test_gradient_checkpointing_changes_nothing() -> None:
    plain, saving = awake("ViT"), awake("ViT")
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
    config = transformers.DeiTConfig(num_labels=7, **_VIT)
    net = transformers.DeiTForImageClassificationWithTeacher(config).eval()
    with pytest.raises(ValueError, match=r"not the output of 'distillation_classifier'.*classifier='…'"):
        attach(net)(images())
    model = attach(net, classifier="cls_classifier")
    assert torch.equal(model(pixel_values=images()), net(images()).logits)


def test_an_encoder_has_no_logits() -> None:
    net = transformers.ViTModel(transformers.ViTConfig(**_VIT))
    with pytest.raises(ValueError, match=r"ViTModel returned BaseModelOutputWithPooling, neither logits"):
        attach(net)(images())


@pytest.mark.parametrize("features", ["patch_mean", "concat"])
def test_patch_tokens_through_an_adapter(features: str) -> None:
    """The example of docs/attach.md, on the network that it imitates."""

    def read(net: Any, pixel_values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        tokens = net.vit(pixel_values).last_hidden_state
        return tokens[:, 0], tokens[:, 1:]

    net = build("ViT").eval()
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
