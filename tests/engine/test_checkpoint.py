"""Checkpoints: trees come back exactly, damage is always found, and a kill or a full disk never loses the run."""

from __future__ import annotations

import copy
import errno
import json
import math
import random
import struct
import warnings
from pathlib import Path

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from calattn.engine import checkpoint
from calattn.engine.checkpoint import (
    BestRecord,
    CheckpointError,
    CheckpointFolder,
    CheckpointWarning,
    CheckpointWriteError,
)

DTYPES = [
    getattr(torch, name)
    for name in ["float32", "float64", "bfloat16", "float16", "int64", "uint8", "bool", "complex64"]
]
NAN = struct.unpack(">d", bytes.fromhex("fff8000000000abc"))[0]
MATRIX = torch.arange(9.0).view(3, 3)
COMPLEX = torch.tensor([1 + 2j, 3 - 4j])


@pytest.fixture
def folder(tmp_path: Path) -> CheckpointFolder:
    return CheckpointFolder(tmp_path, "h")


def bits(value: float) -> bytes:
    return struct.pack(">d", value)


def assert_same(left: object, right: object) -> None:
    assert type(left) is type(right)
    if isinstance(left, torch.Tensor):
        assert left.dtype == right.dtype
        assert left.shape == right.shape
        as_bytes = [t.resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8) for t in (left, right)]
        assert torch.equal(*as_bytes)
    elif isinstance(left, dict):
        assert [(type(key), key) for key in left] == [(type(key), key) for key in right]
        for key in left:
            assert_same(left[key], right[key])
    elif isinstance(left, list | tuple):
        assert len(left) == len(right)
        for a, b in zip(left, right, strict=True):
            assert_same(a, b)
    elif isinstance(left, float):
        assert bits(left) == bits(right)
    else:
        assert left == right


@st.composite
def tensors(draw: st.DrawFn) -> torch.Tensor:
    shape = draw(st.lists(st.integers(0, 4), max_size=3))
    seed = torch.Generator().manual_seed(draw(st.integers(0, 100)))
    made = (torch.randn(shape, generator=seed) * 50).to(draw(st.sampled_from(DTYPES)))
    return made.transpose(0, -1) if len(shape) > 1 and draw(st.booleans()) else made


keys = st.one_of(
    st.text(max_size=6), st.integers(-5, 2**70), st.sampled_from(["$tuple", "$tensor", "__metadata__", "a/b"])
)
leaves = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(st.characters(), max_size=8), tensors()
)
trees = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.lists(inner, max_size=4).map(tuple), st.dictionaries(keys, inner, max_size=4)
    ),
    max_leaves=12,
)


@given(tree=trees)
def test_any_tree_comes_back_exactly(tmp_path_factory: pytest.TempPathFactory, tree: object) -> None:
    folder = CheckpointFolder(tmp_path_factory.mktemp("c"), "h")
    folder.save_state(tree, step=3, epoch=1)
    found = folder.latest()
    assert found is not None
    assert (found.step, found.epoch, found.best) == (3, 1, {})
    assert_same(tree, found.tree)


@pytest.mark.parametrize(
    "tree",
    [
        {"nan": NAN, "inf": (-math.inf, math.inf), "zero": -0.0, "big": 2**128 + 1},  # a NaN keeps its bits
        {7: {"$tuple": [1], "7": "\ud800"}},
        {"a": MATRIX, "b": MATRIX.T},  # one memory, other strides
        {"a": COMPLEX, "conjugate": COMPLEX.conj(), "b": COMPLEX.imag, "negative": COMPLEX.conj().imag},  # other signs
        # tensors whose names would collide
        {"__metadata__": torch.tensor(0), "a/b": torch.tensor(1), "a": {"b": torch.tensor(2)}, 1: torch.tensor(3)},
        {1: torch.tensor(3), "1": torch.tensor(4), "tree": torch.tensor(5), "\ud800": torch.tensor(6)},
    ],
)
def test_odd_values_and_keys_keep_their_bits_and_places(folder: CheckpointFolder, tree: dict) -> None:
    folder.save_state(tree, step=1, epoch=0)
    assert_same(folder.latest().tree, tree)


def test_an_adamw_run_goes_on_as_if_nothing_had_happened(folder: CheckpointFolder) -> None:
    def step(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        loss = model(torch.ones(2, 4)).pow(2).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, betas=(0.8, 0.9))
    step(model, optimizer)
    folder.save_state({"weights": model.state_dict(), "optimizer": optimizer.state_dict()}, step=1, epoch=0)
    other = copy.deepcopy(model)
    for parameter in other.parameters():
        parameter.data.zero_()
    fresh = torch.optim.AdamW(other.parameters(), lr=9.0)
    found = folder.latest().tree
    other.load_state_dict(found["weights"])
    fresh.load_state_dict(found["optimizer"])
    for _ in range(3):
        step(model, optimizer)
        step(other, fresh)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))


