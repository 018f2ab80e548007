"""Models of Hugging Face transformers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from typing_extensions import assert_type

import kvtrie as kv
from kvtrie import hf

if TYPE_CHECKING:
    import torch


def open_cache(model: torch.nn.Module) -> hf.Cache:
    name = hf.fingerprint(model)
    small = hf.Cache(
        model, capacity=1024, slots=8, dtype="float16", form="cells", device="host", policy="slru", ttl=60.0
    )
    small.close()
    return hf.Cache(
        model, memory="1GiB", fingerprint=name, host_bytes=0, disk="folder", checkpoint_every=256, keys=None
    )


def use_cache(cache: hf.Cache, ids: torch.Tensor) -> hf.Past:
    assert_type(cache.stale(), bool)
    assert_type(cache.prefix_cache, kv.PrefixCache)
    print(cache.model, cache.device, cache.dtype)
    with cache:
        assert_type(cache.session(), hf.Past)
        cache.session([1, 2, 3], namespace="anna").close()
    past = cache.session(ids, ids > 0)
    cache.close()
    return past


def use_session(past: hf.Past, rows: torch.Tensor) -> hf.Past:
    assert_type(past.reused, int)
    assert_type(past.columns, int)
    assert_type(past.tokens, list[list[int]])
    assert_type(past.why, list[str | None])
    assert_type(past.remaining, torch.Tensor)
    past.reorder_cache(rows)
    past.batch_repeat_interleave(2)
    past.batch_select_indices(rows)
    past.crop(-1)
    past.reset()
    with past:
        assert_type(past.branch(), hf.Past)
    past.close()
    return past
