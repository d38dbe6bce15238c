"""The same answers on a GPU. These run where there is one: `pytest tests/integration/test_cuda.py`."""

from __future__ import annotations

import pytest
import torch

import calattn
from calattn import Predictions, losses, metrics, posthoc
from calattn.backbones import create
from calattn.heads import HEADS
from calattn.metrics import METRICS, MetricState
from calattn.metrics.torchmetrics import CalibrationMetrics

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.usefixtures("untyped"),
]


def predictions(n: int = 3000, c: int = 50) -> Predictions:
    g = torch.Generator().manual_seed(0)
    logits = torch.randn(n, c, generator=g) * 3
    labels = torch.multinomial((logits / 1.5).softmax(1), 1, generator=g).squeeze(1)
    return Predictions(logits=logits, labels=labels, features=torch.randn(n, 16, generator=g))


def on_gpu(p: Predictions) -> Predictions:
    return p.replace(logits=p.logits.cuda(), labels=p.labels.cuda(), features=p.features.cuda())


def test_every_metric():
    p = predictions()
    cpu = MetricState(tuple(METRICS)).update_logits(p.logits, p.labels).compute()
    gpu = MetricState(tuple(METRICS)).update_logits(p.logits.cuda(), p.labels.cuda()).compute()
    assert gpu == pytest.approx(cpu, abs=2e-6, nan_ok=True)
    for name in ("ece", "adaptive_ece", "classwise_ece", "smooth_ece", "kernel_ece", "brier", "aurc"):
        function = getattr(metrics, name)
        assert function(p.probs.cuda(), p.labels.cuda()) == pytest.approx(function(p.probs, p.labels), abs=2e-6), name


def test_evaluate_and_compare():
    p = predictions()
    cpu, gpu = calattn.evaluate(p, num_bootstrap=50).as_dict(), calattn.evaluate(on_gpu(p), num_bootstrap=50).as_dict()
    for name, row in cpu.items():
        assert gpu[name] == pytest.approx(row, abs=1e-4, nan_ok=True), name
    assert not calattn.compare(on_gpu(p), on_gpu(p), num_bootstrap=20)["ece"].significant


def test_torchmetrics_wrapper():
    p = predictions()
    metric = CalibrationMetrics(["ece", "nll", "classwise_ece"], num_classes=50, from_logits=True).cuda()
    metric.update(p.logits.cuda(), p.labels.cuda())
    expected = MetricState(["ece", "nll", "classwise_ece"]).update_logits(p.logits, p.labels).compute()
    assert {k: float(v) for k, v in metric.compute().items()} == pytest.approx(expected, abs=2e-6)


@pytest.mark.parametrize("name", sorted(posthoc.CALIBRATORS))
def test_every_calibrator(name):
    two = {"c": 2} if name == "venn_abers" else {}
    p = predictions(**two)
    cpu, gpu = (posthoc.CALIBRATORS[name]().fit(q) for q in (p, on_gpu(p)))
    fresh = predictions(n=500, **two)
    a, b = cpu(fresh), gpu(on_gpu(fresh))
    assert b.logits.is_cuda
    drift = (a.probs - b.probs.cpu()).abs().max()
    assert drift < (
        0.05 if name in ("sats", "frozen_calattn") else 1e-4
    )  # trained by steps: rounding takes its own way


@pytest.mark.parametrize("loss", sorted(losses.LOSSES))
@pytest.mark.parametrize("head", sorted(HEADS))
def test_a_bf16_step_without_a_synchronisation(loss, head):
    """No host–device synchronisation inside forward, loss and backward, for every loss and head."""
    model = calattn.attach(create("vit_nano_patch8_32", num_classes=10), head=head).cuda()
    images, labels = torch.randn(16, 3, 32, 32, device="cuda"), torch.randint(10, (16,), device="cuda")
    function = losses.create(loss)

    def step() -> torch.Tensor:
        with torch.autocast("cuda", dtype=torch.bfloat16):
            out = model.output(images)
        value = function(out.calibrated_logits, labels)
        value.backward()
        assert out.scale.dtype == torch.float32
        return value

    step()
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        value = step()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert torch.isfinite(value)
    assert all(torch.isfinite(p.grad).all() for p in model.parameters() if p.grad is not None)


@pytest.mark.parametrize("soft", [False, True], ids=["hard", "soft"])
@pytest.mark.parametrize("name", sorted(losses.LOSSES))
def test_compiled_slopes_equal_eager(name, soft):
    """With a scale as CalAttn has it. A compiled backward pass computes values again, rounded otherwise: dual focal's
    slope was NaN from the first update on."""
    torch.compiler.reset()
    function = losses.create(name)

    def step(logits: torch.Tensor, scale: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return function(logits / scale.unsqueeze(1), labels)

    g = torch.Generator(device="cuda").manual_seed(0)
    logits = torch.randn(512, 10, device="cuda", generator=g).bfloat16().requires_grad_()
    scale = (torch.rand(512, device="cuda", generator=g) + 0.5).requires_grad_()
    labels = torch.randint(10, (512,), device="cuda", generator=g)
    if soft:
        labels = torch.randn(512, 10, device="cuda", generator=g).softmax(dim=1)
    expected = torch.autograd.grad(step(logits, scale, labels), scale)[0]
    found = torch.autograd.grad(torch.compile(step, fullgraph=True)(logits, scale, labels), scale)[0]
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("name", ["vit_nano_patch8_32", "swin_nano_patch4_window4_32", "resnet8_cifar"])
def test_compiled_equals_eager(name):
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    model = calattn.attach(create(name, num_classes=10)).cuda().eval().to(memory_format=torch.channels_last)
    torch.nn.init.normal_(next(p for n, p in model.head.named_parameters() if n.endswith("fc2.weight")))
    images = torch.randn(8, 3, 32, 32, device="cuda").to(memory_format=torch.channels_last)
    with torch.no_grad():
        expected = model(images)
        found = torch.compile(model, fullgraph=True)(images)
    assert float((found - expected).abs().max()) < 2e-4 * max(1.0, float(expected.abs().max()))