def test_tied_weights_are_stored_once_and_come_back_tied(folder: CheckpointFolder) -> None:
    weight = torch.randn(1000)
    tree = {"a": weight, "b": weight.view(1000), "half": weight[:500], "rest": weight[500:]}
    path = folder.save_state(tree, step=1, epoch=0)
    found = folder.latest().tree
    assert_same(tree, found)
    assert found["a"] is found["b"]
    assert path.stat().st_size < 2.5 * weight.nbytes


def test_others_can_read_the_tensors_by_name(tmp_path: Path, folder: CheckpointFolder) -> None:
    name = folder.save_weights({"head.weight": torch.arange(3.0)}, step=1, epoch=1)
    assert torch.equal(load_file(tmp_path / name)["head.weight"], torch.arange(3.0))


def test_the_header_is_json_that_any_parser_reads(tmp_path: Path) -> None:
    def no_constants(name: str) -> float:
        raise AssertionError(f"{name} is not JSON")

    path = CheckpointFolder(tmp_path, "h").save_state({"x": [math.inf, -math.inf, math.nan]}, step=1, epoch=0)
    with safe_open(path, framework="pt") as file:
        header = file.metadata()["calattn.checkpoint"]
    assert json.loads(header, parse_constant=no_constants)["step"] == 1


def test_what_was_read_is_not_what_lies_on_the_disk(folder: CheckpointFolder) -> None:
    """An optimiser keeps the tensors, and the file changes under them."""
    path = folder.save_state({"w": torch.ones(1000)}, step=1, epoch=0)
    read = folder.latest().tree["w"]
    with path.open("r+b") as file:
        file.seek(-4000, 2)
        file.write(bytes(4000))
    assert torch.equal(read, torch.ones(1000))


@pytest.mark.parametrize(
    ("tree", "named"),
    [
        ({"a": {"b": object()}}, "a/b: object"),
        ({"a": {1.5: 0}}, "a: key 1.5"),
        ({True: 0}, "key True"),
        ({"s": torch.eye(2).to_sparse()}, "s: a torch.sparse_coo"),
        ([torch.zeros(1, dtype=torch.complex128)], "0: a torch.strided torch.complex128"),
        ({"m": torch.zeros(1, device="meta")}, "m: .* on meta"),
    ],
)
def test_what_cannot_be_kept_is_named_before_anything_is_written(tmp_path: Path, tree: object, named: str) -> None:
    with pytest.raises(CheckpointError, match=named):
        CheckpointFolder(tmp_path, "h").save_state(tree, step=1, epoch=0)
    assert list(tmp_path.iterdir()) == []


# --- damage


def two_states(path: Path) -> tuple[CheckpointFolder, Path]:
    folder = CheckpointFolder(path, "h")
    tree = {"weights": {"w": torch.arange(40.0), "n": torch.tensor(7)}, "lr": 0.125, "betas": (0.9, 0.999), 3: "text"}
    folder.save_state(tree, step=1, epoch=0)
    return folder, folder.save_state(tree, step=2, epoch=0)


def test_a_flipped_bit_anywhere_is_found(tmp_path: Path) -> None:
    folder, newest = two_states(tmp_path)
    whole = newest.read_bytes()
    drawn = random.Random(0).sample(range(8 * len(whole)), 600)
    for bit in {*range(8 * 16), *drawn}:  # the first bytes are the length of the header, where a library may trip
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        newest.write_bytes(damaged)
        with pytest.warns(CheckpointWarning, match="state-00000002"):
            assert folder.latest().step == 1, bit
    newest.write_bytes(whole)
    assert folder.latest().step == 2


def test_truncation_at_any_length_is_found(tmp_path: Path) -> None:
    folder, newest = two_states(tmp_path)
    whole = newest.read_bytes()
    for length in {0, 1, 7, 8, 9, len(whole) - 1, *random.Random(0).sample(range(len(whole)), 60)}:
        newest.write_bytes(whole[:length])
        with pytest.warns(CheckpointWarning, match="is empty" if length == 0 else "truncated"):
            assert folder.latest().step == 1
    newest.write_bytes(whole + b"\0")
    with pytest.warns(CheckpointWarning, match="truncated or no safetensors"):
        assert folder.latest().step == 1


