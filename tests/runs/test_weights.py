"""`model.weights`: a run that starts from somebody's state dict, whatever form it has, or says what does not fit."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os

import pytest
import timm
import torch
from safetensors.torch import save_file
from torch import nn

from calattn import backbones
from calattn.runs import build
from calattn.runs.folder import RunFolder, RunFolderError, spec_text
from calattn.runs.load import load
from calattn.runs.resolving import resolve
from calattn.runs.train import train_run
from tests.cli_runner import invoke
from tests.small_runs import CPU, same, small_spec


def network(*changes, num_classes=10):
    return build.build_model(small_spec(*changes), num_classes=num_classes, channels=1, size=8)


@pytest.fixture
def tuned():
    """A fine-tuned network: other weights than any seed draws, and a head that was trained."""
    model = network("seed=5")
    nn.init.normal_(model.head.mlp.fc2.weight)
    return model


def prefixed(state, prefix):
    return {f"{prefix}{name}": value for name, value in state.items()}


FORMS = {
    "plain": lambda m: m.backbone.state_dict(),
    "attached": lambda m: m.state_dict(),
    "ddp": lambda m: prefixed(m.backbone.state_dict(), "module."),
    "lightning": lambda m: {"state_dict": prefixed(m.backbone.state_dict(), "model."), "epoch": 3},
    "compiled ddp, attached": lambda m: {"model": prefixed(m.state_dict(), "module._orig_mod.")},
    "ddp in a module": lambda m: prefixed(m.backbone.state_dict(), "model.module."),
    "training step": lambda m: prefixed(m.state_dict(), "model."),
    "double precision": lambda m: {k: v.double() for k, v in m.backbone.state_dict().items()},
}


@pytest.mark.parametrize("suffix", [".pt", ".safetensors"])
@pytest.mark.parametrize("form", FORMS)
def test_every_form(tuned, tmp_path, form, suffix):
    state, path = FORMS[form](tuned), tmp_path / f"tuned{suffix}"
    if suffix == ".pt":
        torch.save(state, path)
    else:
        holder = next((value for value in state.values() if isinstance(value, dict)), state)
        save_file({name: value.contiguous() for name, value in holder.items()}, path)
    found = network(f"model.weights={path}")
    assert same(found.backbone.state_dict(), tuned.backbone.state_dict())
    if form in ("attached", "compiled ddp, attached", "training step"):
        assert same(found.head.state_dict(), tuned.head.state_dict())
    else:
        assert not found.head.mlp.fc2.weight.any(), "a head that the file does not hold starts at the identity"


def test_a_head_that_the_run_has_not_stays_in_the_file(tuned, tmp_path):
    torch.save(tuned.state_dict(), tmp_path / "tuned.pt")
    found = network("model.head=none", f"model.weights={tmp_path / 'tuned.pt'}")
    assert same(found.backbone.state_dict(), tuned.backbone.state_dict())


def refused(tmp_path, state, *changes):
    torch.save(state, tmp_path / "tuned.pt")
    with pytest.raises(ValueError) as caught:  # noqa: PT011 (the message is what the tests are about)
        network(f"model.weights={tmp_path / 'tuned.pt'}", *changes)
    assert len(str(caught.value)) < 600 + len(str(tmp_path))
    return str(caught.value)


def test_a_classifier_of_another_size(tmp_path):
    message = refused(tmp_path, network(num_classes=7).backbone.state_dict())
    assert "head.weight [7, 16] instead of [10, 16], head.bias [7] instead of [10]" in message
    assert "as many classes as the data has" in message


def test_tensors_that_are_missing_or_unknown(tuned, tmp_path):
    state = tuned.backbone.state_dict()
    del state["head.weight"]
    assert "without head.weight; give" in refused(tmp_path, state)
    assert "unknown: extra.weight; give" in refused(
        tmp_path, tuned.backbone.state_dict() | {"extra.weight": torch.zeros(2)}
    )


def test_another_network(tmp_path):
    message = refused(tmp_path, {f"layers.{k}.weight": torch.zeros(1) for k in range(1000)})
    assert "has no tensor of " in message
    assert "layers.0.weight, layers.1.weight, layers.2.weight, layers.3.weight and 996 more" in message


def test_a_head_of_another_width(tuned, tmp_path):
    message = refused(tmp_path, tuned.state_dict(), "model.hidden=5")
    assert "does not fit the run's head" in message
    assert "mlp.fc1.weight [128, 16] instead of [5, 16]" in message


def test_files_that_are_none(tuned, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"model.weights: there is no file .*none.pt"):
        network(f"model.weights={tmp_path / 'none.pt'}")
    with pytest.raises(ValueError, match=r"must be a file that ends in .safetensors or .pt"):
        network(f"model.weights={tmp_path}")
    torch.save(tuned, tmp_path / "model.pt")  # the whole object: a pickle
    with pytest.raises(ValueError, match=r"holds more than tensors.*torch.save\(model.state_dict\(\), PATH\)"):
        network(f"model.weights={tmp_path / 'model.pt'}")
    torch.save([torch.zeros(2)], tmp_path / "list.pt")
    with pytest.raises(ValueError, match="holds a list; save a state dict"):
        network(f"model.weights={tmp_path / 'list.pt'}")
    for name in ("damaged.pt", "damaged.safetensors"):
        (tmp_path / name).write_bytes(b"\x80\x02 no weights at all")
        with pytest.raises(ValueError, match=rf"{name} (is damaged|holds more than tensors)"):
            network(f"model.weights={tmp_path / name}")


@pytest.mark.parametrize("until", [1, None])
def test_another_file_under_the_same_name_is_another_run(tuned, tmp_path, until):
    path, run = tmp_path / "tuned.pt", tmp_path / "run"
    torch.save(tuned.backbone.state_dict(), path)
    first, spec = path.read_bytes(), small_spec(f"model.weights={path}")
    train_run(spec, run, runtime=dataclasses.replace(CPU, until_epoch=until))
    assert json.loads((run / "environment.json").read_text())["weights_sha256"] == hashlib.sha256(first).hexdigest()
    torch.save(network("seed=6").backbone.state_dict(), path)
    with pytest.raises(
        RunFolderError, match=r"run began with other weights than .*tuned.pt holds now; put the file back"
    ):
        train_run(spec, run, runtime=CPU)
    path.write_bytes(first)
    train_run(spec, run, runtime=CPU)
    path.unlink()  # a finished run needs it no more
    train_run(spec, run, runtime=CPU)


def test_pretrained_weights_that_cannot_be_fetched(monkeypatch):
    def unreachable(*_: object, **__: object) -> None:
        raise OSError("we cannot find\n the files in the cache")

    monkeypatch.setattr(build.backbones, "create", unreachable)
    with pytest.raises(ConnectionError) as caught:
        network("model.backbone=vit_tiny_patch16_224", "model.pretrained=true", num_classes=7)
    assert str(caught.value) == (
        "cannot fetch the pretrained weights of vit_tiny_patch16_224 (we cannot find the files in the cache); check the network, "
        "or save timm.create_model('vit_tiny_patch16_224', pretrained=True, num_classes=7, in_chans=1).state_dict() where there "
        "is one and set model.weights=FILE in place of model.pretrained=true, with data.mean and data.std from its pretrained_cfg"
    )


def test_one_start_only():
    with pytest.raises(ValueError, match="both name the weights to start from; set one"):
        resolve("digits", ["model.weights=a.pt", "model.pretrained=true"])


class _Payload:
    """What a hostile file holds: unpickling it makes a folder."""

    def __init__(self, made):
        self.made = str(made)

    def __reduce__(self):
        return os.mkdir, (self.made,)


@pytest.mark.parametrize(
    "hostile",
    [
        "{{pretrained: true, pretrained_cfg_overlay: {{file: '{file}'}}}}",
        "{{pretrained_cfg_overlay: {{file: '{file}'}}}}",
        "{{pretrained_cfg: {{file: '{file}'}}}}",
        "{{checkpoint_path: '{file}'}}",
        "{{cache_dir: '{file}'}}",
    ],
)
def test_options_never_name_weights(hostile, capsys, tmp_path):
    """With older timm this reached torch.load, from a spec or run folder that somebody else wrote."""
    torch.save(_Payload(tmp_path / "ran"), tmp_path / "bad.pt")
    options = hostile.format(file=tmp_path / "bad.pt")
    result = invoke(
        capsys, "train", "digits", "--out", tmp_path / "run", "--dry-run", "--set", f"model.options={options}"
    )
    assert result.code == 2
    assert "names weights, which options may not; use model.weights=FILE or model.pretrained=true" in result.err
    folder = tmp_path / "foreign"
    folder.mkdir()
    (folder / "spec.yaml").write_text(f"data: {{name: digits}}\nmodel: {{options: {options}}}\n")
    with pytest.raises(RunFolderError, match="names weights"):
        load(folder)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    "option", ["pretrained_cfg_overlay", "checkpoint_path", "kwargs_filter", "features_only", "no_jit"]
)
@pytest.mark.parametrize("backbone", ["vit_nano_patch8_32", "vit_tiny_patch16_224", "local-dir:nowhere"])
def test_only_what_constructors_take_reaches_timm(option, backbone, monkeypatch):
    """Whatever a spec's own check lets through: an allow-list, not a list of the holes that are known."""
    monkeypatch.setattr(timm, "create_model", lambda *_, **options: pytest.fail(f"timm was given {options}"))
    with pytest.raises(ValueError, match=rf"model\.options\.{option} is not an option of timm's networks"):
        backbones.create(backbone, 10, **{option: {"file": "bad.pt"}})


