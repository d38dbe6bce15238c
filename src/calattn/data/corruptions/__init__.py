"""Fifteen corruptions at five severities: `corrupt(images, "fog", 5, generator=…)`."""

from calattn.data.corruptions import effects  # importing registers
from calattn.data.corruptions.kinds import CORRUPTIONS, SEVERITIES, Corruption, corrupt

__all__ = ["CORRUPTIONS", "SEVERITIES", "Corruption", "corrupt", "effects"]