def test_foreign_files_are_refused_by_name_and_reason(tmp_path: Path) -> None:
    folder, newest = two_states(tmp_path)
    save_file({"w": torch.ones(2)}, newest)
    with pytest.warns(CheckpointWarning, match="state-00000002.safetensors is a safetensors file, but no calattn"):
        assert folder.latest().step == 1
    save_file({"w": torch.ones(2)}, newest, metadata={"calattn.checkpoint": '{"format": "another", "version": 1}'})
    with pytest.warns(CheckpointWarning, match="but no calattn-checkpoint"):
        assert folder.latest().step == 1
    torch.save({"w": torch.ones(2)}, newest)
    with pytest.warns(CheckpointWarning, match="no safetensors file"):
        assert folder.latest().step == 1
    CheckpointFolder(tmp_path / "other", "g").save_state({}, step=2, epoch=0).rename(newest)
    with pytest.warns(CheckpointWarning, match="another spec .its hash is g, this run's h"):
        assert folder.latest().step == 1
    (tmp_path / folder.save_weights({}, step=2, epoch=0)).rename(newest)
    with pytest.warns(CheckpointWarning, match="holds 'weights', not 'state'"):
        assert folder.latest().step == 1


def test_a_later_format_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, _ = two_states(tmp_path)
    monkeypatch.setattr(checkpoint, "VERSION", 0)
    with (
        pytest.warns(CheckpointWarning),
        pytest.raises(CheckpointError, match="format version 1; this calattn reads up to 0"),
    ):
        folder.latest()


def test_no_file_is_none_and_only_bad_files_are_an_error(tmp_path: Path) -> None:
    assert CheckpointFolder(tmp_path / "nowhere", "h").latest() is None
    assert CheckpointFolder(tmp_path, "h").latest() is None
    folder, _ = two_states(tmp_path)
    for path in tmp_path.iterdir():
        path.write_bytes(b"")
    with (
        pytest.warns(CheckpointWarning),
        pytest.raises(CheckpointError, match=r"state-00000002\S* is empty; .*state-00000001\S* is empty; --overwrite"),
    ):
        folder.latest()


# --- what is kept


def names(path: Path) -> list[str]:
    return sorted(found.name for found in path.iterdir())


def test_two_states_and_their_weights_are_kept(tmp_path: Path, folder: CheckpointFolder) -> None:
    for epoch in range(1, 6):
        best = BestRecord(folder.save_weights({"w": torch.tensor(float(epoch))}, step=epoch, epoch=epoch), epoch, 0.5)
        folder.save_state({}, step=10 * epoch, epoch=epoch, best={"best-nll": best})
    assert [name[:14] for name in names(tmp_path)] == [
        "state-00000040",
        "state-00000050",
        "weights-00004-",
        "weights-00005-",
    ]
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / ".part-dead.safetensors").write_bytes(b"x")
    folder.save_state({}, step=60, epoch=6)
    assert [name[:14] for name in names(tmp_path)] == [
        "notes.txt",
        "state-00000050",
        "state-00000060",
        "weights-00005-",
    ]


def test_the_same_epoch_run_again_does_not_replace_what_an_older_state_names(folder: CheckpointFolder) -> None:
    first = BestRecord(folder.save_weights({"w": torch.zeros(1)}, step=1, epoch=1), 1, 0.5)
    folder.save_state({}, step=1, epoch=1, best={"best-ece": first})
    assert folder.save_weights({"w": torch.ones(1)}, step=1, epoch=1) != first.file
    assert folder.weights("best-ece")["w"] == 0
    assert folder.save_weights({"w": torch.zeros(1)}, step=1, epoch=1) == first.file


@pytest.mark.parametrize("step", [2, 5])
def test_a_refused_state_is_none_to_fall_back_on_and_is_replaced_where_its_step_is_saved_again(
    tmp_path: Path, step: int
) -> None:
    folder, newest = two_states(tmp_path)
    newest.write_bytes(b"broken")
    with pytest.warns(CheckpointWarning):
        folder.latest()
    folder.save_state({"again": True}, step=step, epoch=1)
    assert names(tmp_path) == ["state-00000001.safetensors", f"state-0000000{step}.safetensors"]
    assert folder.latest().tree == {"again": True}
    folder.save_state({}, step=6, epoch=1)
    assert names(tmp_path) == [f"state-0000000{step}.safetensors", "state-00000006.safetensors"], "it is whole now"


def test_a_state_that_is_damaged_meanwhile_does_not_stop_the_run(tmp_path: Path) -> None:
    folder, newest = two_states(tmp_path)
    newest.write_bytes(b"broken")
    folder.save_state({"whole": True}, step=3, epoch=1)
    assert folder.latest().tree == {"whole": True}


