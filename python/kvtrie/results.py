"""The values that calls return: nobody needs these names to make a call, but to annotate or to test what came of one.

    PrefixCache     ReusePlan (plan), Explanation and CacheReach (explain), Node (nodes), NamespaceUsage (usage)
    Session         Reason (reason), Reprocess (shift, where stored keys cannot move)
    Generation      TokenLogprob and RankedLogprob (logprobs), as in Request
    score           Score
    quality         Quality, one FormatQuality for each format

All are values: they do not change, hold no lock, and may be passed between threads.
"""

from __future__ import annotations

from ._core import ReusePlan
from ._quotas import NamespaceUsage
from ._values import Node, Reason, Reprocess
from .explain import CacheReach, Explanation
from .quality import FormatQuality, Quality
from .sampling import RankedLogprob, TokenLogprob
from .score import Score

__all__ = [
    "CacheReach",
    "Explanation",
    "FormatQuality",
    "NamespaceUsage",
    "Node",
    "Quality",
    "RankedLogprob",
    "Reason",
    "Reprocess",
    "ReusePlan",
    "Score",
    "TokenLogprob",
]
