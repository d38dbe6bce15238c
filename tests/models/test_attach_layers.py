"""`attach` on networks read through their last layer: torchvision's, a stand-in in the style of Hugging Face, and the real ones.

What is Hugging Face's alone is in `test_attach_transformers.py`.
"""

from __future__ import annotations

import copy
import dataclasses
import gc
import io
import threading
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn
from torchvision import models
from torchvision.models.convnext import CNBlockConfig
from torchvision.models.mobilenetv3 import InvertedResidualConfig
from torchvision.models.resnet import BasicBlock

from calattn.models.adapters import LayerAdapter
from calattn.models.attach import CalibratedModel, attach, overhead
from tests.models import hugging_face

_VIT = {"image_size": 64, "patch_size": 16, "num_layers": 2, "num_heads": 2, "hidden_dim": 32, "mlp_dim": 64}
_SWIN = {"patch_size": [4, 4], "embed_dim": 16, "depths": [1, 1], "num_heads": [2, 2], "window_size": [4, 4]}
_CONVNEXT = {"block_setting": [CNBlockConfig(8, 16, 1), CNBlockConfig(16, None, 1)], "stochastic_depth_prob": 0.5}
_MOBILENET = {
    "inverted_residual_setting": [
        InvertedResidualConfig(8, 3, 8, 8, True, "RE", 2, 1, 1.0),
        InvertedResidualConfig(8, 5, 16, 16, True, "HS", 2, 1, 1.0),
    ],
    "last_channel": 32,
}

# name: (what makes it, options, the layer that classifies, what that layer reads)
NETWORKS: dict[str, tuple[Callable[..., nn.Module], dict[str, Any], str, int]] = {
    "vit": (models.VisionTransformer, {**_VIT, "dropout": 0.1}, "heads.head", 32),
    "swin": (models.SwinTransformer, {**_SWIN, "dropout": 0.1}, "head", 32),
    "convnext": (models.ConvNeXt, _CONVNEXT, "classifier.2", 16),
    "densenet": (models.DenseNet, {"growth_rate": 8, "block_config": (1, 1), "drop_rate": 0.1}, "classifier", 44),
    "resnet": (models.ResNet, {"block": BasicBlock, "layers": [1, 1, 1, 1]}, "fc", 512),
    "efficientnet_b0": (models.efficientnet_b0, {}, "classifier.1", 1280),
    "mobilenet": (models.MobileNetV3, _MOBILENET, "classifier.3", 32),
    "shufflenet": (models.shufflenet_v2_x0_5, {}, "fc", 1024),
    "regnet": (models.regnet_x_400mf, {}, "fc", 400),
    "googlenet": (models.googlenet, {"aux_logits": False, "init_weights": False}, "fc", 1024),
}


@dataclasses.dataclass
class Output:
    """Like transformers' ImageClassifierOutput."""

    logits: torch.Tensor
    loss: torch.Tensor | None = None
    hidden_states: tuple[torch.Tensor, ...] | None = None


