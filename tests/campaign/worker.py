"""A long-lived process of the campaign: world after world of threads that make random calls on one cache.

    ./dev run python tests/campaign/worker.py --seed 7 --operations 20000
    ./dev run python tests/campaign/worker.py --seed 7 --world 12          that world alone, to replay it

After each world: contents by the naming model, check(), budgets, and handles of the system and of the library back to
where they were. The last line of its output is JSON; with 1 it ends at the first promise that was not kept. The seed
gives each thread its calls; which calls meet is chance, so a world that failed may have to be played again.
"""

from __future__ import annotations

import argparse
import ctypes
import faulthandler
import gc
import json
import os
import random
import resource
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Optional

sys.path[:0] = [
    str(Path(__file__).resolve().parents[1] / "python"),
    str(Path(__file__).resolve().parents[2] / "python"),
]

import kvtrie as kv
import redis_server
from calls import Caller
from processes import PATIENCE
from world import Broken, World

OPERATIONS = 400  # of a world, all threads together
LIVE = ("live_buffers", "live_bytes", "host_storages", "host_bytes", "events")


def resident() -> int:
    """Bytes of this process in memory, once the allocator has given back what it keeps for later."""
    ctypes.CDLL(None).malloc_trim(0)
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def handles(device: Optional[Any]) -> dict[str, int]:
    """What has to be the same before and after a world."""
    gc.collect()
    counts = {name: len(os.listdir(f"/proc/self/{name}")) for name in ("fd", "task")}
    if device is not None:
        device.finish()
        counts.update({name: device.memory()[name] for name in LIVE})
    return counts


def settled(device: Optional[Any], wanted: dict[str, int]) -> dict[str, int]:
    """As ``handles``, once threads that are on their way out have gone."""
    deadline = time.monotonic() + PATIENCE
    while more_than(found := handles(device), wanted) and time.monotonic() < deadline:
        time.sleep(0.01)
    return found


def more_than(found: dict[str, int], wanted: dict[str, int]) -> bool:
    return any(found[name] > wanted[name] for name in wanted)


class Campaign:
    """Plays worlds and counts."""

    def __init__(self, seed: int, url: Optional[str], device: Optional[Any]) -> None:
        self.seed, self.url, self.device = seed, url, device
        self.totals: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self.memory: list[tuple[int, int]] = []  # operations so far, bytes resident

    def play(self, number: int, operations: int = OPERATIONS) -> None:
        """World ``number`` of the seed; raises ``Broken``."""
        seed = f"{self.seed} {number}"
        dice = random.Random(f"{seed} threads")
        place = self.device if self.device is not None and dice.random() < 0.1 else "host"
        world = World(seed, self.url, place)
        threads = dice.randrange(4, 9)
        print(f"seed {self.seed}, world {number}: {threads} threads, {world.describe()}", flush=True)
        callers = [Caller(world, f"{seed} {thread}") for thread in range(threads)]
        self._together(callers, operations // threads)
        self.totals["rows"] += world.verify()
        for caller in callers:
            self.totals.update(operations=sum(caller.done.values()), rows=caller.model.compared)
            self.totals.update(model_faults=caller.model.failed, stale_steps=caller.model.stale)
            self.refused.update(caller.refused)
        self.totals.update(worlds=1, caches=world.opened, faults=world.injected + world.shelf.injected)
        by_collection = dice.random() < 0.3
        del callers, caller
        world.leave(by_collection)

    @staticmethod
    def _together(callers: list[Caller], operations: int) -> None:
        """Each in a thread of its own; what the first one raised."""
        errors: list[str] = []

        def body(caller: Caller) -> None:
            try:
                caller.run(operations)
            except BaseException:
                errors.append(traceback.format_exc())

        threads = [threading.Thread(target=body, args=(caller,), daemon=True) for caller in callers]
        for thread in threads:
            thread.start()
        deadline = time.monotonic() + PATIENCE
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        if any(thread.is_alive() for thread in threads):
            faulthandler.dump_traceback(all_threads=True)
            raise Broken("calls that hang: see the stacks of all threads above")
        if errors:
            raise Broken("\n".join(errors))

    def report(self) -> dict[str, Any]:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        return {
            "seed": self.seed,
            **self.totals,
            "faults": self.totals["faults"] + self.totals["model_faults"],
            "refused": dict(self.refused),
            "peak_bytes": peak,
            "memory": self.memory,
        }


def run(options: argparse.Namespace, campaign: Campaign) -> None:
    worlds = range(10**9) if options.world is None else [options.world] * options.times
    began, before = time.monotonic(), None
    for number in worlds:
        campaign.play(number)
        if before is None or campaign.totals["worlds"] < 4:  # modules, programs and clients are there from then on
            before = handles(campaign.device)
        else:
            after = settled(campaign.device, before)
            if more_than(after, before):
                raise Broken(f"left behind after world {number}: {after}, before {before}")
            before = after
        campaign.memory.append((campaign.totals["operations"], resident()))
        if options.world is None and (
            campaign.totals["operations"] >= options.operations or time.monotonic() - began > options.seconds
        ):
            return


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--operations", type=int, default=10**12)
    parser.add_argument("--seconds", type=float, default=1e9)
    parser.add_argument("--world", type=int)
    parser.add_argument("--times", type=int, default=1, help="how often a world is played")
    parser.add_argument("--redis", choices=["auto", "no"], default="auto")
    options = parser.parse_args()
    faulthandler.enable()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if options.operations == 10**12 and options.seconds == 1e9:
        options.operations = 20_000
    with ExitStack() as stack:
        url = None
        if options.redis == "auto" and redis_server.BINARY is not None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            url = stack.enter_context(redis_server.running(folder)).url("timeout=30")
        campaign = Campaign(options.seed, url, kv.Device() if kv.devices() else None)
        status = 0
        try:
            run(options, campaign)
        except KeyboardInterrupt:
            print("interrupted", flush=True)
        except BaseException:
            traceback.print_exc()
            status = 1
        print(json.dumps(campaign.report()), flush=True)
    return status


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    os._exit(status) if status else sys.exit(0)
