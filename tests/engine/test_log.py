"""The run log: rows survive kills and non-finite numbers, rewinding is exact, TensorBoard reads the mirror."""

from __future__ import annotations

import json
from pathlib import Path

import hypothesis.strategies as st
import numpy as np
import pyarrow.json
import pytest
import torch
from hypothesis import given
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from calattn.engine.log import RunLog
from calattn.runs.folder import RunFolder
from calattn.runs.spec import RunSpec
from calattn.runs.trackers import loggers_of

scalars = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.text()
)
values = st.recursive(scalars, lambda v: st.one_of(st.lists(v), st.dictionaries(st.text(), v)), max_leaves=8)


@given(rows=st.lists(st.dictionaries(st.text(), values, max_size=4), max_size=4))
def test_rows_come_back(tmp_path_factory: pytest.TempPathFactory, rows: list[dict[str, object]]) -> None:
    log = RunLog(tmp_path_factory.mktemp("log") / "log.jsonl")
    for row in rows:
        log.append(row)
    assert log.rows() == rows
    assert RunLog(log.path).rows() == rows


def test_a_line_is_json_for_everybody(tmp_path: Path) -> None:
    log = RunLog(tmp_path / "new" / "log.jsonl")
    log.append(
        {"epoch": 1, "train": {"loss": float("nan")}, "q": (float("inf"), -float("inf"), 0.1), "name": "größe\n"}
    )
    text = log.path.read_text(encoding="utf-8")
    assert text.count("\n") == 1

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    found = json.loads(text, parse_constant=refuse)
    assert found == {"epoch": 1, "train": {"loss": None}, "q": [None, None, 0.1], "name": "größe\n"}
    assert pyarrow.json.read_json(log.path)["epoch"].to_pylist() == [1]


@pytest.mark.parametrize(
    ("row", "named"),
    [
        ({"a": {"b": torch.ones(1)}}, r"row\.a\.b is a Tensor"),
        ({"a": [np.float32(1)]}, r"row\.a\[0\] is a float32"),
        ({"a": {1: 2}}, r"row\.a has the key 1"),
    ],
)
def test_what_json_cannot_hold_is_named(tmp_path: Path, row: dict[str, object], named: str) -> None:
    log = RunLog(tmp_path / "log.jsonl")
    with pytest.raises(ValueError, match=named):
        log.append(row)
    assert not log.path.exists()


def test_a_cut_off_last_line_is_dropped_at_every_length(tmp_path: Path) -> None:
    log = RunLog(tmp_path / "log.jsonl")
    log.append({"epoch": 1})
    start = log.path.stat().st_size
    log.append({"epoch": 2, "name": "ü"})
    whole = log.path.read_bytes()
    for length in range(start, len(whole) - 1):  # without the newline alone, the row is whole
        log.path.write_bytes(whole[:length])
        assert log.rows() == [{"epoch": 1}]
        log.append({"epoch": 3})
        assert log.rows() == [{"epoch": 1}, {"epoch": 3}]
    log.path.write_bytes(whole[:-1])
    log.append({"epoch": 3})
    assert [row["epoch"] for row in log.rows()] == [1, 2, 3]


def test_a_damaged_line_in_the_middle_is_named(tmp_path: Path) -> None:
    log = RunLog(tmp_path / "log.jsonl")
    log.path.write_text('{"epoch": 1}\n{"epo\n{"epoch": 3}\n')
    with pytest.raises(ValueError, match=r"log\.jsonl, line 2 is not JSON"):
        log.rows()
    log.path.write_text('{"epoch": 1}\n{"epo\n')  # not cut off: its line has an end
    with pytest.raises(ValueError, match="line 2 is not JSON"):
        log.rows()
    log.path.write_text('{"epoch": 1}\n[]\n')
    with pytest.raises(ValueError, match="line 2 is no JSON object"):
        log.rows()


def test_rewind_drops_later_epochs_and_keeps_events(tmp_path: Path) -> None:
    log = RunLog(tmp_path / "log.jsonl")
    log.rewind(3)
    assert not log.path.exists()
    rows = [{"event": "start"}, {"epoch": 1}, {"epoch": 2}, {"event": "resume", "epoch": None}, {"epoch": 3}]
    for row in rows:
        log.append(row)
    with log.path.open("a") as file:
        file.write('{"epoch": 4')
    log.rewind(2)
    assert log.rows() == rows[:4]
    assert log.path.read_bytes().endswith(b"}\n")
    log.rewind(0)
    assert log.rows() == [rows[0], rows[3]]


# --- TensorBoard


def events(folder: Path):
    found = EventAccumulator(str(folder), size_guidance={"scalars": 0, "histograms": 0})
    return found.Reload()


def scalar(folder: Path, tag: str) -> list[tuple[int, float]]:
    return [(event.step, round(event.value, 6)) for event in events(folder).Scalars(tag)]


def mirrored(path: Path) -> RunLog:
    return RunLog(path / "log.jsonl", loggers=loggers_of(["tensorboard"], RunFolder(path), RunSpec()))


def test_tensorboard_reads_scalars_and_histograms(tmp_path: Path) -> None:
    sample = np.random.default_rng(0).normal(3.0, 0.2, size=500)
    counts, edges = np.histogram(sample, bins=8)
    histogram = {"counts": counts.tolist(), "edges": edges.tolist()}
    log = mirrored(tmp_path)
    log.append({"event": "start", "seconds": 3.0})
    log.append(
        {"epoch": 1, "event": "epoch", "validation": {"ece": 0.25, "bad": float("nan"), "none": None}, "flag": True}
    )
    log.append({"epoch": 2, "validation": {"ece": 0.125}, "scale": {"histogram": histogram, "quantiles": [0.5, 2]}})
    place = tmp_path / "trackers" / "tensorboard"
    assert scalar(place, "validation/ece") == [(1, 0.25), (2, 0.125)]
    assert scalar(place, "scale/quantiles/1") == [(2, 2.0)]
    found = events(place)
    assert sorted(found.Tags()["scalars"]) == ["scale/quantiles/0", "scale/quantiles/1", "validation/ece"]
    (event,) = found.Histograms("scale/histogram")
    value = event.histogram_value
    assert event.step == 2
    assert (value.num, value.min, value.max) == (500, edges[0], edges[-1])
    assert value.bucket_limit == edges.tolist()
    assert value.bucket == [0, *counts]
    assert value.sum / value.num == pytest.approx(sample.mean(), abs=0.02)
    assert value.sum_squares / value.num == pytest.approx((sample**2).mean(), abs=0.2)


@pytest.mark.parametrize("restarted", [True, False])
def test_a_resumed_log_hides_what_it_rewound(tmp_path: Path, restarted: bool) -> None:
    log = mirrored(tmp_path)
    for epoch in (1, 2, 3):
        log.append({"epoch": epoch, "loss": float(epoch)})
    again = mirrored(tmp_path) if restarted else log
    again.rewind(1)
    again.append({"epoch": 2, "loss": 20.0})
    assert scalar(tmp_path / "trackers" / "tensorboard", "loss") == [(1, 1.0), (2, 20.0)]


def test_no_event_file_before_a_row(tmp_path: Path) -> None:
    mirrored(tmp_path).rewind(0)
    assert list(tmp_path.iterdir()) == []
