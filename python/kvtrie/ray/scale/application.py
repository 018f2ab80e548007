"""The application that ``serve run`` and ``serve deploy`` take: a router in front of replicas.

from ray import serve
from kvtrie.ray.scale import ScaleOptions, app

serve.run(app(ScaleOptions(model="tiny", replicas=2)))

Annotations are types here and no texts: by that of ``app``, Ray makes options of a command line or a file.
"""

from ray import serve
from ray.serve import Application
from ray.serve.config import AutoscalingConfig, AutoscalingPolicy, RequestRouterConfig
from ray.serve.handle import DeploymentHandle

from ... import models
from ...errors import NotSupportedError
from ...serve.opening import ServeOptions, use_template
from .ingress import Ingress
from .options import ScaleOptions
from .prompt_keys import PromptKeys
from .replica import Replica

_RAY_PREFIX = "ray.llm._internal.serve.routing_policies.prefix_aware.prefix_aware_router:PrefixCacheAffinityRouter"
_ONGOING = 256  # requests that a router may have under way: they wait for replicas most of the time


def app(options: ScaleOptions) -> "Application":
    """The application. Raises ``kv.errors.ArgumentError`` for options that there are not."""
    server = options.server()
    replicas = serve.deployment(
        Replica,
        name="replica",
        max_ongoing_requests=server.max_sessions + server.max_waiting,
        max_queued_requests=options.max_queued,
        graceful_shutdown_timeout_s=options.drain_seconds,
        graceful_shutdown_wait_loop_s=min(0.5, options.drain_seconds / 4 or 0.5),
        health_check_period_s=5,
        request_router_config=_router(options),
        ray_actor_options=_resources(options),
        **_count(options),
    ).bind(server, options.engine)
    front = serve.deployment(
        _Front, name="router", num_replicas=options.routers, max_ongoing_requests=_ONGOING,
        ray_actor_options={"num_cpus": 0},
    )  # fmt: skip
    return front.bind(replicas, server, options.attempts)


class _Front(Ingress):
    """The ingress in a process of Ray's, which loads the tokenizer there."""

    def __init__(self, replicas: DeploymentHandle, options: ServeOptions, attempts: int) -> None:
        tokenizer = models.load_tokenizer(models.default.choose(options.model).path)
        if tokenizer is None:
            raise NotSupportedError("[scale] model: there is no tokenizer, so there is no text to answer with")
        use_template(tokenizer, options)
        keys = PromptKeys(tokenizer, options.drop_lines, options.freeze_clock)
        super().__init__(replicas, options, keys, attempts)


def _router(options: ScaleOptions) -> RequestRouterConfig:
    if options.routing == "ray":
        return RequestRouterConfig()
    if options.routing == "ray_prefix":
        return RequestRouterConfig(request_router_class=_RAY_PREFIX)
    return RequestRouterConfig(
        request_router_class="kvtrie.ray.scale.router:Router",
        request_router_kwargs={"policy": options.routing, "seed": options.seed, "shared": options.shared},
        request_routing_stats_period_s=options.summary_seconds,
        request_routing_stats_timeout_s=10 * options.summary_seconds,
    )


def _count(options: ScaleOptions) -> dict[str, object]:
    if options.max_replicas is None or options.max_replicas <= options.replicas:
        return {"num_replicas": options.replicas}
    policy = AutoscalingPolicy(
        policy_function="kvtrie.ray.scale.autoscaling:ByWork",
        policy_kwargs={"target_requests": options.target_requests, "target_tokens": options.target_tokens},
    )
    bounds = AutoscalingConfig(
        min_replicas=options.replicas, max_replicas=options.max_replicas, policy=policy, upscale_delay_s=5,
        downscale_delay_s=60,
    )  # fmt: skip
    return {"autoscaling_config": bounds}


def _resources(options: ScaleOptions) -> dict[str, object]:
    threads = {} if options.threads is None else {"POCL_MAX_PTHREAD_COUNT": str(options.threads)}
    resources: dict[str, object] = {"num_cpus": options.cpus, "num_gpus": options.gpus}
    return {**resources, "runtime_env": {"env_vars": threads}} if threads else resources
