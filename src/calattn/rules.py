"""The checkpoint rules: by which epoch's weights a run is judged, its last or the best on validation by some metric."""

from typing import Literal, get_args

Rule = Literal["last", "best-nll", "best-ece", "best-accuracy", "best-nll-ts"]
RULES: tuple[Rule, ...] = get_args(Rule)
