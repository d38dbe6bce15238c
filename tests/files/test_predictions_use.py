"""Predictions: how they are made, what is noticed, how they print."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn

import calattn
from calattn import Predictions, attach, evaluate
from calattn.backbones import create
from calattn.metrics import MetricState

pytestmark = pytest.mark.usefixtures("untyped")


def test_stated_probabilities_end_with_new_logits_or_a_scale():
    stated = Predictions.from_probs(torch.tensor([[0.9, 0.1]] * 4), torch.tensor([0, 0, 1, 1]))
    assert stated.select(torch.arange(2)).stated_probs is not None
    assert stated.replace(scale=torch.full((4,), 2.0)).stated_probs is None
    assert float(stated.replace(scale=torch.full((4,), 2.0)).probs[0, 0]) == pytest.approx(0.75)
    with pytest.raises(ValueError, match="stated_probs needs the shape"):
        Predictions(logits=torch.zeros(4, 2), labels=torch.zeros(4).long(), stated_probs=torch.zeros(4, 3))


def test_from_output_keeps_what_every_head_says():
    for head in calattn.heads.HEADS:
        model = attach(create("vit_nano_patch8_32", num_classes=10), head=head).eval()
        for parameter in model.head.parameters():
            nn.init.normal_(parameter, std=0.1)
        out = model.output(torch.randn(4, 3, 32, 32))
        p = Predictions.from_output(out, torch.arange(4), split="test")
        assert torch.allclose(p.probs, out.probs, atol=1e-6), head
        assert p.features is not None
        assert not p.logits.requires_grad
    with pytest.raises(ValueError, match=r"use Predictions\.from_output"):
        Predictions(logits=out, labels=torch.arange(4))


def test_probabilities_passed_as_logits_are_noticed():
    probs = torch.randn(10, 4).softmax(1)
    with pytest.warns(UserWarning, match="look like probabilities"):
        Predictions(logits=probs, labels=torch.zeros(10).long())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Predictions(logits=probs.log(), labels=torch.zeros(10).long())


def test_one_based_labels_get_the_remedy():
    with pytest.raises(ValueError, match="look 1-based: subtract 1"):
        Predictions(logits=torch.randn(6, 3), labels=torch.tensor([1, 2, 3, 1, 2, 3]))


def test_reprs_are_short():
    p = Predictions(logits=torch.randn(60, 3), labels=torch.zeros(60).long(), split="test")
    assert repr(p) == "Predictions(60 samples, 3 classes, float32, split='test')"
    assert repr(evaluate(p, num_bootstrap=0)).startswith("60 samples, 3 classes")
    assert "no predictions" in repr(MetricState("ece"))


def test_backbones_are_there_without_an_import():
    assert "resnet50_cifar" in calattn.backbones.BACKBONES
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = calattn.nonsense
