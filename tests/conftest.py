"""Shape and type checks are on in the tests: jaxtyping's import hook puts beartype on calattn's functions."""

import os
import signal
from collections.abc import Iterator

os.environ["OMP_NUM_THREADS"] = "1"  # for the processes that tests start
os.environ["CALATTN_DATA"] = os.path.join(
    os.path.dirname(__file__), "no-data"
)  # no test reads what a user has downloaded
# A shell lets the children of `make test &` ignore Ctrl-C, which is tested.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

import hypothesis
import jaxtyping
import pytest
import torch

import tests.typecheck  # noqa: F401  (puts the checks on, and so comes before calattn)
from tests.browser import chromium
from tests.sweeps import clusters

pytest_plugins = ["tests.waiting"]

torch.set_num_threads(1)  # two pytest workers on two cores: a pool each would fight, and lose by a factor of ten

hypothesis.settings.register_profile(
    "calattn",
    deadline=None,
    max_examples=40,
    derandomize=True,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("calattn")


@pytest.fixture
def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


@pytest.fixture
def untyped() -> Iterator[None]:
    """Shape checks off: for tests of our own errors, which a shape checker would otherwise pre-empt."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


def pytest_configure(config: pytest.Config) -> None:
    """In pyproject.toml, pytest would import calattn for this class before the checks are on."""
    config.addinivalue_line("filterwarnings", "error::calattn.posthoc.SameDataWarning")


# The files that take longest, longest first: short tests then fill the time until both workers are done.
LONGEST = (
    "integration/test_distributed.py",
    "reproduction/test_runner.py",
    "integration/test_teaching.py",
    "integration/test_resume.py",
    "reproduction/test_committed_results.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    def place(item: pytest.Item) -> int:
        return next((i for i, name in enumerate(LONGEST) if item.path.as_posix().endswith(name)), len(LONGEST))

    items.sort(key=place)


def pytest_terminal_summary(terminalreporter) -> None:
    """Tests that could not run are easily overlooked: one line says so."""
    for what, reason in (("of the browser", chromium.missing()), ("of Ray", clusters.missing())):
        if reason is not None:
            terminalreporter.write_line(f"The tests {what} did not run: {reason}.")