class StandIn(nn.Module):
    """Like ViTForImageClassification: called by keyword, returns an object, computes a loss where labels are given."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.dropout, self.classifier = nn.Conv2d(3, 16, 16, 16), nn.Dropout(0.5), nn.Linear(16, 7)

    def forward(
        self,
        pixel_values: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        output_hidden_states: bool = False,
    ) -> Output:
        if pixel_values is None:
            raise ValueError("You have to specify pixel_values")
        tokens = self.dropout(self.embed(pixel_values).flatten(2).transpose(1, 2))
        logits = self.classifier(tokens.mean(1))
        loss = None if labels is None else nn.functional.cross_entropy(logits, labels)
        return Output(logits, loss, (tokens,) if output_hidden_states else None)


NETWORKS["stand-in"] = (lambda num_classes: StandIn(), {}, "classifier", 16)  # noqa: ARG005
NETWORKS |= hugging_face.NETWORKS
KEYWORD = {"stand-in", *hugging_face.NETWORKS}  # their images are called pixel_values
FEW = ["vit", "mobilenet", "stand-in"]
MORE = [*FEW, *hugging_face.FEW]


def build(key: str) -> nn.Module:
    torch.manual_seed(0)
    make, options, _, _ = NETWORKS[key]
    return make(num_classes=7, **options)


def images(n: int = 2) -> torch.Tensor:
    return torch.randn(n, 3, 64, 64, generator=torch.Generator().manual_seed(n))


def logits_of(output: Any) -> torch.Tensor:
    return getattr(output, "logits", output)


def awake(key: str) -> CalibratedModel:
    return hugging_face.shaken(attach(build(key).eval()))


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("key", NETWORKS)
def test_drop_in(key: str, training: bool) -> None:
    """Logits and statistics are those of one pass of the bare network, under its own random masks."""
    net, twin = build(key).train(training), build(key).train(training)
    model = attach(net)
    calls: list[torch.Tensor] = []
    twin.get_submodule(model.adapter.layer).register_forward_pre_hook(lambda _, inputs: calls.append(inputs[0]))
    torch.manual_seed(1)
    expected = logits_of(twin(images()))
    hooks = [(len(module._forward_hooks), len(module._forward_pre_hooks)) for module in net.modules()]
    passes = []
    counter = net.register_forward_hook(lambda *_: passes.append(1))
    torch.manual_seed(1)
    out = model.output(images())
    counter.remove()
    assert len(passes) == 1
    assert torch.equal(out.calibrated_logits, expected)
    assert torch.equal(out.features, calls[0])
    assert all(torch.equal(value, twin.state_dict()[name]) for name, value in net.state_dict().items())
    assert [(len(module._forward_hooks), len(module._forward_pre_hooks)) for module in net.modules()] == hooks


@pytest.mark.slow
def test_every_torchvision_architecture() -> None:
    """The first by name of each class; SqueezeNet has no linear layer. Regnets cannot be built on the meta device."""
    names = [name for name in models.list_models(module=models) if not name.startswith(("squeezenet", "regnet"))]
    firsts: dict[str, str] = {}
    for name in names:
        with torch.device("meta"):
            firsts.setdefault(type(models.get_model(name)).__name__, name)
    assert len(firsts) >= 15
    for name in [*firsts.values(), "regnet_x_400mf", "regnet_y_400mf", "swin_v2_t", "efficientnet_v2_s", "resnet50"]:
        net = models.get_model(name, num_classes=7).eval()
        pixels = 224 if name in ("vit_b_16", "maxvit_t") else 299  # Inception v3 takes no less
        large = torch.randn(1, 3, pixels, pixels)
        with torch.no_grad():
            assert torch.equal(attach(net)(large), net(large)), name


@pytest.mark.parametrize("key", NETWORKS)
def test_the_last_layer_is_found(key: str) -> None:
    _, _, layer, width = NETWORKS[key]
    model = attach(build(key))
    assert (model.adapter.layer, model.adapter.num_features, model.num_classes) == (layer, width, 7)
    cost = overhead(model)
    assert cost.added_params == 128 * width + 128 + 128 + 1
    assert cost.backbone_params == sum(p.numel() for p in model.backbone.parameters())


@pytest.mark.parametrize("key", NETWORKS)
def test_gradients(key: str) -> None:
    """The scale alone pulls on the head and, through the features, on the body, but not on the classifier."""
    model = awake(key).train()
    model.output(images()).scale.sum().backward()
    assert all(p.grad is not None and p.grad.any() for p in model.head.parameters())
    assert any(p.grad is not None and p.grad.any() for p in model.backbone.parameters())
    assert model.backbone.get_submodule(model.adapter.layer).weight.grad is None


def test_a_replaced_classifier() -> None:
    """As one fine-tunes torchvision's networks; Swin goes on saying num_classes=7."""
    net = build("swin")
    net.head = nn.Linear(32, 3)
    model = attach(net)
    assert net.num_classes == 7
    assert model.num_classes == 3
    assert model(images()).shape == (2, 3)


def test_keywords_reach_the_backbone() -> None:
    model = awake("stand-in")
    expected = model(images())
    assert torch.equal(model(pixel_values=images()).logits, expected)
    assert torch.equal(model(pixel_values=images(), output_hidden_states=True)["logits"], expected)
    assert torch.equal(model.output(pixel_values=images()).calibrated_logits, expected)
    assert torch.equal(model(images(), labels=None), expected)
    with pytest.raises(ValueError, match="specify pixel_values"):
        model()
    with pytest.raises(TypeError, match="pixels"):
        model(pixels=images())


def test_labels_give_the_loss_of_the_calibrated_logits() -> None:
    model, labels = awake("stand-in"), torch.tensor([0, 1])
    expected = nn.functional.cross_entropy(model(images()), labels)
    for out in (model(pixel_values=images(), labels=labels), model(images(), labels=labels)):
        assert list(out) == ["loss", "logits"]
        torch.testing.assert_close(out.loss, expected)
    assert not torch.isclose(expected, model.backbone(images(), labels).loss)
    model.loss_function = lambda logits, labels: logits[:, 0].sum() + labels.sum()
    assert torch.equal(model(images(), labels=labels).loss, model(images())[:, 0].sum() + 1)
    with pytest.raises(AttributeError, match="scale"):
        _ = model(pixel_values=images()).scale
    with pytest.raises(ValueError, match=r"loss of the uncalibrated logits; pass labels to model"):
        model.output(pixel_values=images(), labels=labels)


