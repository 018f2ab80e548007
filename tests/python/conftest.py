"""Fixtures that every test may use."""

from __future__ import annotations

import atexit
import gc
import os
import shutil
import subprocess
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest

import kvtrie as kv
import redis_server
import skips
from circles import CIRCLE, DRAW, beyond, drawn
from fakes import CodingModel
from processes import ROOT

collect_ignore = [] if os.environ.get("KVTRIE_EMULATED_PROCESSORS") else ["test_emulated.py"]  # ./dev emulate

os.environ["KVTRIE_HELPER"] = "0"  # tests of it start helpers, no other one
# What tests import writes into no home, which may not be there.
os.environ["IPYTHONDIR"] = tempfile.mkdtemp(prefix="ipython-")
atexit.register(shutil.rmtree, os.environ["IPYTHONDIR"], ignore_errors=True)
os.environ["PYOPENCL_NO_CACHE"] = "1"
os.environ["KVTRIE_MODELS_DIR"] = "/dev/null/none"  # what was downloaded for the demo is none of the tests' business
if CIRCLE != "soak":
    # Caches prepare nothing that their model's steps do not run, but where a test says so: a warm-up compiles for every
    # number of rows, and each family has sizes of its own. Processes that tests start warm up as a user's do.
    kv.models.base.Model.caches.__kwdefaults__["warm_up"] = False

hypothesis.settings.load_profile("ci")  # the same examples in each run and no deadline, also where CI is not set

LIVE = ("live_buffers", "live_bytes", "host_storages", "host_bytes", "events")


def changed_files() -> set[str]:
    """Files of tests that a push brings, whose tests are played whatever is drawn."""
    if not DRAW:
        return set()
    said = subprocess.run([ROOT / ".ci/changed", "--pushed"], check=True, capture_output=True, text=True).stdout
    return {Path(line).name for line in said.splitlines()}


def is_played(item: pytest.Item, changed: set[str]) -> bool:
    """Tests on a cluster of Ray are drawn by file, since starting one takes as long as they do."""
    if any(item.get_closest_marker(name) for name in beyond()):
        return False
    if CIRCLE != "ci" or not item.get_closest_marker("ci") or item.path.name in changed:
        return True
    return drawn(item.path.name if "ray_cluster" in getattr(item, "fixturenames", ()) else item.nodeid)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    changed = changed_files()
    kinds: dict[bool, list[pytest.Item]] = {True: [], False: []}
    for item in items:
        kinds[is_played(item, changed)].append(item)
    config.hook.pytest_deselected(items=kinds[False])
    items[:] = kinds[True]


def refuse_unknown_skip(report: pytest.TestReport | pytest.CollectReport) -> None:
    """Has it fail where a test is skipped for another reason than those in skips.py."""
    if report.skipped and not hasattr(report, "wasxfail") and isinstance(report.longrepr, tuple):
        where, line, reason = report.longrepr
        if not skips.known(reason):
            report.outcome = "failed"
            report.longrepr = f"{where}:{line}: skips.py has no such reason: {reason}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    refuse_unknown_skip(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    refuse_unknown_skip(report)
    return report


@pytest.fixture(scope="module", autouse=True)
def what_other_files_left_stays() -> None:
    """:func:`live_counts` need not look for garbage in what was there before a file's first test, each time."""
    gc.collect()
    gc.freeze()


def live_counts(device: Any) -> dict[str, int]:
    """What exists on the device and in host tensors now, once everything that is garbage has gone."""
    gc.collect()
    device.finish()
    memory = device.memory()
    return {name: memory[name] for name in LIVE}


@pytest.fixture(scope="session")
def device() -> Any:
    return kv.Device()


@pytest.fixture
def nothing_left_over(device: Any, request: pytest.FixtureRequest) -> Iterator[None]:
    """Fails a test that leaves device memory, host tensors or events behind."""
    before = live_counts(device)
    yield
    if request.session.testsfailed == 0:  # the traceback of a failure keeps what its frames name
        request.node.funcargs.clear()  # so does pytest, until after this
        assert live_counts(device) == before


@pytest.fixture
def packed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Models keep float32 weights packed on GPUs, too: CLBlast, which has them there, sums in other orders."""
    monkeypatch.setattr(kv.models.base.WeightTable, "packs", True)


@pytest.fixture(params=["device", "host"])
def place(request: pytest.FixtureRequest, device: Any) -> Any:
    """Where a cache keeps its K and V: on the device, then in host memory."""
    return device if request.param == "device" else "host"


@pytest.fixture
def model() -> CodingModel:
    """The model whose K and V say whose they are (fakes.py)."""
    return CodingModel()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[redis_server.RedisServer]:
    """A Redis or Valkey server of this test's own, with a password."""
    if redis_server.BINARY is None:
        pytest.skip("neither redis-server nor valkey-server is installed")
    with redis_server.running(tmp_path, redis_server.SECRET) as started:
        yield started
