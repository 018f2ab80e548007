"""Ray on this machine for tests: one for each process of them, started when it is first asked for.

Its workers find the package and the tests' own modules. They are as urgent as the tests: Ray makes them less so, and on
a machine that is busy they would stand still.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from processes import PATIENCE, PYTHON_PATH

OBJECT_STORE = 200 << 20  # bytes
ENVIRONMENT = {
    "PYTHONPATH": os.pathsep.join(PYTHON_PATH),
    "RAY_worker_niceness": "0",
    "RAY_raylet_start_wait_time_s": str(int(PATIENCE)),
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_SERVE_QUEUE_LENGTH_RESPONSE_DEADLINE_S": "10",  # who answers late would be passed over for another replica
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # as it will be; else it warns
}


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[Any]:
    """``ray``, connected to a cluster of two processors that ends with the tests."""
    pytest.importorskip("ray")
    with cluster() as ray:
        yield ray


@contextmanager
def cluster() -> Iterator[Any]:
    """The same until the block ends."""
    import ray

    if ray.is_initialized():  # by another module's fixture of that name
        yield ray
        return
    before = {name: os.environ.get(name) for name in ENVIRONMENT}
    os.environ.update(ENVIRONMENT)  # what it starts inherits them
    try:
        ray.init(
            "local",
            num_cpus=2,
            object_store_memory=OBJECT_STORE,
            include_dashboard=False,
            log_to_driver=False,
            logging_level="ERROR",
        )
        yield ray
    finally:
        ray.shutdown()
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})
