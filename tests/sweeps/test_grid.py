"""Grid files: what they name, in which order and under which names; and what is wrong with one."""

from __future__ import annotations

from pathlib import Path

import pytest

from calattn.sweeps.grid import GridError, Run, chosen, read_grid


def grid(folder: Path, text: str) -> list[Run]:
    path = folder / "grid.yaml"
    path.write_text(text)
    return read_grid(path)


def names(folder: Path, text: str) -> list[str]:
    return [run.name for run in grid(folder, text)]


def test_all_combinations_of_choices_and_values_but_the_excluded_and_single_runs_besides(tmp_path):
    runs = grid(
        tmp_path,
        """
        base: digits
        set: {train.epochs: 4}
        vary:
          method:
            plain: {model.head: none, loss.name: ce}
            ours: {model.head: calattn, loss: {name: ce_brier, options: {weight: 0.2}}}
          seed: [0, 1]
        exclude: [{method: plain, seed: 1}]
        runs: {long: {train.epochs: 9, name: the long one}}
        """,
    )
    assert [run.name for run in runs] == ["plain-seed0", "ours-seed0", "ours-seed1", "long"]
    assert [dict(run.settings) for run in runs[:2]] == [{"method": "plain", "seed": 0}, {"method": "ours", "seed": 0}]
    specs = [run.spec() for run in runs]
    assert [spec.train.epochs for spec in specs] == [4, 4, 4, 9]
    assert [spec.model.head for spec in specs[:2]] == ["none", "calattn"]
    assert specs[2].loss.options == {"weight": 0.2}
    assert [spec.name for spec in specs] == ["plain-seed0", "ours-seed0", "ours-seed1", "the long one"]


@pytest.mark.parametrize(
    ("vary", "expected"),
    [
        ("{seed: [0, 1]}", ["seed0", "seed1"]),
        ("{model.head: [none, calattn], data.name: cifar10}", ["none", "calattn"]),
        ("{optimizer.lr: [0.001, 1e-4]}", ["lr0.001", "lr0.0001"]),
        ("{data.size: [null, 32]}", ["no-size", "size32"]),
        ("{train.channels_last: [true, false]}", ["channels_lastTrue", "channels_lastFalse"]),
        ("{loss.options: [{a: 1}, {a: 2}]}", ["options1", "options2"]),
        ("{data.name: ['imagefolder:/a/b', mnist]}", ["imagefolder_a_b", "mnist"]),
        ("[{seed: 0}, {seed: 0, model.head: none}]", ["run", "none"]),
        ("{x: {../up: {seed: 1}, b: {seed: 2}}}", ["_up", "b"]),
    ],
)
def test_names_are_what_varies_and_safe_as_folders(tmp_path, vary, expected):
    assert names(tmp_path, f"base: digits\nvary: {vary}") == expected


def test_the_base_may_be_a_spec_beside_the_grid_and_changes_come_last(tmp_path, monkeypatch):
    (tmp_path / "mine.yaml").write_text("base: digits\ntrain: {epochs: 7}\n")
    (tmp_path / "grid.yaml").write_text("base: mine.yaml\nset: [optimizer.lr=0.5]\nvary: {seed: [3]}\n")
    monkeypatch.chdir("/")
    (run,) = read_grid(tmp_path / "grid.yaml", ["optimizer.lr=0.25"])
    spec = run.spec()
    assert (spec.train.epochs, spec.optimizer.lr, spec.seed) == (7, 0.25, 3)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("base: digits", "names no runs"),
        ("vary: {seed: [0]}", "base: Field required"),
        ("base: digits\nvery: {seed: [0]}", "very: .* a grid has base, set, vary, runs, exclude"),
        ("base: digits\nvary: {method: [a, b]}", "'method' is no key of a spec"),
        ("base: digits\nvary: {seeed: [1]}", "did you mean 'seed'"),
        ("base: digits\nvary: [3]", "vary.0: "),
        ("base: digits\nset: 3\nvary: {seed: 1}", "set.*: "),
        ("base: digits\nvary: {seed: [1]}\nexclude: [{seed: 2}]", "matches no run"),
        ("base: digits\nvary: {seed: [1]}\nexclude: [{}]", "exclude.0: "),
        ("base: digits\nruns: [a]", "runs: "),
        ("base: digits\nvary: {x: {a: {seed: 1}, A: {seed: 2}}}", "two runs would have the name"),
        ("base: digits\nvary: {data.name: [" + "a" * 200 + ", b]}", "too long"),
    ],
)
def test_a_grid_that_is_wrong_is_named_with_the_place_and_the_remedy(tmp_path, text, said):
    with pytest.raises(GridError, match=said) as error:
        grid(tmp_path, text)
    assert "grid.yaml" in str(error.value)


def test_a_run_with_a_wrong_key_is_named(tmp_path):
    (run,) = grid(tmp_path, "base: digits\nvary: {model.heads: [none]}")
    with pytest.raises(GridError, match=r"the run run: unknown key 'model.heads'; did you mean 'model.head'"):
        run.spec()


def test_a_pattern_chooses_and_must_match(tmp_path):
    runs = grid(tmp_path, "base: digits\nvary: {seed: [0, 1, 12]}")
    assert [run.name for run in chosen(runs, "seed1*")] == ["seed1", "seed12"]
    with pytest.raises(GridError, match="no run matches --only 'x'"):
        chosen(runs, "x")
