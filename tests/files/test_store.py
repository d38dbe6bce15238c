"""The predictions folder and the atomic writes under it: round trips, damage, kills and full disks."""

from __future__ import annotations

import errno
import json
import os
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from calattn import Predictions
from calattn.files.atomic import STALE_SECONDS, atomic_write
from calattn.files.predictions import PredictionFileError, load_predictions, save_blocks, save_predictions

FIELDS = ("logits", "labels", "scale", "features", "indices")


def example(seed: int = 0, *, n: int = 6, features: bool = True) -> Predictions:
    g = torch.Generator().manual_seed(seed)
    return Predictions(
        logits=torch.randn(n, 3, generator=g),
        labels=torch.randint(3, (n,), generator=g),
        scale=torch.rand(n, generator=g) + 0.5,
        features=torch.randn(n, 4, generator=g).to(torch.bfloat16) if features else None,
        indices=torch.randperm(n, generator=g),
        class_names=("chat", "собака", "鳥"),
        split="test",
        spec_hash="abc123",
    )


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def assert_same(one: Predictions, other: Predictions) -> None:
    for field in FIELDS:
        a, b = getattr(one, field), getattr(other, field)
        assert (a is None) == (b is None), field
        if a is not None:
            assert a.dtype == b.dtype, field
            assert torch.equal(a, b), field
    assert (one.class_names, one.split, one.spec_hash) == (other.class_names, other.split, other.spec_hash)


WIDE, SHARED = torch.randn(8, 10, generator=torch.Generator().manual_seed(0)), torch.arange(4) % 3
ROUND_TRIPS = {
    "everything": example(),
    "the least": Predictions(logits=torch.tensor([[0.0, -torch.inf]]).double(), labels=torch.tensor([0])),
    "views and shared memory": Predictions(
        logits=WIDE[::2, :3], features=WIDE[::2, 3:], labels=SHARED, indices=SHARED, scale=torch.ones(1).expand(4)
    ),
}


@pytest.mark.parametrize("name", ROUND_TRIPS)
def test_predictions_come_back_bit_for_bit(tmp_path, name):
    assert_same(load_predictions(save_predictions(ROUND_TRIPS[name], tmp_path / "run" / "test")), ROUND_TRIPS[name])


def test_features_are_a_sidecar_that_need_not_be_read(tmp_path):
    folder = save_predictions(example(), tmp_path / "p")
    next(folder.glob("features-*")).unlink()
    assert load_predictions(folder, features=False).features is None
    with pytest.raises(PredictionFileError, match=r"features-\w+\.safetensors is named by the manifest but missing"):
        load_predictions(folder)


def test_asking_for_features_that_were_not_saved(tmp_path):
    folder = save_predictions(example(features=False), tmp_path / "p")
    assert load_predictions(folder, features="auto").features is None
    with pytest.raises(PredictionFileError, match="without features; pass features=False"):
        load_predictions(folder, features=True)


def test_equal_predictions_give_equal_bytes(tmp_path):
    one = contents(save_predictions(example(), tmp_path / "one"))
    time.sleep(0.01)
    two = contents(save_predictions(example(), tmp_path / "two"))
    assert one == two
    assert len(one) == 3


def test_a_save_over_an_older_one_needs_permission_and_leaves_no_trace_of_it(tmp_path):
    folder = save_predictions(example(0), tmp_path / "p")
    with pytest.raises(FileExistsError, match="overwrite=True"):
        save_predictions(example(1), folder)
    assert_same(load_predictions(folder), example(0))
    save_predictions(example(1, features=False), folder, overwrite=True)
    assert_same(load_predictions(folder), example(1, features=False))
    assert len(contents(folder)) == 2


def test_overwriting_with_the_same_predictions_keeps_them(tmp_path):
    folder = save_predictions(example(), tmp_path / "p")
    # Loaded tensors are maps of the very file that is written again.
    save_predictions(load_predictions(folder), folder, overwrite=True)
    assert_same(load_predictions(folder), example())


BLOCKS = {
    "width": (
        {"logits": torch.ones(6, 4), "class_names": None},
        r"logits of blocks\[1\]: float32 \[n, 4\]; of .*float32 \[n, 3\]",
    ),
    "type": ({"logits": torch.ones(6, 3).double()}, r"logits of blocks\[1\]: float64 .*float32"),
    "scale": ({"scale": None}, r"scale of blocks\[1\]: none; of blocks\[0\]: float32"),
    "features": ({"features": None}, r"features of blocks\[1\]: none; of blocks\[0\]: bfloat16 \[n, 4\]"),
    "wide": ({"features": torch.ones(6, 5)}, r"features of blocks\[1\]: float32 \[n, 5\]"),
    "names": ({"class_names": ("a", "b", "c")}, r"class_names of blocks\[1\]: \['a', 'b', 'c'\]; of .*'chat'"),
    "indices": ({"indices": None}, "indices are not whole numbers in every row"),
}


