"""How many replicas there should be: by requests, and by tokens of prompts that wait to be computed.

A queue of eight short questions and one of eight long documents are not the same work. Each replica is to have about
``target_requests`` under way and ``target_tokens`` to compute; whichever asks for more replicas decides. Bounds, delays
and smoothing are Ray's, around this. Threads: Ray's controller.
"""

from __future__ import annotations

import math

from ray.serve.config import AutoscalingContext

WAITING = "waiting_tokens"  # of Replica.record_autoscaling_stats


class ByWork:
    """A policy as Ray's ``AutoscalingPolicy`` takes it."""

    def __init__(self, target_requests: float, target_tokens: int) -> None:
        self._requests, self._tokens = target_requests, target_tokens

    def __call__(self, context: AutoscalingContext) -> tuple[int, dict[str, object]]:
        by_replica = (context.aggregated_metrics or {}).get(WAITING, {})
        return wanted(context.total_num_requests, sum(by_replica.values()), self._requests, self._tokens), {}


def wanted(requests: float, tokens: float, target_requests: float, target_tokens: int) -> int:
    """Replicas for so many requests under way, and so many tokens to compute."""
    return max(math.ceil(requests / target_requests), math.ceil(tokens / target_tokens))
