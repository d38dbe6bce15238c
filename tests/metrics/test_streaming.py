"""States: constant memory, merging errors, torchmetrics wrappers alone and under two processes."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
import torch

from calattn import Predictions, evaluate, stream_predictions
from calattn.cli import subjects
from calattn.metrics import METRICS, MetricState, torchmetrics
from calattn.metrics.torchmetrics import CalibrationMetric, CalibrationMetrics
from calattn.posthoc import TemperatureScaling
from tests.forking import Forked
from tests.samples import logits_and_labels


def tensors_of(value: object) -> int:
    """Bytes held by the tensors reachable from a state."""
    if isinstance(value, torch.Tensor):
        return value.numel() * value.element_size()
    if hasattr(value, "__dict__"):
        return sum(tensors_of(part) for part in vars(value).values())
    return 0


def test_memory_does_not_grow():
    state = MetricState(tuple(METRICS), rank_capacity=1000)
    sizes = []
    for seed in range(12):
        logits = torch.randn(500, 20, generator=torch.Generator().manual_seed(seed))
        state.update_logits(logits, torch.arange(500) % 20)
        sizes.append(tensors_of(state))
    assert len(set(sizes[3:])) == 1
    assert sizes[-1] < 16 * 2**20


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads Linux's own count of resident pages")
def test_one_pass_takes_little_memory():
    """40 MB of logits: widened copies left between kept results would hold 80 MB more."""
    from benchmarks.timing import peak_extra

    logits = torch.randn(20_000, 500, generator=torch.Generator().manual_seed(0))
    p = Predictions(logits=logits, labels=torch.arange(20_000) % 500)
    assert peak_extra(lambda: evaluate(p, num_bootstrap=0)) < 40


class Bar:
    """Stands in for the progress bar and remembers what it was told."""

    def __init__(self) -> None:
        self.tasks: list[tuple[str, int | None]] = []
        self.completed: list[int] = []

    def __enter__(self) -> Bar:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def add_task(self, description: str, total: int | None) -> int:
        self.tasks.append((description, total))
        return 0

    def update(self, _: int, completed: int) -> None:
        self.completed.append(completed)


def test_the_bar_follows_every_pass_and_learns_the_length_of_a_csv(tmp_path, monkeypatch):
    path, bar = tmp_path / "a[b].csv", Bar()
    path.write_text("prob_0,prob_1,label\n" + "0.75,0.25,0\n" * 25)
    monkeypatch.setattr(subjects, "progress", lambda: bar)
    near = Predictions(logits=torch.tensor([[2.0, 0.0]] * 4), labels=torch.tensor([0, 0, 0, 1]))  # best at 1.8
    halved = TemperatureScaling("ece", grid=[1.0, 2.0, 3.0]).fit(near)
    assert halved.temperature_ == 2.0
    blocks = subjects.Blocks(stream_predictions(path, rows_per_block=10), "a[b].csv\n+ T = 2", halved)
    for _ in range(2):
        passed = list(blocks)
        assert [len(block) for block in passed] == [10, 10, 5]
        assert all(float(block.probs[0, 0]) == pytest.approx(3**0.5 / (1 + 3**0.5)) for block in passed)
    assert bar.tasks == [(r"reading a\[b].csv + T = 2", None), (r"reading a\[b].csv + T = 2, pass 2", 25)]
    assert bar.completed == [10, 20, 25] * 2


def test_a_pass_given_up_half_way_does_not_tell_the_length(tmp_path, monkeypatch):
    path = tmp_path / "a.csv"
    path.write_text("prob_0,prob_1,label\n" + "0.75,0.25,0\n" * 25)
    monkeypatch.setattr(subjects, "progress", Bar)
    blocks = subjects.Blocks(stream_predictions(path, rows_per_block=10), "a.csv")
    next(iter(blocks))
    assert blocks.rows is None


def of_classes(count: int) -> MetricState:
    return MetricState("classwise_ece").update_logits(torch.randn(4, count), torch.zeros(4, dtype=torch.int64))


@pytest.mark.parametrize(
    ("one", "other", "message"),
    [
        (MetricState("ece"), MetricState("ece", num_bins=10), "cannot merge"),
        (MetricState("ece"), MetricState("ece", threshold=0.5), "cannot merge"),
        (MetricState("ece"), MetricState("mce"), "cannot merge"),
        (MetricState("smooth_ece"), MetricState("smooth_ece", bandwidth=0.1), "cannot merge"),
        (of_classes(3), of_classes(5), "cannot merge"),
        (MetricState("aurc", rank_capacity=5), MetricState("aurc"), "capacity"),
    ],
)
def test_merging_different_questions_is_refused(one, other, message):
    with pytest.raises(ValueError, match=message):
        one.merge(other)


ALL = tuple(METRICS)


def test_torchmetrics_wrapper_forward_clone_pickle_and_device_moves():
    logits, labels = logits_and_labels("ten_classes")
    metric = CalibrationMetric("ece", num_classes=10, from_logits=True)
    batch = metric(logits[:100], labels[:100])
    assert float(batch) == pytest.approx(float(metric.compute()))
    copy = pickle.loads(pickle.dumps(metric.clone().to("cpu")))
    copy.update(logits[100:], labels[100:])
    assert float(copy.compute()) == pytest.approx(MetricState("ece").update_logits(logits, labels).compute()["ece"])


def test_torchmetrics_wrapper_needs_to_know_its_input():
    with pytest.raises(TypeError, match="from_logits"):
        CalibrationMetric("ece", num_classes=3)
    metric = CalibrationMetric("ece", num_classes=3, from_logits=False)
    with pytest.raises(ValueError, match="sums to"):
        metric.update(torch.tensor([[2.0, 1.0, 0.0]]), torch.tensor([0]))
    with pytest.raises(ValueError, match="num_classes is 3"):
        metric.update(torch.tensor([[0.5, 0.5]]), torch.tensor([0]))


WORKER = """
import sys
from torch import distributed
from calattn.metrics import torchmetrics
from tests.metrics.test_streaming import assert_synchronised
rank, path = int(sys.argv[1]), sys.argv[2]
distributed.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=2)
for torchmetrics.SLOTS in (torchmetrics.SLOTS, 2000):
    assert_synchronised(rank, 2)
distributed.destroy_process_group()
"""


def assert_synchronised(rank: int, world: int) -> None:
    logits, labels = logits_and_labels("ten_classes")
    metric = CalibrationMetrics(ALL, num_classes=10, from_logits=True)
    metric.update(logits[rank::world], labels[rank::world])
    synced = {name: float(value) for name, value in metric.compute().items()}
    expected = MetricState(ALL, rank_capacity=torchmetrics.SLOTS).update_logits(logits, labels).compute()
    assert synced == pytest.approx(expected, abs=1e-9)
    alone = MetricState(ALL).update_logits(logits[rank::world], labels[rank::world]).compute()
    assert synced["ece"] != pytest.approx(alone["ece"], abs=1e-6)
    unequal = CalibrationMetric("aurc", num_classes=10, from_logits=True)
    if rank == 0:  # the other process has no samples, and has to take part all the same
        unequal.update(logits[:500], labels[:500])
    expected = MetricState("aurc").update_logits(logits[:500], labels[:500]).compute()
    assert float(unequal.compute()) == pytest.approx(expected["aurc"], abs=1e-9)


def test_torchmetrics_wrapper_synchronises_two_processes(tmp_path):
    processes = [Forked(WORKER, rank, tmp_path / "rendezvous", environment={}) for rank in (0, 1)]
    said = "".join(process.communicate()[1] for process in processes)
    assert [process.returncode for process in processes] == [0, 0], said
