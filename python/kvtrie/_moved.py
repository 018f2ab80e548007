"""Where names are that ``kvtrie`` itself had once: the one table for errors, tests and ``tests/lint/renamed.py``.

A name that is not listed here was never there. ``advice`` is read by ``kvtrie.__getattr__`` only, when a name is
missing.
"""

from __future__ import annotations

__all__ = ["MOVED", "advice"]

MOVED: dict[str, str] = {
    "ArgumentError": "errors.ArgumentError",
    "ArgumentTypeError": "errors.ArgumentTypeError",
    "BusyError": "errors.BusyError",
    "CacheFull": "errors.CacheFullError",
    "CacheReach": "results.CacheReach",
    "CausalCache": "caches.CausalCache",
    "ClosedError": "errors.ClosedError",
    "DeviceError": "errors.DeviceError",
    "EncoderCache": "caches.EncoderCache",
    "EncoderSnapshot": "caches.EncoderSnapshot",
    "Evicted": "trie.Evicted",
    "Explanation": "results.Explanation",
    "FormatError": "errors.FormatError",
    "FormatQuality": "results.FormatQuality",
    "HybridCache": "caches.HybridCache",
    "HybridSnapshot": "caches.HybridSnapshot",
    "IgnoredWarning": "errors.IgnoredWarning",
    "InternalError": "errors.InternalError",
    "Node": "results.Node",
    "NotRestorable": "errors.NotRestorableError",
    "NotSupported": "errors.NotSupportedError",
    "PrefixTrie": "trie.PrefixTrie",
    "Quality": "results.Quality",
    "RankedLogprob": "results.RankedLogprob",
    "Reason": "results.Reason",
    "RecurrentCache": "caches.RecurrentCache",
    "RecurrentSnapshot": "caches.RecurrentSnapshot",
    "Reply": "Generation",
    "Reprocess": "results.Reprocess",
    "ReusePlan": "results.ReusePlan",
    "Score": "results.Score",
    "Snapshot": "caches.Snapshot",
    "StepGraphs": "ops.StepGraphs",
    "StoreError": "errors.StoreError",
    "TextRequest": "Request",
    "TokenLogprob": "results.TokenLogprob",
    "TokenTexts": "trie.TokenTexts",
    "TrieNode": "trie.TrieNode",
    "fingerprints": "trie.fingerprints",
    "scale": "ray.scale",
    "simulate": "replay.simulate",
}
"""Old name in ``kvtrie`` -> where it is now, below ``kvtrie``."""


def advice(name: str) -> str:
    """The end of the message about a name that ``kvtrie`` does not have."""
    place = MOVED.get(name)
    return "" if place is None else f": it is kvtrie.{place} now"
