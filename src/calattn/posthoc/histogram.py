"""Histogram binning: the observed frequency of each class in each bin of its probability."""

from __future__ import annotations

import dataclasses
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from calattn import checks
from calattn.metrics.binning import bin_edges, bin_index, equal_count_bounds
from calattn.posthoc.base import CALIBRATORS, Learned
from calattn.posthoc.modules import BinnedProbs
from calattn.posthoc.one_vs_rest import OneVsRestCalibrator, class_probs
from calattn.types import Predictions


@CALIBRATORS.register("histogram")
@dataclasses.dataclass(kw_only=True, eq=False, repr=False)
class HistogramBinning(OneVsRestCalibrator):
    """g_k(p) = share of samples with label k among those whose p_k falls into p's bin, then normalised.

    Zadrozny & Elkan 2001. `bins="width"` is (k/m, (k+1)/m]; `bins="count"` puts equally many samples of the
    fitting split into each bin. An empty bin answers with its middle.

    >>> p = Predictions.from_probs(torch.tensor([[0.9, 0.1], [0.8, 0.2]] * 2), torch.tensor([0, 1, 0, 0]))
    >>> new = Predictions.from_probs(torch.tensor([[0.7, 0.3]]), torch.tensor([0]))
    >>> HistogramBinning(num_bins=2).fit(p)(new).probs.numpy().round(4).tolist()
    [[0.75, 0.25]]
    """

    num_bins: int = 15
    bins: Literal["width", "count"] = "width"
    edges_: Float[Tensor, "c m1"] = dataclasses.field(init=False, repr=False)
    frequencies_: Float[Tensor, "c m"] = dataclasses.field(init=False, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.positive_int(self.num_bins, "num_bins")
        if self.bins not in ("width", "count"):
            raise ValueError(f"bins must be 'width' or 'count', got {self.bins!r}")

    def _fit(self, predictions: Predictions) -> dict[str, Learned]:
        all_edges, all_frequencies = [], []
        for columns, probs in class_probs(predictions):
            edges = self._edges(probs)
            index = self._index(probs, edges[:, 1:-1].contiguous())
            width = columns.stop - columns.start
            flat = index.add_(torch.arange(width, device=index.device).unsqueeze(1) * self.num_bins)
            count = torch.bincount(flat.flatten(), minlength=width * self.num_bins).view(width, -1).double()
            mine = (predictions.labels >= columns.start) & (predictions.labels < columns.stop)
            own_class = predictions.labels[mine] - columns.start
            own_bins = flat[own_class, mine.nonzero().squeeze(1)]
            hits = torch.bincount(own_bins, minlength=width * self.num_bins).view(width, -1)
            middle = (edges[:, :-1] + edges[:, 1:]) / 2
            all_frequencies.append(torch.where(count > 0, hits / count, middle).cpu())
            all_edges.append(edges[:, 1:-1].cpu())
        return {"edges_": torch.cat(all_edges), "frequencies_": torch.cat(all_frequencies)}

    def _edges(self, probs: Tensor) -> Tensor:
        """[columns, num_bins + 1] edges; a bin holds its upper one."""
        if self.bins == "width":
            return bin_edges(self.num_bins).to(probs).expand(probs.shape[0], -1)
        bounds = equal_count_bounds(probs.shape[1], self.num_bins)[1:-1]
        # With fewer samples than bins a bound can be 0: that bin ends before the first sample, and stays
        # empty.
        inner = probs.sort(dim=1).values[:, (bounds - 1).clamp_min(0).to(probs.device)]
        inner[:, (bounds == 0).to(probs.device)] = 0.0
        zero = torch.zeros_like(probs[:, :1])
        return torch.cat([zero, inner, torch.ones_like(zero)], dim=1)

    def _index(self, probs: Tensor, inner_edges: Tensor) -> Tensor:
        if self.bins == "width":
            return bin_index(probs, self.num_bins)
        return torch.searchsorted(inner_edges, probs, right=False)

    def _module(self) -> BinnedProbs:
        return BinnedProbs(self.edges_, self.frequencies_, floor=self.floor)

    def _mapped(self, probs: Tensor, first_class: int) -> Tensor:
        rows = slice(first_class, first_class + probs.shape[0])
        index = self._index(probs, self.edges_[rows].to(probs).contiguous())
        return self.frequencies_[rows].to(probs.device).gather(1, index)
