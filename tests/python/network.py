"""Hosts on one machine: network namespaces on a switch (network_switch.py), with links that are slow, lossy or cut.

    with network("store", "left", "right") as hosts:
        hosts["left"].set_link(Link(delay=0.05, loss=0.02, rate=2e6))
        hosts["left"].cut()
        run_python("-c", program, before=hosts["left"].inside)

A link's quality is that of what its host sends. ``tc`` makes it: ``netem``, or where the kernel has none, ``tbf``. That
one limits the rate, delays what waits and loses what its queue has no room for; delays and losses that have nothing to
do with a rate are then the switch's.

Names are unique, addresses are the namespaces' own: networks of tests that run at once never meet. They go with the
block, and when the tests are killed: the switch then ends, which takes along all that runs on the hosts. Root only.
Threads: one at a time makes changes; ``Host.threads`` has others.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Optional

from network_switch import enter
from processes import PATIENCE, run_command

SWITCH = Path(__file__).with_name("network_switch.py")


@dataclass(frozen=True)
class Link:
    """``delay``: seconds each way; ``loss``: of frames, a share of 1; ``rate``: bits a second; ``queue``: bytes that
    may wait for it, further ones are lost."""

    delay: float = 0.0
    loss: float = 0.0
    rate: Optional[float] = None
    queue: int = 1 << 16


class Host:
    """``inside``: what goes in front of a command that is to run there."""

    def __init__(self, namespace: str, number: int, switch: Any) -> None:
        self.address = f"10.0.0.{number + 1}"
        self.inside = ["ip", "netns", "exec", namespace]
        self._namespace, self._number, self._switch = namespace, number, switch

    def set_link(self, link: Link) -> None:
        """From now on."""
        self._shape("del")
        rate = [] if link.rate is None else ["rate", f"{link.rate:.0f}bit"]
        wanted = ["netem", "limit", "4000", "delay", f"{link.delay * 1000:g}ms", "loss", f"{link.loss * 100:g}%", *rate]
        shaped = link == Link() or self._shape("add", *wanted)
        self._tell_switch(Link() if shaped else link)
        if not shaped and link.rate is not None:
            assert self._shape("add", "tbf", *rate, "burst", "3kb", "limit", str(link.queue)), "neither netem nor tbf"

    def cut(self) -> None:
        """Nothing comes or goes any more, nobody is told."""
        self._ip("link", "set", "eth0", "down")

    def mend(self) -> None:
        """After ``cut``."""
        self._ip("link", "set", "eth0", "up")

    def sent(self) -> int:
        """Bytes since it is there, with those of frames and of what had to be sent again."""
        return int(self.run("cat", "/sys/class/net/eth0/statistics/tx_bytes"))

    def threads(self, count: int) -> ThreadPoolExecutor:
        """Threads of this process that are there: what they connect to is what that host reaches."""
        return ThreadPoolExecutor(count, initializer=enter, initargs=(f"/run/netns/{self._namespace}",))

    def run(self, *command: Any) -> str:
        """What a command printed that ran there."""
        done = run_command(*self.inside, *command)
        assert done.returncode == 0, done.stderr
        return str(done.stdout)

    def _ip(self, *words: str) -> None:
        done = run_command("ip", "-n", self._namespace, *words)
        assert done.returncode == 0, done.stderr

    def _tell_switch(self, link: Link) -> None:
        self._switch.stdin.write(f"{self._number} {link.delay} {link.loss}\n")
        self._switch.stdin.flush()

    def _shape(self, verb: str, *words: str) -> bool:
        done = run_command("tc", "-n", self._namespace, "qdisc", verb, "dev", "eth0", "root", *words)
        return bool(done.returncode == 0)


@contextmanager
def network(*names: str) -> Iterator[dict[str, Host]]:
    """Hosts of these names, which reach each other, until the block ends."""
    tag = uuid.uuid4().hex[:8]
    namespaces = [f"kvtrie-{tag}-{name}" for name in names]
    command = [sys.executable, str(SWITCH), *namespaces]
    pipes: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with subprocess.Popen(command, text=True, start_new_session=True, **pipes) as switch:  # no Ctrl-C of ours ends it
        try:
            if switch.stdout.readline() != "ready\n":
                raise RuntimeError(switch.stderr.read())
            yield {name: Host(namespaces[i], i, switch) for i, name in enumerate(names)}
        finally:
            switch.stdin.close()
            switch.wait(timeout=PATIENCE)


@cache
def why_not() -> str:
    """Why there can be no networks here; empty where there can."""
    if not hasattr(os, "geteuid") or os.geteuid() != 0:
        return "only root makes network namespaces"
    for command in ("ip", "tc"):
        if shutil.which(command) is None:
            return f"there is no {command}: install iproute2"
    try:
        with network("a", "b") as hosts:
            hosts["a"].set_link(Link(delay=0.001, rate=1e9))
        return ""
    except (RuntimeError, AssertionError) as error:
        return f"this machine makes no network namespaces: {str(error).strip().splitlines()[-1]}"