@pytest.mark.parametrize("name", BLOCKS)
def test_blocks_that_differ_are_refused_and_the_older_version_stays(tmp_path, name):
    changes, message = BLOCKS[name]
    both = [example(), example().replace(**changes)]
    orders = [(both, message), (both[::-1], r"of blocks\[1\]")]
    if name == "indices":
        orders.pop()  # those that come late are dropped: see `alike`
    old = contents(save_predictions(example(1), tmp_path / "p"))
    for blocks, told in orders:
        with pytest.raises(ValueError, match=told):
            save_blocks(blocks, tmp_path / "p", rows=12, overwrite=True)
        assert contents(tmp_path / "p") == old
        with pytest.raises(ValueError, match=told):
            save_blocks(blocks, tmp_path / "new", rows=12)
        assert not (tmp_path / "new").exists()


def test_blocks_of_unknown_length_have_to_be_counted(tmp_path):
    with pytest.raises(ValueError, match="rows must be the number of samples in all blocks, got None; count them"):
        save_blocks([example()], tmp_path / "p", rows=None)
    assert not (tmp_path / "p").exists()


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_folder_with_other_things_in_it_is_left_alone(tmp_path, overwrite):
    (tmp_path / "thesis.tex").write_text("x")
    with pytest.raises(FileExistsError, match=r"thesis\.tex"):
        save_predictions(example(), tmp_path, overwrite=overwrite)
    assert contents(tmp_path) == {"thesis.tex": b"x"}


def test_a_file_in_the_place_of_the_folder(tmp_path):
    (tmp_path / "p").write_text("x")
    with pytest.raises(FileExistsError, match="is a file"):
        save_predictions(example(), tmp_path / "p")
    with pytest.raises(PredictionFileError, match="read_predictions"):
        load_predictions(tmp_path / "p")


def edited(folder: Path, **changes: object) -> Path:
    manifest = json.loads((folder / "manifest.json").read_text("utf-8"))
    (folder / "manifest.json").write_text(json.dumps(manifest | changes))
    return folder


def truncate(folder: Path) -> None:
    path = next(folder.glob("predictions-*"))
    os.truncate(path, path.stat().st_size - 1)


def flip_a_bit(folder: Path) -> None:
    path = next(folder.glob("predictions-*"))
    raw = bytearray(path.read_bytes())
    raw[-1] ^= 1
    path.write_bytes(raw)