def test_specs_without_weights_are_what_they_were():
    """Runs are found by this hash, and a run counts as finished if its summary holds this very spec."""
    spec = resolve("digits", ["model.head=calattn", "loss.name=ce_brier", "loss.options.weight=0.1"])
    assert spec.hash == "f337398adf310ef1"
    assert "weights" not in spec.model_dump(mode="json")["model"]
    assert not {"mean", "std"} & spec.model_dump(mode="json")["data"].keys()
    assert "weights" not in spec_text(spec)
    assert "mean" not in spec_text(spec)
    given = resolve("digits", ["model.weights=a.pt"])
    assert given.hash != spec.hash
    assert given.model_dump(mode="json")["model"]["weights"] == "a.pt"


def test_a_run_from_weights(tuned, tmp_path):
    """At a learning rate of next to nothing a run ends where it started; to predict, the file is not needed."""
    path = tmp_path / "tuned.safetensors"
    save_file(tuned.state_dict(), path)
    changes = ("train.epochs=1", "schedule.warmup_epochs=0", "optimizer.lr=1e-12", "optimizer.weight_decay=0")
    train_run(small_spec(f"model.weights={path}", *changes), tmp_path / "run", runtime=CPU)
    path.unlink()
    found = load(tmp_path / "run").model
    for name, value in tuned.state_dict().items():
        torch.testing.assert_close(found.state_dict()[name], value, atol=1e-5, rtol=1e-5)
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["spec"]["model"]["weights"] == str(path)
    checkpoint = max(RunFolder(tmp_path / "run").checkpoints_path.glob("state-*.safetensors"))
    again = network(f"model.weights={checkpoint}")  # a run from the last state of another
    assert same(again.state_dict(), found.state_dict())
