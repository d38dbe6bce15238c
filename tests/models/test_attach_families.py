"""`attach` over timm's families: tiny instances, each against its own bare network."""

from __future__ import annotations

import copy
import functools
from typing import Any, NamedTuple

import pytest
import timm
import torch
from torch import nn

from calattn.models.attach import attach


class Family(NamedTuple):
    """A tiny instance of a timm family; `prefix` is how many tokens precede the patches, None where pooled."""

    name: str
    options: dict[str, Any]
    pixels: int = 32
    prefix: int | None = None


_VIT = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 2}
_SWIN = {"img_size": 32, "window_size": 4, "embed_dim": 16, "depths": (1, 1), "num_heads": (2, 2)}
_FOUR = (1, 1, 1, 1)
_DIMS = (16, 16, 32, 32)

WITH_TOKENS = {
    "vit": Family("vit_tiny_patch16_224", _VIT, prefix=1),
    "vit_dinov2_registers": Family("vit_small_patch14_reg4_dinov2", _VIT, prefix=5),
    "vit_siglip_map_pool": Family("vit_base_patch16_siglip_224", _VIT, prefix=0),
    "deit": Family("deit_tiny_patch16_224", _VIT, prefix=1),
    "deit_distilled": Family("deit_tiny_distilled_patch16_224", _VIT, prefix=2),
    "deit3": Family("deit3_small_patch16_224", _VIT, prefix=1),
    "eva02_token": Family("eva02_tiny_patch14_224", {**_VIT, "global_pool": "token"}, prefix=1),
    "beit_token": Family("beit_base_patch16_224", {**_VIT, "global_pool": "token"}, prefix=1),
    "cait": Family("cait_xxs24_224", _VIT, prefix=1),
    "xcit": Family("xcit_nano_12_p16_224", {**_VIT, "img_size": 64, "patch_size": 16}, 64, prefix=1),
    "convit": Family("convit_tiny", {**_VIT, "local_up_to_layer": 1}, prefix=1),
    "tnt": Family(
        "tnt_s_patch16_224",
        {"img_size": 64, "embed_dim": 32, "inner_dim": 8, "depth": 2, "num_heads_inner": 2, "num_heads_outer": 2},
        64,
        prefix=1,
    ),
    "coat_lite": Family(
        "coat_lite_tiny", {"img_size": 64, "embed_dims": (16, 32, 32, 64), "serial_depths": _FOUR}, 64, 1
    ),
    "volo": Family("volo_d1_224", {"img_size": 64}, 64, prefix=1),
}
_PIT = {"img_size": 64, "base_dims": (8, 8, 8), "depth": (1, 1, 1), "heads": (2, 2, 2)}
CLS_ONLY = {  # a class token, but forward_features gives no patch tokens beside it
    "pit": Family("pit_ti_224", _PIT, 64, prefix=1),
    "pit_distilled": Family("pit_ti_distilled_224", _PIT, 64, prefix=2),
    "crossvit": Family("crossvit_tiny_240", {"img_size": 240}, 240, prefix=1),
}
POOLED = {
    "beit": Family("beit_base_patch16_224", _VIT),
    "eva02": Family("eva02_tiny_patch14_224", _VIT),
    "vit_relpos": Family("vit_relpos_small_patch16_224", _VIT),
    "vit_avg_pool": Family("vit_tiny_patch16_224", {**_VIT, "global_pool": "avg"}),
    "swin": Family("swin_tiny_patch4_window7_224", _SWIN),
    "swinv2": Family("swinv2_tiny_window8_256", _SWIN),
    "maxvit": Family("maxvit_rmlp_pico_rw_256", {"img_size": 64}, 64),
    "levit_distilled": Family("levit_128s", {"img_size": 64}, 64),
    "twins": Family(
        "twins_svt_small", {"img_size": 64, "embed_dims": _DIMS, "depths": _FOUR, "num_heads": (1, 2, 2, 4)}, 64
    ),
    "pvt_v2": Family("pvt_v2_b0", {"depths": _FOUR}, 64),
    "davit": Family("davit_tiny", {"depths": _FOUR, "embed_dims": _DIMS, "num_heads": (1, 1, 2, 2)}, 64),
    "hiera": Family("hiera_tiny_224", {"img_size": (64, 64), "stages": _FOUR, "embed_dim": 16}, 64),
    "sequencer": Family("sequencer2d_s", {"layers": _FOUR}, 64),
    "samvit": Family("samvit_base_patch16", {**_VIT, "img_size": 64, "global_attn_indexes": (1,)}, 64),
    "convnext": Family("convnext_atto", {"depths": _FOUR, "dims": _DIMS}, 64),
    "resnet": Family("test_resnet", {}, 64),
    "resnetv2": Family("resnetv2_18", {"layers": _FOUR, "channels": _DIMS, "stem_chs": 8}, 64),
    "efficientnet": Family("test_efficientnet", {}, 64),
    "mobilenetv3": Family("mobilenetv3_small_050", {}, 64),
    "mobilenetv4": Family("mobilenetv4_conv_small_035", {}, 64),
    "densenet": Family("densenet121", {"growth_rate": 8, "block_config": _FOUR}, 64),
    "regnet": Family("regnetx_002", {}, 64),
    "nfnet": Family("test_nfnet", {}, 64),
    "mambaout": Family("test_mambaout", {}, 64),
    "repvit": Family("repvit_m0_9", {"embed_dim": _DIMS, "depth": _FOUR}, 64),
    "ghostnet": Family("ghostnet_050", {}, 64),
    "efficientvit": Family("efficientvit_b0", {}, 64),
    "edgenext": Family("edgenext_xx_small", {}, 64),
    "dla": Family("dla46_c", {}, 64),
    "swiftformer": Family("swiftformer_xs", {}, 64),
}
FAMILIES = {**WITH_TOKENS, **CLS_ONLY, **POOLED}


