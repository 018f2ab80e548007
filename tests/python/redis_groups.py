"""Several servers as one store: clusters, a primary with a replica and a sentinel, and certificates for TLS.

All are real processes on loopback, small and quick to take over from each other.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Callable, Optional

import redis

from processes import PATIENCE
from redis_server import PortTakenError, RedisServer, free_port, started

SLOTS = 16384
BUS = 10000  # from a node's port to the one that nodes talk on


def client_of(server: RedisServer) -> Any:
    return redis.Redis(port=server.port, password=server.password, socket_timeout=PATIENCE)


def wait_until(done: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while True:
        with suppress(redis.RedisError, OSError):
            if done():
                return
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        time.sleep(0.02)


class Cluster:
    """Primaries that share the slots, and replicas: node ``primaries + i`` is one of node ``i``."""

    def __init__(self, nodes: Sequence[RedisServer], primaries: int) -> None:
        self.nodes = list(nodes)
        self.primaries = primaries

    def url(self, options: str = "", named: Optional[Sequence[int]] = None) -> str:
        nodes = self.nodes if named is None else [self.nodes[i] for i in named]
        hosts = ",".join(f"127.0.0.1:{node.port}" for node in nodes)
        secret = f":{self.nodes[0].password}@" if self.nodes[0].password else ""
        return f"redis+cluster://{secret}{hosts}?{options}"

    def counts(self) -> list[int]:
        """How many keys each primary has."""
        return [int(client_of(node).dbsize()) for node in self.nodes[: self.primaries]]


def _node(folder: Path, password: Optional[str]) -> RedisServer:
    settings = ["--cluster-enabled", "yes", "--cluster-node-timeout", "1500", "--masterauth", password or ""]
    settings += ["--cluster-require-full-coverage", "no", "--repl-diskless-sync-delay", "0"]
    settings += ["--repl-ping-replica-period", "1"]
    folder.mkdir()
    while True:
        server = RedisServer(folder, password, *settings)
        while server.port + BUS > 65535:
            server.port = free_port()
        with suppress(PortTakenError):
            server.start()
            return server


def _join(nodes: Sequence[RedisServer], primaries: int) -> None:
    clients = [client_of(node) for node in nodes]
    for i, client in enumerate(clients[:primaries]):
        own = range(SLOTS * i // primaries, SLOTS * (i + 1) // primaries)
        client.execute_command("CLUSTER ADDSLOTS", *own)
    for i, client in enumerate(clients):
        client.execute_command("CLUSTER SET-CONFIG-EPOCH", i + 1)
        client.execute_command("CLUSTER MEET", "127.0.0.1", nodes[0].port)
    names = [client.execute_command("CLUSTER MYID") for client in clients]

    def knows_all(client: Any) -> bool:
        info = client.execute_command("CLUSTER INFO")
        return info["cluster_known_nodes"] == str(len(nodes)) and info["cluster_state"] == "ok"

    wait_until(lambda: all(knows_all(client) for client in clients), "nodes that know each other")
    for i, client in enumerate(clients[primaries:]):
        client.execute_command("CLUSTER REPLICATE", names[i])
    wait_until(
        lambda: all(client.info("replication")["master_link_status"] == "up" for client in clients[primaries:]),
        "replicas that have what there is",
    )
    wait_until(lambda: all(_nodes_named_by(client) == len(nodes) for client in clients), "replicas that can be read")


def _nodes_named_by(client: Any) -> int:
    """In what clients ask for: a replica is there once it has heard something from its primary."""
    return len({node for slots in client.execute_command("CLUSTER SLOTS") for node in map(str, slots[2:])})


@contextmanager
def cluster(folder: Path, primaries: int = 3, replicas: int = 0, password: Optional[str] = None) -> Iterator[Cluster]:
    with ExitStack() as ended:
        nodes = []
        for i in range(primaries + replicas):
            nodes.append(_node(folder / f"node{i}", password))
            ended.callback(nodes[-1].kill)
        _join(nodes, primaries)
        yield Cluster(nodes, primaries)


class Watched:
    """A primary, its replica, and the sentinel that makes the one of them primary that lives."""

    SERVICE = "the-store"

    def __init__(self, primary: RedisServer, replica: RedisServer, sentinel_port: int) -> None:
        self.primary, self.replica, self.sentinel_port = primary, replica, sentinel_port

    def url(self, options: str = "") -> str:
        secret = f":{self.primary.password}@" if self.primary.password else ""
        return f"redis+sentinel://{secret}127.0.0.1:{self.sentinel_port}/{self.SERVICE}?{options}"


@contextmanager
def watched(folder: Path, password: str) -> Iterator[Watched]:
    with ExitStack() as ended:
        for name in ("primary", "replica", "sentinel"):
            (folder / name).mkdir()
        auth = ("--masterauth", password, "--repl-diskless-sync-delay", "0")
        primary = started(folder / "primary", password, *auth)
        ended.callback(primary.kill)
        replica = started(folder / "replica", password, *auth, "--replicaof", f"127.0.0.1 {primary.port}")
        ended.callback(replica.kill)
        wait_until(
            lambda: client_of(replica).info("replication")["master_link_status"] == "up", "a replica that has it all"
        )
        sentinel = _sentinel(folder / "sentinel", primary, password)
        ended.callback(sentinel.kill)
        watching = redis.Redis(port=sentinel.port)
        wait_until(lambda: watching.sentinel_slaves(Watched.SERVICE) != [], "a sentinel that knows the replica")
        yield Watched(primary, replica, sentinel.port)


class _Sentinel(RedisServer):
    """The same program with a file of settings, which it writes to."""

    def start(self) -> None:
        name = Watched.SERVICE
        lines = [
            f"sentinel monitor {name} 127.0.0.1 {self.watched_port} 1",
            f"sentinel auth-pass {name} {self.watched_password}",
            f"sentinel down-after-milliseconds {name} 500",
            f"sentinel failover-timeout {name} 3000",
        ]
        (self.folder / "sentinel.conf").write_text("\n".join(lines) + "\n")
        super().start()

    watched_port: int
    watched_password: str


def _sentinel(folder: Path, primary: RedisServer, password: str) -> RedisServer:
    while True:
        sentinel = _Sentinel(folder, None, "--sentinel")
        sentinel.first = str(folder / "sentinel.conf")
        sentinel.says = "monitor"
        sentinel.watched_port, sentinel.watched_password = primary.port, password
        with suppress(PortTakenError):
            sentinel.start()
            return sentinel


class Certificates:
    """One authority, and a server's certificate for 127.0.0.1 that it signed."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.authority, self.key, self.certificate = folder / "ca.pem", folder / "server.key", folder / "server.pem"
        names = folder / "names"
        names.write_text("subjectAltName=IP:127.0.0.1\n")
        run = _openssl
        curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
        run("req", "-x509", *curve, "-days", "2", "-subj", "/CN=authority", "-keyout", folder / "ca.key", "-out",
            self.authority)  # fmt: skip
        run("req", *curve, "-subj", "/CN=server", "-keyout", self.key, "-out", folder / "server.csr")
        run("x509", "-req", "-in", folder / "server.csr", "-CA", self.authority, "-CAkey", folder / "ca.key",
            "-CAcreateserial", "-days", "2", "-extfile", names, "-out", self.certificate)  # fmt: skip

    def settings(self) -> list[str]:
        return ["--tls-cert-file", str(self.certificate), "--tls-key-file", str(self.key), "--tls-ca-cert-file",
                str(self.authority), "--tls-auth-clients", "no"]  # fmt: skip


def _openssl(*arguments: Any) -> None:
    subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True, stdin=subprocess.DEVNULL)