def test_states_of_an_attempt_that_was_gone_back_behind_are_removed(tmp_path: Path) -> None:
    folder, _ = two_states(tmp_path)
    folder.save_state({"back": True}, step=1, epoch=0)
    assert folder.latest().tree == {"back": True}


def test_the_newest_state_is_the_one_of_the_highest_step_not_of_the_last_name(folder: CheckpointFolder) -> None:
    for step in (99_999_999, 100_000_000):
        folder.save_state({}, step=step, epoch=1)
    assert folder.latest().step == 100_000_000


# --- rules


def test_rules_resolve_through_the_newest_state(folder: CheckpointFolder) -> None:
    with pytest.raises(CheckpointError, match=r"no checkpoint in .*; train first"):
        folder.weights("last")
    best = BestRecord(folder.save_weights({"w": 1}, step=1, epoch=1), 1, 0.5)
    folder.save_state({"weights": {"w": 2}, "model": {"w": 3}}, step=1, epoch=1, best={"best-nll": best})
    assert folder.weights("last") == {"w": 2}
    assert folder.weights("best-nll") == {"w": 1}
    assert folder.latest().best == {"best-nll": best}
    with pytest.raises(CheckpointError, match=r"no checkpoint for rule 'best-ece' .*; available: last, best-nll; "):
        folder.weights("best-ece")


def test_missing_or_damaged_weights(tmp_path: Path, folder: CheckpointFolder) -> None:
    best = BestRecord(folder.save_weights({"w": torch.ones(9)}, step=1, epoch=1), 1, 0.5)
    folder.save_state({"weights": {}}, step=1, epoch=1, best={"best-nll": best})
    file = tmp_path / best.file
    file.write_bytes(file.read_bytes()[:-3] + b"abc")
    with pytest.raises(CheckpointError, match=f"{best.file} does not match its checksum"):
        folder.weights("best-nll")
    file.unlink()
    with pytest.warns(CheckpointWarning, match=f"names {best.file} as best-nll, which is missing"):
        assert folder.latest().best == {}
    with pytest.raises(CheckpointError, match="which is not in"):
        folder.save_state({}, step=2, epoch=1, best={"best-nll": best})


# --- a full disk, a kill


def test_a_full_disk_leaves_the_old_state_and_no_litter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, _ = two_states(tmp_path)
    before = names(tmp_path)

    def full(tensors: dict[str, torch.Tensor], path: Path, metadata: object) -> None:  # noqa: ARG001
        Path(path).write_bytes(b"half")
        (path.parent / ".part-other.safetensors").write_bytes(b"litter")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(checkpoint, "save_file", full)
    with pytest.raises(CheckpointWriteError, match=r"No space left.*needs 9\.0 MB, .* MB are free.*resumes") as caught:
        folder.save_state({"w": torch.zeros(2_000_000)}, step=3, epoch=0)
    assert str(tmp_path) in str(caught.value)
    assert isinstance(caught.value, OSError)
    assert caught.value.errno == errno.ENOSPC
    assert names(tmp_path) == before
    assert folder.latest().step == 2


def test_reading_while_a_run_saves_never_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the listing and the reading, the run saves twice and removes what was listed."""
    folder, newest = two_states(tmp_path)
    listed = folder._states()
    real, calls = folder._states, []

    def states() -> list[Path]:
        calls.append(1)
        return listed if len(calls) == 1 else real()

    writer = CheckpointFolder(tmp_path, "h")
    writer.save_state({}, step=3, epoch=1)
    writer.save_state({}, step=4, epoch=1)
    assert not newest.exists()
    monkeypatch.setattr(folder, "_states", states)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert folder.latest().step == 4


@pytest.mark.parametrize("at", ["state", "weights"])
def test_weights_that_a_run_replaces_while_they_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    """After the state, or before the weights that it names, the run saves twice and removes both: the newest are read."""
    folder, writer = CheckpointFolder(tmp_path, "h"), CheckpointFolder(tmp_path, "h")

    def save(step: int) -> None:
        best = BestRecord(writer.save_weights({"w": torch.tensor(float(step))}, step=step, epoch=step), step, 0.5)
        writer.save_state({}, step=step, epoch=step, best={"best-nll": best})

    save(1)
    real = checkpoint._read

    def meanwhile(path: Path, *, kind: str, spec_hash: str) -> tuple[dict, object]:
        read = real(path, kind=kind, spec_hash=spec_hash) if kind == "state" else None
        if kind == at and "00001" in path.name and path.exists():
            save(2)
            save(3)
            assert not path.exists()
        return read or real(path, kind=kind, spec_hash=spec_hash)

    monkeypatch.setattr(checkpoint, "_read", meanwhile)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert folder.weights("best-nll")["w"] == 3
