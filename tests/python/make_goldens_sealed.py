"""Makes goldens/folders/sealed-1: what a cache with keys left, to be opened by every later version (test_sealed.py).

    PYTHONPATH=python:tests/python .venv/bin/python tests/python/make_goldens_sealed.py

A new layout gets a folder of its own; this one is never made again, or it would no longer say anything.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import kvtrie as kv
from disk_worker import TierModel, go_on, words

FOLDER = Path(__file__).with_name("goldens") / "folders" / "sealed-1"
KEYS = {"team-a": bytes(range(32)), "team-b": [bytes(range(32, 64)), bytes(range(64, 96))]}
TEXTS = [("team-a", words(1, 20)), ("team-a", words(1, 20)[:12] + words(2, 6)), ("team-b", words(1, 20))]


def open_golden(folder: Path, keys: Any) -> tuple[kv.PrefixCache, TierModel]:
    """A cache on the folder, of full attention, a window and a recurrent state; and its model."""
    caches: list[Any] = [
        kv.caches.CausalCache([2], 1, 2, 256, dtype="float16", device="host"),
        kv.caches.CausalCache([1], 1, 2, 256, dtype="float32", device="host", window=8),
        kv.caches.RecurrentCache([0], 2, 2, 1, 2, 2, 16, device="host"),
    ]
    options: dict[str, Any] = {"fingerprint": "golden", "host_bytes": "1MiB", "disk_bytes": "1MiB"}
    return kv.PrefixCache(caches, disk=folder, keys=keys, **options), TierModel(caches)


def main() -> None:
    """Writes the folder anew."""
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.parent.mkdir(exist_ok=True)
    cache, model = open_golden(FOLDER, KEYS)
    for namespace, text in TEXTS:
        go_on(cache, model, text, namespace)
    assert cache.flush()
    cache.close()
    print(sum(path.stat().st_size for path in FOLDER.iterdir()), "bytes in", len(list(FOLDER.iterdir())), "files")


if __name__ == "__main__":
    main()
