"""Heads: they read the features and judge the logits. `calattn.attach` puts one on a network."""

from calattn.heads.base import HEADS, Head
from calattn.heads.joint import CalAttn, Dirichlet, NoHead, RelaxedSoftmax, evidence, log_evidence
from calattn.heads.lesson import Lesson, Reading, teach_head
from calattn.heads.taught import Taught

__all__ = [
    "HEADS",
    "CalAttn",
    "Dirichlet",
    "Head",
    "Lesson",
    "NoHead",
    "Reading",
    "RelaxedSoftmax",
    "Taught",
    "evidence",
    "log_evidence",
    "teach_head",
]
