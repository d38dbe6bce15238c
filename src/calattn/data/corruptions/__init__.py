"""Fifteen corruptions at five severities: `corrupt(images, "fog", 5, generator=…)`."""

# Importing registers, and the paper's order is noise, blur, weather, digital.
# isort: off
from calattn.data.corruptions import noise, blur, weather, digital
from calattn.data.corruptions.kinds import CORRUPTIONS, SEVERITIES, Corruption, corrupt

__all__ = ["CORRUPTIONS", "SEVERITIES", "Corruption", "blur", "corrupt", "digital", "noise", "weather"]
