"""Fixtures and settings for every test."""

import atexit
import gc
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hub_server import HubServer
from hypothesis import HealthCheck, settings

# The models of the tests are small: more threads cost more than they save, above all where the
# machine has other work. A test that is about threads sets their number itself.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# A busy machine takes long to draw an example, and that is no fault of the test.
settings.register_profile(
    "busy", settings(), deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("busy")

# No test reaches the network: where the hub should be, nobody listens.
os.environ["HF_ENDPOINT"] = "http://127.0.0.1:9"


#: Files whose tests wait for other processes. They come before those that compute, so that one
#: worker waits while the others have a core each: that takes a tenth less time.
WAITING = {
    *("test_downloads", "test_fetch", "test_hub", "test_hub_names", "test_images"),
    *("test_installed", "test_profiling_cluster", "test_profiling_workers", "test_queue"),
    *("test_server", "test_zoo_repositories"),
}


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Three run folders, as tests of the browser wait; for a file, starting them takes longer, and
    bars of time are run alone."""
    alone = config.option.markexpr == "bars" or not all(Path(path).is_dir() for path in config.args)
    return 0 if alone else 3


def _kind(item: pytest.Item) -> int:
    if item.get_closest_marker("browser"):
        return 0
    return 1 if item.path.stem in WAITING else 2


@pytest.hookimpl(tryfirst=True)  # before -m chooses
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """What takes the browser is marked so, and comes first; then what waits, then what computes.
    Bars of time run only where -m names them."""
    for item in items:
        if "browser" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.browser)
    items.sort(key=_kind)
    if "bars" not in config.option.markexpr:
        bars = [item for item in items if item.get_closest_marker("bars")]
        config.hook.pytest_deselected(items=bars)
        items[:] = [item for item in items if item not in bars]


def pytest_collectstart() -> None:
    """Nearly all that imports make stays: to search it for garbage would take two seconds."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Garbage is collected again, but seldom, and not searched for in what was made until here."""
    gc.freeze()
    gc.set_threshold(10_000)  # objects, instead of 700: the models that tests share stay
    gc.enable()
    atexit.register(gc.unfreeze)  # otherwise libraries report leaks at exit


@pytest.fixture(autouse=True)
def draws_the_same() -> None:
    """A test that names no seed draws the same numbers alone, after others, and in each run."""
    import torch  # the number of its threads is set above, before it is imported

    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def reads_free_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is free is read each time, as tests change it from one moment to the next."""
    monkeypatch.setattr("vitviz.model.memory._SMALL", 0)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The hub's cache, empty; no proxy and no switch of this machine has a say."""
    for name in [name for name in os.environ if name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, cache: Path) -> Iterator[HubServer]:
    """Stands where the hub should be, in front of an empty cache."""
    server = HubServer()
    monkeypatch.setenv("HF_ENDPOINT", server.address)
    yield server
    server.close()
