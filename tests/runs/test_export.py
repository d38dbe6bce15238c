"""Exported files: they run where calattn is not, and say what the classifier says."""

from __future__ import annotations

import json
import subprocess
import sys

import onnxruntime
import pytest
import torch

import calattn
from calattn.posthoc import IsotonicCalibration, VectorScaling
from calattn.runs import build
from calattn.runs.classifier import Classifier, config_of
from calattn.runs.export import Exportable, ExportError, export
from calattn.runs.interface import Interface
from calattn.runs.spec import ModelSpec
from tests.cli_runner import invoke
from tests.small_runs import CPU, TAUGHT, small_spec

pytestmark = pytest.mark.usefixtures("untyped")

TINY = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 1, "num_heads": 2}
SWIN = {"img_size": 32, "window_size": 4, "embed_dim": 16, "depths": (2, 1), "num_heads": (2, 4)}
NETWORKS = {
    "vit": ("vit_tiny_patch16_224", TINY),  # as DeiT is, by another name
    "swin": ("swin_tiny_patch4_window7_224", SWIN),
    "resnet": ("resnet8_cifar", {}),
}


def classifier(name: str, head: str = "taught") -> Classifier:
    """A network of the family with a head that does something: no two images have the same temperature."""
    backbone, options = NETWORKS[name]
    takes = Interface(
        class_names=tuple("abcde"),
        channels=3,
        size=32,
        mean=(0.5, 0.4, 0.3),
        std=(0.2, 0.25, 0.3),
        interpolation="bicubic",
    )
    chosen = ModelSpec(backbone=backbone, head=head, hidden=16, options=options)
    spec = small_spec(f"model.head={head}").model_copy(update={"model": chosen})
    model = build.build_model(spec, num_classes=5, channels=3, size=32)
    generator = torch.Generator().manual_seed(1)
    for tensor in model.head.state_dict().values():
        tensor.copy_(torch.randn(tensor.shape, generator=generator) * 0.3)
    return Classifier(model, config_of(model, chosen, takes))


def pixels(count: int) -> torch.Tensor:
    return torch.randint(0, 256, (count, 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(count))


@pytest.mark.parametrize("name", NETWORKS)
def test_onnx_says_what_the_classifier_says(tmp_path, name):
    model = classifier(name)
    made = export(model, tmp_path / "net.onnx")
    assert made.difference < 1e-4
    session = onnxruntime.InferenceSession(tmp_path / "net.onnx")
    for count in (1, 4):
        probs, scale = session.run(["probabilities", "temperature"], {"images": pixels(count).numpy()})
        want, temperature = model(model.augment.test(pixels(count)))
        torch.testing.assert_close(torch.from_numpy(probs), want, atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(torch.from_numpy(scale), temperature, atol=1e-4, rtol=1e-4)
    assert len(set(temperature.tolist())) == 4
    known = session.get_modelmeta().custom_metadata_map
    assert json.loads(known["class_names"]) == list("abcde")
    assert json.loads(known["images"]) == {"channels": 3, "size": 32, "dtype": "uint8"}


def test_a_program_of_torch_runs_without_calattn(tmp_path):
    wanted = {}
    for name in ("swin", "resnet"):
        model = classifier(name)
        export(model, tmp_path / f"{name}.pt2", pixels=False)
        images = model.augment.test(pixels(3))
        torch.save(images, tmp_path / f"{name}.images")
        wanted[name] = model(images)
    code = (
        "import sys, torch\nfor name in sys.argv[1:]:\n    program = torch.export.load(f'{name}.pt2').module()\n"
        "    torch.save(program(torch.load(f'{name}.images')), f'{name}.found')\nsys.exit('calattn' in sys.modules)"
    )
    line = [sys.executable, "-c", code, *wanted]
    done = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for name, all_wanted in wanted.items():
        for found, want in zip(torch.load(tmp_path / f"{name}.found"), all_wanted, strict=True):
            torch.testing.assert_close(found, want, atol=1e-5, rtol=1e-5)


def held_out(model: Classifier) -> calattn.Predictions:
    out = model.model.output(model.augment.test(pixels(60)))
    return calattn.Predictions.from_output(
        type(out)(*(None if p is None else p.detach() for p in out)), torch.arange(60) % 5
    )


def test_a_calibrator_goes_behind_the_head(tmp_path):
    bare = classifier("resnet")
    behind = VectorScaling().fit(held_out(bare))
    model = Classifier(bare.model, bare.description, calibrator=behind)
    export(model, tmp_path / "net.onnx")
    (probs,) = onnxruntime.InferenceSession(tmp_path / "net.onnx").run(["probabilities"], {"images": pixels(4).numpy()})
    want = model(model.augment.test(pixels(4)))[0]
    assert not torch.allclose(want, bare(bare.augment.test(pixels(4)))[0], atol=1e-3)
    torch.testing.assert_close(torch.from_numpy(probs), want, atol=1e-4, rtol=1e-4)


def test_a_calibrator_without_an_onnx_form_is_exported_by_torch(tmp_path):
    bare = classifier("resnet")
    model = Classifier(bare.model, bare.description, calibrator=IsotonicCalibration().fit(held_out(bare)))
    with pytest.raises(ExportError, match=r"has no ONNX form .* try torch-export"):
        export(model, tmp_path / "net.onnx")
    assert export(model, tmp_path / "net.pt2").difference < 1e-4
    assert [path.name for path in tmp_path.iterdir()] == ["net.pt2"]


def test_a_file_that_differs_is_not_kept(tmp_path, monkeypatch):
    calls = []
    forward = Exportable.forward

    def other(self, images):
        probs, scale = forward(self, images)
        calls.append(1)
        return probs, scale + (0.01 if len(calls) > 1 else 0.0)  # the first call is that of the export

    monkeypatch.setattr(Exportable, "forward", other)
    with pytest.raises(ExportError, match=r"differs from the network by 0\.01, more than 0\.0001; nothing was written"):
        export(classifier("resnet"), tmp_path / "net.pt2")
    assert not list(tmp_path.iterdir())


def test_the_command(tmp_path, capsys, monkeypatch):
    from calattn.runs.train import train_run

    monkeypatch.chdir(tmp_path)
    train_run(small_spec(*TAUGHT), tmp_path / "mine", runtime=CPU)
    result = invoke(capsys, "export", "mine", "--json")
    assert (result.code, result.json["file"]) == (0, "mine.onnx"), result.err
    assert result.json["difference"] < 1e-4
    result = invoke(capsys, "export", "mine", "--format", "torch-export", "--write", "b.pt2", "--input", "float")
    assert (result.code, result.out) == (0, "b.pt2\n")
    assert "checked: differs" in result.err
    assert invoke(capsys, "export", "nowhere").code == 2
    assert invoke(capsys, "calibrate", "mine", "--method", "vector", "--bootstrap", "0", "--out", "better").code == 0
    assert invoke(capsys, "export", "mine", "--calibrator", "better").code == 0
    images = torch.randint(0, 256, (3, 1, 8, 8), dtype=torch.uint8)
    (probs,) = onnxruntime.InferenceSession("mine.onnx").run(["probabilities"], {"images": images.numpy()})
    found = calattn.load("mine", calibrator="better").predict(images).probs
    torch.testing.assert_close(torch.from_numpy(probs), found, atol=1e-4, rtol=1e-4)
