"""Readers for what other programs saved: .npz, .npy, .csv, Parquet, safetensors and torch files."""

from calattn.readers.names import Kind
from calattn.readers.reading import SUFFIXES, read_predictions, stream_predictions
from calattn.readers.stream import PredictionStream
from calattn.store import PredictionFileError, PredictionFileMissing

__all__ = [
    "SUFFIXES",
    "Kind",
    "PredictionFileError",
    "PredictionFileMissing",
    "PredictionStream",
    "read_predictions",
    "stream_predictions",
]