@pytest.mark.parametrize("key", MORE)
def test_deepcopy_state_dict_and_pickle(key: str) -> None:
    model = awake(key)
    expected = model(images())
    twin, other = copy.deepcopy(model), attach(build(key).eval())
    assert {name.split(".")[0] for name in model.state_dict()} == {"backbone", "head"}
    assert {f"backbone.{name}" for name in build(key).state_dict()} <= set(model.state_dict())
    other.load_state_dict(model.state_dict())
    with torch.no_grad():
        model.backbone.get_submodule(model.adapter.layer).bias.add_(1)
    for copied in (twin, other):
        assert torch.equal(copied(images()), expected)
    assert not torch.equal(model(images()), expected)
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    assert torch.equal(torch.load(file, weights_only=False)(images()), model(images()))


@pytest.mark.usefixtures("untyped")
@pytest.mark.parametrize("key", [pytest.param(key, marks=[pytest.mark.slow] * (key not in MORE)) for key in NETWORKS])
def test_compile_in_one_graph(key: str) -> None:
    """All go through the same adapter; of the usual families a few show it, as compiling takes seconds each."""
    model = awake(key)
    names, layer = list(model.state_dict()), model.backbone.get_submodule(model.adapter.layer)
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    inputs = {"pixel_values" if key in KEYWORD else "x": images()}
    for _ in range(3):
        torch.testing.assert_close(logits_of(compiled(**inputs)), model(images()))
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1
    logits_of(compiled(**inputs)).sum().backward()
    assert model.head.mlp.fc1.weight.grad is not None
    assert list(model.state_dict()) == names
    assert model.backbone.get_submodule(model.adapter.layer) is layer


@pytest.mark.usefixtures("untyped")
@pytest.mark.parametrize(("key", "strict"), [*((key, False) for key in MORE), *((key, True) for key in FEW)])
def test_export_with_any_batch_size(key: str, strict: bool) -> None:
    """By position: torch.export cannot name the sizes of what goes through `**inputs`."""
    model = awake(key)
    shapes = {"x": {0: torch.export.Dim.DYNAMIC}}
    program = torch.export.export(model, (images(),), dynamic_shapes=shapes, strict=strict)
    torch.testing.assert_close(program.module()(images(5)), model(images(5)))
    assert not any(module._forward_hooks for module in model.modules())


@pytest.mark.parametrize("key", FEW)
def test_nothing_is_kept(key: str) -> None:
    """No activation outlives the caller's own references, without help from the garbage collector."""
    model = awake(key)
    gc.disable()
    try:
        out = model.output(images())
        features, logits = weakref.ref(out.features), weakref.ref(out.logits)
        assert features() is not None
        del out
        assert (features(), logits()) == (None, None)
    finally:
        gc.enable()


def test_a_failed_pass_leaves_no_hook() -> None:
    model = attach(build("resnet"))
    with pytest.raises(RuntimeError):
        model(torch.zeros(2, 5, 64, 64))
    assert not model.backbone.fc._forward_hooks


def test_threads_and_replicas_read_their_own_pass() -> None:
    """DataParallel runs replicas, which share their hooks, in threads; the layers meet here at a barrier."""
    net, _barrier = build("stand-in").eval(), threading.Barrier(4, timeout=30)
    model = attach(net)
    batches = [images(n) for n in (1, 2, 3, 4)]
    expected = [model.output(batch) for batch in batches]
    net.embed.register_forward_hook(lambda *_: None)
    found: dict[int, Any] = {}

    def replica() -> CalibratedModel:
        twin = model._replicate_for_data_parallel()
        twin.backbone = net._replicate_for_data_parallel()
        twin.backbone._modules = {name: m._replicate_for_data_parallel() for name, m in net._modules.items()}
        for name, module in net._modules.items():
            twin.backbone._modules[name]._parameters = dict(module._parameters)
        return twin

    def work(i: int) -> None:
        found[i] = (model if i % 2 else replica()).output(batches[i])

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for i, out in enumerate(expected):
        assert torch.equal(found[i].features, out.features)
        assert torch.equal(found[i].calibrated_logits, out.calibrated_logits)
    assert not net.classifier._forward_hooks


