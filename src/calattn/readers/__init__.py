"""Readers for what other programs saved: .npz, .npy, .csv, Parquet, safetensors and torch files."""

from calattn.files.predictions import PredictionFileError, PredictionFileMissing
from calattn.readers.choice import ReadOptions
from calattn.readers.formats import SUFFIXES
from calattn.readers.reading import read_predictions, stream_predictions
from calattn.readers.stream import PredictionStream
from calattn.types import Kind

__all__ = [
    "SUFFIXES",
    "Kind",
    "PredictionFileError",
    "PredictionFileMissing",
    "PredictionStream",
    "ReadOptions",
    "read_predictions",
    "stream_predictions",
]