@functools.cache
def build(key: str) -> nn.Module:
    torch.manual_seed(0)
    return timm.create_model(FAMILIES[key].name, num_classes=7, **FAMILIES[key].options).eval()


def make(key: str) -> tuple[nn.Module, torch.Tensor]:
    """A copy of the network, because drawing its weights takes longer than all the rest."""
    pixels = FAMILIES[key].pixels
    return copy.deepcopy(build(key)), torch.randn(2, 3, pixels, pixels, generator=torch.Generator().manual_seed(0))


def test_enough_families() -> None:
    assert len({family.name for family in FAMILIES.values()}) >= 40


@pytest.mark.parametrize("key", FAMILIES)
def test_drop_in(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Outputs equal the bare network's, features are what its classifier reads, and the body runs once."""
    backbone, images = make(key)
    model = attach(backbone)
    seen: list[torch.Tensor] = []
    classifier = backbone.get_classifier()
    if isinstance(classifier, nn.Linear):
        handle = classifier.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    with torch.no_grad():
        bare = backbone(images)
    if isinstance(classifier, nn.Linear):
        handle.remove()
    passes = []
    body = backbone.forward_features
    monkeypatch.setattr(backbone, "forward_features", lambda *args: (passes.append(1), body(*args))[1])
    with torch.no_grad():
        out = model.output(images)
    assert len(passes) == 1
    assert torch.equal(out.calibrated_logits, bare)
    assert out.features.shape == (2, model.head.mlp.fc1.in_features)
    if seen:
        assert torch.equal(out.features, seen[0])
    else:
        assert torch.equal(out.features, backbone.forward_head(body(images), pre_logits=True))


@pytest.mark.parametrize("key", FAMILIES)
def test_gradients(key: str) -> None:
    """The scale alone pulls on the head and, through the features, on the backbone."""
    backbone, images = make(key)
    model = attach(backbone).train()
    with torch.no_grad():
        model.head.mlp.fc2.weight.normal_()
    model.output(images).scale.sum().backward()
    for parameter in model.head.parameters():
        assert parameter.grad is not None
        assert parameter.grad.abs().sum() > 0
    assert any(p.grad is not None and p.grad.abs().sum() > 0 for p in backbone.parameters())
    model.zero_grad()
    nn.functional.cross_entropy(model(images), torch.tensor([0, 1])).backward()
    classifiers = [
        p for name, p in backbone.named_parameters() if "head" in name or "fc" in name or "classifier" in name
    ]
    assert any(p.grad is not None and p.grad.abs().sum() > 0 for p in classifiers or backbone.parameters())


@pytest.mark.parametrize("key", WITH_TOKENS)
def test_patch_tokens_come_after_the_prefix(key: str) -> None:
    family = WITH_TOKENS[key]
    backbone, images = make(key)
    with torch.no_grad():
        tokens = backbone.forward_features(images)
        cls = attach(backbone).output(images).features
        patch_mean = attach(backbone, features="patch_mean").output(images).features
        concat = attach(backbone, features="concat").output(images)
        bare = backbone(images)
    assert tokens.shape[1] - family.prefix == int((tokens.shape[1] - family.prefix) ** 0.5) ** 2  # a square grid
    torch.testing.assert_close(patch_mean, tokens[:, family.prefix :].mean(1), rtol=0, atol=0)
    assert not torch.allclose(patch_mean, cls, atol=1e-3)
    assert torch.equal(concat.features, torch.cat([cls, patch_mean], dim=1))
    assert torch.equal(concat.calibrated_logits, bare)


@pytest.mark.parametrize("key", POOLED)
def test_pooled_networks_have_one_representation(key: str) -> None:
    backbone, images = make(key)
    with torch.no_grad():
        cls = attach(backbone).output(images).features
        assert torch.equal(attach(backbone, features="patch_mean").output(images).features, cls)
    with pytest.raises(ValueError, match=r"offers: 'cls', 'patch_mean'; 'concat' needs a class token"):
        attach(backbone, features="concat")


@pytest.mark.parametrize("key", CLS_ONLY)
def test_class_token_without_patches(key: str) -> None:
    backbone, images = make(key)
    with pytest.raises(ValueError, match="it offers only 'cls'"):
        attach(backbone, features="concat")(images)


def shaken(network: nn.Module) -> nn.Module:
    """Running statistics moved: a norm layer left out of a head then shows, as it hardly would at its start."""
    generator = torch.Generator().manual_seed(0)
    for name, buffer in network.named_buffers():
        if name.endswith("running_var"):
            buffer *= 1 + 0.2 * torch.rand(buffer.shape, generator=generator)
    return network


@pytest.mark.parametrize("name", ["efficientvit_m0", "shvit_s1"])
def test_a_linear_layer_behind_a_norm_is_not_the_whole_head(name: str) -> None:
    backbone = shaken(timm.create_model(name, num_classes=7).eval())
    images = torch.randn(1, 3, 224, 224)
    with torch.no_grad():
        assert torch.equal(attach(backbone)(images), backbone(images))


@pytest.mark.slow
@pytest.mark.parametrize("module", timm.list_modules())
def test_every_timm_module(module: str) -> None:
    """One network of each of timm's modules at its own resolution; encoders without a classifier are skipped."""
    for name in timm.list_models(module=module):
        with torch.device("meta"):
            candidate = timm.create_model(name, num_classes=7)
        if hasattr(candidate, "get_classifier") and sum(p.numel() for p in candidate.parameters()) < 1e8:
            break
    else:
        pytest.skip("no classifier below 100 M parameters")
    backbone = shaken(timm.create_model(name, num_classes=7).eval())
    images = torch.randn(1, *backbone.default_cfg["input_size"])
    with torch.no_grad():
        assert torch.equal(attach(backbone)(images), backbone(images))