class TwoHeads(nn.Module):
    """The mean of two classifiers, as distilled DeiT has it."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.first, self.second = nn.Linear(12, 8), nn.Linear(8, 7), nn.Linear(8, 7)
        self.spare = nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        z = self.body(x.flatten(1)).relu()
        return (self.first(z) + self.second(z)) / 2


def test_a_named_layer() -> None:
    net, x = TwoHeads(), torch.randn(2, 3, 2, 2)
    with pytest.raises(ValueError, match=r"logits of TwoHeads are not the output of 'second'.*classifier='…'"):
        attach(net)(x)
    model = attach(net, classifier="first")
    assert torch.equal(model(x), net(x))
    assert torch.equal(model.output(x).features, net.body(x.flatten(1)).relu())
    wide = attach(net, adapter=LayerAdapter(layer="body", num_features=12))
    assert torch.equal(wide.output(x).features, x.flatten(1))
    assert torch.equal(attach(net, head="dirichlet", classifier="first")(x), net(x))


def test_errors_of_attach_say_what_to_do() -> None:
    net = TwoHeads()
    with pytest.raises(ValueError, match=r"TwoHeads has no layer 'fc'; its last linear ones are body, first, second"):
        attach(net, classifier="fc")
    with pytest.raises(
        ValueError, match=r"classifier='spare' is a Identity.*LayerAdapter\(layer='spare', num_features=…"
    ):
        attach(net, classifier="spare")
    with pytest.raises(ValueError, match="both define how to read"):
        attach(net, classifier="first", adapter=LayerAdapter(layer="first", num_features=8))
    with pytest.raises(ValueError, match=r"offers: 'cls'; 'concat' needs patch tokens, .*input of 'second'"):
        attach(net, features="concat")
    with pytest.raises(ValueError, match=r"SqueezeNet.*holds no nn.Linear; pass adapter=Adapter"):
        attach(models.squeezenet1_1(num_classes=7))
    for wrapped, name in ((nn.DataParallel(net), "module"), (torch.compile(net), "_orig_mod")):
        with pytest.raises(ValueError, match=rf"attach to its \.{name} \(TwoHeads\), then wrap"):
            attach(wrapped)


@pytest.mark.parametrize(
    ("net", "options", "message"),
    [
        (TwoHeads(), {"adapter": LayerAdapter(layer="spare", num_features=8)}, "layer 'spare' of TwoHeads did not run"),
        (TwoHeads(), {"classifier": "body"}, "gives 7 logits, its layer 'body' 8"),
        (TwoHeads(), {"adapter": LayerAdapter(layer="body", num_features=9)}, r"'body' of TwoHeads reads \[2, 12\]"),
        (nn.Sequential(nn.Flatten(2), nn.Linear(4, 7)), {}, r"Sequential returned shape \[2, 3, 7\]"),
        (nn.Sequential(nn.LSTM(2, 3)), {"adapter": LayerAdapter(layer="0", num_features=2)}, "returned tuple, neither"),
        (
            nn.Sequential(nn.Flatten(2), nn.Linear(4, 7), nn.AdaptiveAvgPool2d((1, 7)), nn.Flatten()),
            {"classifier": "1"},
            r"'1' of Sequential reads \[2, 3, 4\], not one vector \[b, 4\] an image",
        ),
        (
            nn.Sequential(nn.Flatten(0, 2), nn.Linear(2, 7), nn.Unflatten(0, (2, 6)), nn.Flatten()),
            {"adapter": LayerAdapter(layer="1", num_features=2)},
            r"reads \[12, 2\], not one vector",
        ),
    ],
)
def test_errors_of_a_pass_say_what_to_do(net: nn.Module, options: dict[str, Any], message: str) -> None:
    x = torch.zeros(2, 3, 2, 2)
    with pytest.raises(ValueError, match=message):
        attach(net, **options)(x[0] if isinstance(net[0] if isinstance(net, nn.Sequential) else net, nn.LSTM) else x)


def test_a_layer_that_runs_twice() -> None:
    shared = nn.Linear(12, 12)
    with pytest.raises(ValueError, match=r"ran its layer '1' 2 times in a pass"):
        attach(nn.Sequential(nn.Flatten(), shared, shared))(torch.zeros(2, 3, 2, 2))


def test_a_network_compiled_before() -> None:
    """Dynamo does not look whether hooks came since; the answer is an error, not stale features."""
    net = build("stand-in").eval()
    net.compile(backend="eager")
    net(images())
    with pytest.raises(ValueError, match=r"did not run.*compile the attached model instead"):
        attach(net)(images())


def test_auxiliary_logits_are_not_dropped_in_silence() -> None:
    net = models.googlenet(num_classes=7, init_weights=False).train()
    model = attach(net)
    with pytest.raises(ValueError, match="auxiliary logits too, whose loss would be lost; set its aux_logits to False"):
        model(images())
    net.aux_logits = False
    assert model(images()).shape == (2, 7)
    net.aux_logits = True
    assert torch.equal(model.eval()(images()), net(images()))


def test_auxiliary_logits_that_are_not_there_are_not_missed() -> None:
    class Output(NamedTuple):
        logits: torch.Tensor
        aux_logits: torch.Tensor | None

    class Network(nn.Sequential):
        def forward(self, x: torch.Tensor) -> Output:
            return Output(super().forward(x), None)

    net = Network(nn.Flatten(), nn.Linear(12, 3))
    x = torch.randn(2, 3, 2, 2)
    assert torch.equal(attach(net)(x), net(x).logits)
