"""A network of hosts on one machine, for network.py: makes it, is its switch, and takes it away when it ends.

    python network_switch.py NAME...     says "ready" once all is there; ends with its input

Each NAME becomes a network namespace with 10.0.0.(number from 1), on an Ethernet device ``eth0`` whose other end is
here: frames that a host sends are passed to the host they are for, after a delay, or not at all. Lines of its input set
that: "NUMBER DELAY LOSS", seconds and a share of 1, for what the host of this number sends.

The end of its input, which comes however the tests end, ends every process of those namespaces, and the namespaces.
Root only; it is one thread, and enters the namespaces only to make devices there.
"""

from __future__ import annotations

import ctypes
import fcntl
import heapq
import os
import random
import select
import signal
import struct
import subprocess
import sys
import time
from contextlib import suppress

TUN = "/dev/net/tun"
QUEUE = 4000  # frames that wait here at most; further ones are lost
FRAME = 1 << 16  # bytes
_CLONE_NEWNET = 0x40000000
_TUNSETIFF, _TAP_NO_HEADER = 0x400454CA, 0x1002  # Linux's TUN and TAP devices
HOME = f"/proc/{os.getppid()}/ns/net"  # of who started this


def ip(*words: str) -> str:
    """``ip`` with these arguments: what it printed. What it says about a failure goes to our errors."""
    return subprocess.run(["ip", *words], check=True, stdout=subprocess.PIPE, text=True).stdout


def enter(path: str) -> None:
    """This thread goes into the network namespace of that file."""
    libc = ctypes.CDLL(None, use_errno=True)
    handle = os.open(path, os.O_RDONLY)
    try:
        if libc.setns(handle, _CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), f"setns {path}")
    finally:
        os.close(handle)


def make_host(name: str, number: int) -> int:
    """A namespace with its device and address; the device's other end, which reads and writes whole frames."""
    ip("netns", "add", name)
    enter(f"/run/netns/{name}")
    try:
        port = os.open(TUN, os.O_RDWR | os.O_NONBLOCK)
        fcntl.ioctl(port, _TUNSETIFF, struct.pack("16sH22x", b"eth0", _TAP_NO_HEADER))
    finally:
        enter(HOME)
    ip("-n", name, "address", "add", f"10.0.0.{number + 1}/24", "dev", "eth0")
    for device in ("lo", "eth0"):
        ip("-n", name, "link", "set", device, "up")
    return port


def remove(name: str) -> None:
    """The namespace and whatever runs there; nothing where there is none."""
    if not os.path.exists(f"/run/netns/{name}"):
        return
    with suppress(subprocess.CalledProcessError):
        while pids := ip("netns", "pids", name).split():
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
            time.sleep(0.02)
        ip("netns", "delete", name)


class Switch:
    """Between ``ports``, until its input ends."""

    def __init__(self, ports: list[int]) -> None:
        self._ports = ports
        self._quality = [(0.0, 0.0)] * len(ports)  # delay in seconds, loss
        self._homes: dict[bytes, int] = {}  # the port behind which an Ethernet address was seen
        self._waiting: list[tuple[float, int, int, bytes]] = []  # when, a number for order, from where, a frame
        self._dice, self._count = random.Random(1), 0

    def serve(self, commands: int) -> None:
        """``commands``: a descriptor to read lines from."""
        text = b""
        while True:
            ready, _, _ = select.select([commands, *self._ports], [], [], self._pause())
            if commands in ready:
                more = os.read(commands, 4096)
                if not more:
                    return
                *lines, text = (text + more).split(b"\n")
                for line in lines:
                    number, delay, loss = line.split()
                    self._quality[int(number)] = (float(delay), float(loss))
            for number, port in enumerate(self._ports):
                if port in ready:
                    self._take(number)
            self._pass_on()

    def _pause(self) -> float | None:
        return max(0.0, self._waiting[0][0] - time.monotonic()) if self._waiting else None

    def _take(self, number: int) -> None:
        delay, loss = self._quality[number]
        with suppress(BlockingIOError):
            for _ in range(64):
                frame = os.read(self._ports[number], FRAME)
                if self._dice.random() >= loss and len(self._waiting) < QUEUE:
                    self._count += 1
                    heapq.heappush(self._waiting, (time.monotonic() + delay, self._count, number, frame))

    def _pass_on(self) -> None:
        while self._waiting and self._waiting[0][0] <= time.monotonic():
            _, _, source, frame = heapq.heappop(self._waiting)
            self._homes[frame[6:12]] = source
            home = self._homes.get(frame[:6])
            for number, port in enumerate(self._ports):
                if number == home or (home is None and number != source):
                    with suppress(OSError):  # that link is down, or its host reads too slowly
                        os.write(port, frame)


def main(names: list[str]) -> None:
    try:
        switch = Switch([make_host(name, number) for number, name in enumerate(names)])
        print("ready", flush=True)
        switch.serve(sys.stdin.fileno())
    finally:
        for name in names:
            remove(name)


if __name__ == "__main__":
    main(sys.argv[1:])
