"""An application of several replicas on Ray Serve, on this machine, for tests and benches.

with scaled(ray, ScaleOptions(model="tiny", engine="scale_engine:naming", replicas=2)) as there:
    there.client.post("/v1/chat/completions", ...)
    there.kill(there.replicas()[0])
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from typing import Any

import httpx

from processes import PATIENCE
from redis_server import held_port

PORT, _HOLDER = held_port()  # of Ray's proxy, which begins long after this and stays for as long as the cluster


class Scaled:
    """``client``: of the application, with its address."""

    def __init__(self, ray: Any, port: int) -> None:
        self._ray = ray
        self.url = f"http://127.0.0.1:{port}"
        self.client = httpx.Client(base_url=self.url, timeout=PATIENCE)

    def replicas(self) -> list[str]:
        """The names of those that are there."""
        return self._named("#replica#")

    def routers(self) -> list[str]:
        """The same of what reads requests."""
        return self._named("#router#")

    def _named(self, part: str) -> list[str]:
        named = self._ray.util.list_named_actors(all_namespaces=True)
        return sorted(each["name"] for each in named if part in each["name"])

    def pid(self, name: str) -> int:
        """Of its process."""
        actor = self._ray.get_actor(name, namespace="serve")
        return int(self._ray.get(actor.__ray_call__.remote(lambda _: os.getpid()), timeout=PATIENCE))

    def kill(self, replica: str) -> None:
        """As by the system when memory is short."""
        os.kill(self.pid(replica), signal.SIGKILL)

    def stats(self) -> dict[str, dict[str, Any]]:
        """What each replica tells routers."""
        found = {}
        for name in self.replicas():
            actor = self._ray.get_actor(name, namespace="serve")
            with contextlib.suppress(self._ray.exceptions.RayError):
                found[name] = self._ray.get(actor.record_routing_stats.remote(), timeout=PATIENCE)
        return found

    def wait_for(self, count: int) -> None:
        """Until so many replicas answer."""
        until = time.monotonic() + PATIENCE
        while len(self.stats()) != count:
            assert time.monotonic() < until, self.replicas()
            time.sleep(0.2)


@contextlib.contextmanager
def scaled(ray: Any, options: Any, name: str = "default") -> Iterator[Scaled]:
    """The application until the block ends."""
    from ray import serve

    from kvtrie.ray.scale import app

    _start(serve)
    serve.run(app(options), name=name, blocking=False)
    there = Scaled(ray, PORT)
    try:
        yield there
    finally:
        there.client.close()
        serve.delete(name)


def _start(serve: Any) -> None:
    """Ray waits for its proxy for a minute, which a busy machine may need more than."""
    for attempt in range(10):
        try:
            return serve.start(http_options={"host": "127.0.0.1", "port": PORT}, logging_config={"log_level": "ERROR"})
        except TimeoutError:
            assert attempt < 9