DAMAGE = {
    "truncated": (truncate, "truncated or changed; copy the folder again"),
    "bit flipped": (flip_a_bit, "does not match its checksum"),
    "manifest cut": (lambda f: os.truncate(f / "manifest.json", 40), "is not JSON"),
    "manifest binary": (lambda f: (f / "manifest.json").write_bytes(b"\xff\xfe{"), "is not JSON"),
    "manifest gone": (lambda f: (f / "manifest.json").unlink(), "its save was interrupted; save again"),
    "newer version": (lambda f: edited(f, version=2, calattn="9.9"), "written by calattn 9.9: upgrade"),
    "foreign manifest": (lambda f: edited(f, format="webpack"), "is not the manifest"),
    "no files": (lambda f: edited(f, files={}), r"lacks files\.predictions"),
    "file entry empty": (lambda f: edited(f, files={"predictions": {}}), r"lacks files\.predictions"),
    "file entry of another type": (lambda f: edited(f, files={"predictions": 3}), r"lacks files\.predictions"),
    "files a list": (lambda f: edited(f, files=[1]), "lacks files"),
    "a class name that is no text": (lambda f: edited(f, class_names=[1, 2, 3]), "lacks class_names"),
    "a split that is no text": (lambda f: edited(f, split=["test"]), "lacks split"),
    "nested brackets": (lambda f: (f / "manifest.json").write_text("[" * 100_000), "is not JSON"),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_damage_is_named(tmp_path, name):
    harm, message = DAMAGE[name]
    folder = save_predictions(example(), tmp_path / "p")
    harm(folder)
    with pytest.raises(PredictionFileError, match=message) as caught:
        load_predictions(folder)
    assert str(folder) in str(caught.value)


def test_without_verify_a_changed_byte_passes_but_a_missing_one_does_not(tmp_path):
    folder = save_predictions(example(), tmp_path / "p")
    flip_a_bit(folder)
    load_predictions(folder, verify=False)
    truncate(folder)
    with pytest.raises(PredictionFileError, match="truncated"):
        load_predictions(folder, verify=False)


def test_a_manifest_cannot_point_elsewhere(tmp_path):
    folder = save_predictions(example(), tmp_path / "p")
    files = json.loads((folder / "manifest.json").read_text("utf-8"))["files"]
    files["predictions"]["name"] = "../secret.safetensors"
    with pytest.raises(PredictionFileError, match="not a tensor file of ours"):
        load_predictions(edited(folder, files=files))


def test_a_tensor_file_that_disagrees_with_its_manifest(tmp_path):
    folder = save_predictions(example(features=False), tmp_path / "p")
    path = next(folder.glob("predictions-*"))
    save_file({"logits": torch.zeros(2, 2), "labels": torch.zeros(2, dtype=torch.int64)}, path)
    files = json.loads((folder / "manifest.json").read_text("utf-8"))["files"]
    files["predictions"]["bytes"] = path.stat().st_size
    with pytest.raises(PredictionFileError, match="its manifest states"):
        load_predictions(edited(folder, files=files), verify=False)


def test_a_missing_folder_and_a_folder_of_folders(tmp_path):
    with pytest.raises(FileNotFoundError, match="does not exist"):
        load_predictions(tmp_path / "nowhere")
    save_predictions(example(), tmp_path / "predictions" / "test")
    with pytest.raises(PredictionFileError, match="name one of: test"):
        load_predictions(tmp_path / "predictions")


def test_a_damaged_folder_can_be_overwritten(tmp_path):
    folder = save_predictions(example(0), tmp_path / "p")
    os.truncate(folder / "manifest.json", 10)
    save_predictions(example(1), folder, overwrite=True)
    assert_same(load_predictions(folder), example(1))


def test_leftovers_of_a_killed_save_go_once_they_are_stale(tmp_path):
    folder = tmp_path / "p"
    folder.mkdir()
    orphan = folder / f"predictions-{'0' * 16}.safetensors"
    partial = folder / ".part-00.safetensors"
    young = folder / ".part-11.safetensors"
    for path in (orphan, partial, young):
        path.write_bytes(b"half")
    long_ago = time.time() - STALE_SECONDS - 60
    os.utime(orphan, (long_ago, long_ago))
    os.utime(partial, (long_ago, long_ago))
    save_predictions(example(), folder)
    assert_same(load_predictions(folder), example())
    assert not orphan.exists()
    assert not partial.exists()
    assert young.exists()


def test_a_failure_while_the_manifest_is_written_takes_the_tensors_back(tmp_path, monkeypatch):
    folder = save_predictions(example(0), tmp_path / "p")
    before = contents(folder)

    def full(*_args: object, **_options: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(Path, "write_text", full)
        with pytest.raises(OSError, match="No space left"):
            save_predictions(example(1), folder, overwrite=True)
        with pytest.raises(OSError, match="No space left"):
            save_predictions(example(1), tmp_path / "new")
    assert contents(folder) == before
    assert not (tmp_path / "new").exists()


def interrupted_write(target: Path) -> None:
    with atomic_write(target) as partial:
        partial.write_text("half")
        raise KeyboardInterrupt


def test_atomic_write_replaces_only_what_was_finished(tmp_path):
    target = tmp_path / "deep" / "table.csv"
    with atomic_write(target) as partial:
        assert partial.name == target.name
        partial.write_text("old")
        assert not target.exists()
    target.chmod(0o640)
    with pytest.raises(KeyboardInterrupt):
        interrupted_write(target)
    assert contents(target.parent) == {"table.csv": b"old"}
    with atomic_write(target) as partial:
        partial.write_text("new")
    assert contents(target.parent) == {"table.csv": b"new"}
    assert target.stat().st_mode & 0o777 == 0o640


def test_atomic_write_goes_through_a_symbolic_link(tmp_path):
    (tmp_path / "real.txt").write_text("old")
    (tmp_path / "link.txt").symlink_to(tmp_path / "real.txt")
    with atomic_write(tmp_path / "link.txt") as partial:
        partial.write_text("new")
    assert (tmp_path / "link.txt").is_symlink()
    assert (tmp_path / "real.txt").read_text() == "new"


def test_errors_name_what_was_to_be_written_and_not_the_temporary_file(tmp_path):
    target = tmp_path / "x.html"
    with pytest.raises(FileNotFoundError) as caught, atomic_write(target) as partial:
        partial.read_text()
    assert caught.value.filename == str(target)
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError, match="folder") as caught, atomic_write(tmp_path / "folder") as partial:
        partial.write_text("")  # the renaming fails, which is about two paths
    assert (caught.value.filename, caught.value.filename2) == (str(tmp_path / "folder"), None)
    with pytest.raises(FileNotFoundError) as other, atomic_write(target):
        (tmp_path / "elsewhere").read_text()
    assert other.value.filename == str(tmp_path / "elsewhere")


def test_a_read_only_file_system_is_told_of_the_target(tmp_path, monkeypatch):
    def refused(path, **_):
        raise OSError(errno.EROFS, "Read-only file system", str(path))

    monkeypatch.setattr(Path, "unlink", refused)  # as the system does, whether the file is there or not
    with pytest.raises(OSError, match="Read-only") as caught, atomic_write(tmp_path / "x.npz") as partial:
        refused(partial)
    assert caught.value.filename == str(tmp_path / "x.npz")


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS])
def test_a_write_that_does_not_say_which_file_names_the_target(tmp_path, number):
    with pytest.raises(OSError, match="no room") as caught, atomic_write(tmp_path / "x.npz"):
        raise OSError(number, "no room")
    assert caught.value.filename == str(tmp_path / "x.npz")


def test_atomic_write_notices_that_nothing_was_written(tmp_path):
    with pytest.raises(FileNotFoundError, match="nothing was written"), atomic_write(tmp_path / "x"):
        pass


def test_a_save_that_fails_leaves_no_new_folders(tmp_path):
    with pytest.raises(ValueError, match="blocks is empty"):
        save_blocks([], tmp_path / "a" / "b", rows=0)
    assert not any(tmp_path.iterdir())
