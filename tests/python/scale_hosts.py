"""A cluster of Ray across the hosts of network.py, and the application of several replicas there.

    python scale_hosts.py ADDRESS OPTIONS     of the head; those of ScaleOptions, as JSON

is a process on the head that ``Application`` talks with. Once the application answers it prints its URL, and then for
each line of its input which replicas there are: {name: [address of its host, how many fingerprints it knows]}, and the
router with them, which knows none.

Nobody ends Ray by its own command, which would end every Ray of this machine: it goes with its hosts. ``folder``: for
its files, with a short name, as sockets are among them.
"""

from __future__ import annotations

import json
import os
import sys
import uuid
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any

from network import Host
from processes import PATIENCE, started_python, wait_for
from ray_cluster import ENVIRONMENT

PORT = 6379
MEMORY = 100 << 20  # bytes of Ray's object store; its least is 75 MiB
# A node that does not answer three times is taken for dead, not five. On other addresses than loopback Ray wants a
# secret that all nodes know. Each step of a model takes a while, so that requests are under way when a host is cut off.
CLUSTER = {
    **ENVIRONMENT,
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_failure_threshold": "3",
    "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": str(int(PATIENCE)),
    "RAY_SERVE_PROXY_HEALTH_CHECK_TIMEOUT_S": str(int(PATIENCE)),
    "RAY_AUTH_MODE": "token",
    "RAY_AUTH_TOKEN": uuid.uuid4().hex,
    "KVTRIE_STEP_SECONDS": "0.02",
}


@contextmanager
def node(host: Host, folder: Path, *options: str) -> Iterator[Any]:
    """Ray's processes on that host, with one processor, which stay until the host goes."""
    common = ["--block", "--num-cpus=1", f"--object-store-memory={MEMORY}", f"--node-ip-address={host.address}"]
    command = ["-m", "ray.scripts.scripts", "start", *options, *common]
    with (
        (folder / f"{host.address}.log").open("a") as log,
        started_python(*command, before=host.inside, environment=CLUSTER, stdout=log, stderr=log) as process,
    ):
        yield process


@contextmanager
def head(host: Host, folder: Path) -> Iterator[None]:
    """The first one."""
    with node(host, folder, "--head", f"--port={PORT}", "--include-dashboard=false", f"--temp-dir={folder}") as process:

        def is_there() -> bool:
            assert process.poll() is None, (folder / f"{host.address}.log").read_text()
            return f":{PORT:04X} " in host.run("cat", "/proc/net/tcp", "/proc/net/tcp6")

        wait_for(is_there)
        yield


def worker(host: Host, folder: Path, of: Host) -> AbstractContextManager[Any]:
    """Another one, of the cluster with that head."""
    return node(host, folder, f"--address={of.address}:{PORT}")


class Application:
    """``url``: as the head reaches it."""

    def __init__(self, process: Any, log: Path) -> None:
        self._process, self._log = process, log
        self.url = self._line()

    def replicas(self) -> dict[str, tuple[str, int]]:
        """Those that answer: where each is, and how many fingerprints it knows."""
        return {name: found for name, found in self._seen().items() if "#router#" not in name}

    def router(self) -> str:
        """Where it is."""
        return next(place for name, (place, _) in self._seen().items() if "#router#" in name)

    def _seen(self) -> dict[str, tuple[str, int]]:
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return {name: (place, known) for name, (place, known) in json.loads(self._line()).items()}

    def wait_for(self, *hosts: Host) -> None:
        """Until there is one on each of these, and no other."""
        wanted = sorted(host.address for host in hosts)
        wait_for(lambda: sorted(address for address, _ in self.replicas().values()) == wanted)

    def _line(self) -> str:
        line = str(self._process.stdout.readline())
        assert line, self._log.read_text()
        return line.strip()


@contextmanager
def application(host: Host, folder: Path, **options: Any) -> Iterator[Application]:
    """On the cluster whose head that host is."""
    command = [__file__, host.address, json.dumps(options)]
    path = folder / "application.log"
    with (
        path.open("w") as log,
        started_python(*command, before=host.inside, environment=CLUSTER, stderr=log) as process,
    ):
        yield Application(process, path)


def main(address: str, options: str) -> None:
    import ray

    from kvtrie.ray.scale import ScaleOptions
    from scale_cluster import scaled

    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what Ray prints now and then
    ray.init(f"{address}:{PORT}", _node_ip_address=address, log_to_driver=False, logging_level="ERROR")
    with scaled(ray, ScaleOptions(**json.loads(options))) as there:
        print(there.url, file=answers, flush=True)
        for _ in sys.stdin:
            print(json.dumps(seen(ray, there)), file=answers, flush=True)


def seen(ray: Any, there: Any) -> dict[str, tuple[str, int]]:
    """The router, and the replicas that answer soon: for others somebody asks again."""
    from kvtrie.ray.scale.summaries import known_of

    actors = [each for each in ray._private.state.actors().values() if each["State"] == "ALIVE"]
    places = {each["Name"]: each["Address"]["IPAddress"] for each in actors}
    found = {name: (place, 0) for name, place in places.items() if "#router#" in name}
    for name in set(there.replicas()) & places.keys():
        with suppress(ray.exceptions.RayError, ValueError):  # it is gone
            asked = ray.get_actor(name, namespace="serve").record_routing_stats.remote()
            found[name] = (places[name], len(known_of(ray.get(asked, timeout=10))))
    return found


if __name__ == "__main__":
    main(*sys.argv[1:])
