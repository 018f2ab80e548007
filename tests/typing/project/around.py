"""Errors, stores, pictures, and what needs Ray."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

from typing_extensions import assert_type

import kvtrie as kv
from kvtrie import errors, stores, viz

if TYPE_CHECKING:
    import torch

    from kvtrie.ray.scale import ScaleOptions

ALL: tuple[type[kv.Error], ...] = (
    kv.errors.ArgumentError,
    kv.errors.ArgumentTypeError,
    kv.errors.BusyError,
    kv.errors.CacheFullError,
    kv.errors.ClosedError,
    kv.errors.DeviceError,
    kv.errors.FormatError,
    kv.errors.InternalError,
    kv.errors.NotRestorableError,
    kv.errors.NotSupportedError,
    kv.errors.StoreError,
    errors.ArgumentError,
    errors.ArgumentTypeError,
    errors.BusyError,
    errors.CacheFullError,
    errors.ClosedError,
    errors.DeviceError,
    errors.Error,
    errors.FormatError,
    errors.InternalError,
    errors.NotRestorableError,
    errors.NotSupportedError,
    errors.StoreError,
)


def handle(session: kv.Session) -> int:
    warnings.simplefilter("error", kv.errors.IgnoredWarning)
    warnings.simplefilter("ignore", errors.IgnoredWarning)
    try:
        session.rewind(3)
    except kv.errors.NotRestorableError as error:
        return error.nearest
    except kv.errors.CacheFullError as error:
        return error.needed - error.free - error.freeable - error.held_live
    return 0


class Mine:
    """A store of one's own."""

    def get(self, key: str) -> bytes | None:
        return key.encode()

    def put(self, key: str, value: bytes) -> None:
        print(key, value)

    def delete(self, key: str) -> None:
        print(key)


def use_stores(store: stores.Store, redis: stores.RedisStore) -> kv.PrefixCache:
    assert_type(store.get("key"), bytes | None)
    store.put("key", b"value")
    store.delete("key")
    assert_type(redis.get("key"), bytes | None)
    assert_type(redis.get_many(["key"], 100, 1.0), list[bytes | None])
    redis.put("key", b"value")
    redis.delete("key")
    redis.close()
    assert_type(redis.name + redis.prefix, str)
    assert_type(redis.timeout, float)
    print(redis.max_value, redis.replicas, redis.retries, redis.ttl)
    assert_type(stores.open_store("redis://localhost"), stores.Store)
    mine: stores.Store = Mine()
    return kv.PrefixCache(kv.caches.CausalCache(1, 1, 8, 8), store=kv.stores.RedisStore("redis://localhost") or mine)


def draw(cache: kv.PrefixCache) -> str:
    lines = viz.tree_text(cache, str, max_nodes=9, ascii_only=True, width=80)
    return lines + viz.tree_dot(cache, max_nodes=9) + viz.tree_svg(cache, width=800) + viz.tree_html(cache, decode=str)


def with_transformers(model: torch.nn.Module) -> kv.PrefixCache:
    assert_type(kv.hf.fingerprint(model), str)
    return kv.hf.Cache(model).prefix_cache


def look(cache: kv.PrefixCache) -> str:
    live = viz.watch(cache, str, max_nodes=20)
    return read_watch(live)


def read_watch(live: viz.Watch) -> str:
    live.refresh()
    assert_type(live.sessions, list[kv.Session])
    live.hear({"page": "1", "here": True})
    live.close()
    assert_type(live.closed, bool)
    return live.to_html()


def on_ray() -> None:
    import ray.data

    rows = ray.data.range(3)
    kv.ray.generate(rows, "path", prompt="text", max_tokens=8, temperature=0.5, seed=1, replicas=2)
    kv.ray.score(rows, "path", continuations="choices")
    assert_type(kv.ray.row_seed(1, [2, 3]), int)


def at_scale() -> object:
    from kvtrie.ray import scale

    options = scale.ScaleOptions(
        replicas=2,
        max_replicas=4,
        target_requests=4.0,
        target_tokens=1000,
        routing="affinity",
        routers=1,
        summary_seconds=1.0,
        shared=0.5,
        seed=1,
        cpus=1.0,
        gpus=0.0,
        threads=2,
        drain_seconds=30.0,
        attempts=4,
        max_queued=10,
        engine=None,
    )
    return scale.app, describe(options)


def describe(options: ScaleOptions) -> object:
    return options.server()
