"""What do a processor's integer units gain and lose, on SmolLM2 from its file of 4-bit blocks?

The same model three times: ``auto``, whose products round activations to 16 bits where the processor has VNNI or AMX,
``fast``, which rounds them to 8, and ``exact``, which computes in float32. They take turns, and on a processor without
such units they are the same.

    prefill, decode   tokens a second: a prompt in steps of 512 rows, then single tokens behind it; K and V in float16
    KL                mean over the second halves of windows of 512 tokens of KL(exact || other), in nats, and what
                      99.9 % of the positions do not exceed; K and V in float32
    top-1             the share of these positions with the same likeliest token

``--parts`` lists instead which kernels the time of a prompt goes to, by the device's own clock, of auto and fast.

``--clock cpu`` counts the processor's seconds of this process instead of the wall's, divided by its threads: where
others use the machine, too, the ratio is nearer to that of an idle one.
"""

from __future__ import annotations

import functools
import os
import time
from typing import Any

import numpy as np

import kvtrie as kv
import smollm2
from gpu.rows import by_kernel, open_device
from report import Report, arguments
from timing import race

PROMPTS, GENERATED, CHUNK = (512, 2048), 32, 512
PRECISIONS = ("auto", "fast", "exact")
CONTEXT, WINDOWS, TOGETHER = 512, 4, 32


def wall() -> float:
    return time.perf_counter()


def processor() -> float:
    """Seconds of all threads, as if they were shared out evenly."""
    return time.process_time() / len(os.sched_getaffinity(0))


def compute(model: Any, session: Any) -> np.ndarray:
    logits = None
    for step in session.prefill(chunk=CHUNK):
        logits = model(step)
    return np.asarray(logits)


def timed(model: Any, tokens: np.ndarray, clock: Any) -> tuple[float, float]:
    """Seconds of the prompt, and of GENERATED tokens behind it."""
    caches = model.caches(capacity=len(tokens) + GENERATED + 2, warm_up=False)
    with kv.PrefixCache(caches, host_bytes=0) as cache, cache.begin(tokens, publish=False) as session:
        start = clock()
        compute(model, session)
        middle = clock()
        for token in range(GENERATED):
            session.append(token + 5)
            compute(model, session)
        return middle - start, clock() - middle


def speeds(report: Report, models: dict[str, Any], rounds: int, clock: Any) -> None:
    random = np.random.default_rng(1)
    for count in PROMPTS:
        tokens = random.integers(0, models["auto"].config.vocab_size, count, np.int32)
        taken: dict[str, list[tuple[float, float]]] = {side: [] for side in PRECISIONS}

        def run(side: str, tokens: np.ndarray = tokens, taken: Any = taken) -> float:
            prompt, steps = timed(models[side], tokens, clock)
            taken[side].append((prompt, steps))
            return prompt

        sides = {side: functools.partial(run, side) for side in PRECISIONS}
        prefill = race(sides, rounds=rounds, warm_up=1, clocked=PRECISIONS)
        decode = {side: np.median([seconds for _, seconds in own[1:]]) for side, own in taken.items()}
        rates = {side: round(count / prefill[side].median) for side in PRECISIONS}
        steps = {side: round(GENERATED / decode[side], 1) for side in PRECISIONS}
        for side in ("auto", "fast"):
            gain = prefill.ratio("exact", side)
            report.row(
                f"{count:5} tokens  prefill {side} {rates[side]} exact {rates['exact']} tokens/s  {gain}  "
                f"decode {side} {steps[side]} exact {steps['exact']}  {decode['exact'] / decode[side]:.2f}",
                tokens=count,
                side=side,
                prefill=rates,
                ratio=gain,
                decode=steps,
                decode_ratio=float(decode["exact"] / decode[side]),
            )


def parts(report: Report, device: Any) -> None:
    """Milliseconds of a prompt's kernels: the quickest of three."""
    for side in ("auto", "fast"):
        model = kv.models.load(smollm2.path(), device, precision=side)
        model.warm_up()
        for count in PROMPTS:
            tokens, runs = np.random.default_rng(1).integers(0, model.config.vocab_size, count, np.int32), []
            for _ in range(4):
                caches = model.caches(capacity=count + 2, warm_up=False)
                with kv.PrefixCache(caches, host_bytes=0) as cache, cache.begin(tokens, publish=False) as session:
                    device._take_launch_times()
                    compute(model, session)
                    runs.append(by_kernel(device._take_launch_times()))
            found = min(runs[1:], key=lambda rows: sum(row.us for row in rows))
            whole = sum(row.us for row in found)
            report.row(f"{side} {count} tokens  {whole / 1e3:.0f} ms in kernels", side=side, tokens=count, us=whole)
            for row in found[:8]:
                named = f"  {row.kernel} {row.work_items[:2]} x {row.launches}"
                report.row(f"{named:<40} {row.us / 1e3:.1f} ms", side=side, tokens=count, kernel=row.kernel, us=row.us)


def logits_of(model: Any, window: np.ndarray) -> np.ndarray:
    """Of the second half of a window."""
    half = CONTEXT // 2
    with kv.PrefixCache(model.caches(capacity=CONTEXT + 1, dtype="float32", warm_up=False), host_bytes=0) as cache:
        session = cache.begin(window[:-1], publish=False)
        whole = np.concatenate([np.asarray(model(step, all_rows=True)) for step in session.prefill(chunk=CHUNK)])
        session.close()
    return whole[half - 1 :].astype(np.float64)


def log_softmax(logits: np.ndarray) -> np.ndarray:
    shifted = logits - logits.max(1, keepdims=True)
    found: np.ndarray = shifted - np.log(np.exp(shifted).sum(1, keepdims=True))
    return found


def quality(report: Report, models: dict[str, Any]) -> None:
    ids = np.array(models["auto"].tokenizer.encode(smollm2.text()), np.int32)
    divergence: dict[str, list[np.ndarray]] = {"auto": [], "fast": []}
    same: dict[str, list[np.ndarray]] = {"auto": [], "fast": []}
    for begin in range(0, WINDOWS * CONTEXT, CONTEXT):
        logits = {side: logits_of(model, ids[begin : begin + CONTEXT]) for side, model in models.items()}
        for at in range(0, len(logits["exact"]), TOGETHER):
            rows = {side: log_softmax(each[at : at + TOGETHER]) for side, each in logits.items()}
            exact = rows["exact"]
            for side, own in divergence.items():
                own.append(np.maximum((np.exp(exact) * (exact - rows[side])).sum(1), 0.0))
                same[side].append(exact.argmax(1) == rows[side].argmax(1))
    for side, parts in divergence.items():
        found, agree = np.concatenate(parts), float(np.concatenate(same[side]).mean())
        tail = float(np.quantile(found, 0.999))
        report.row(
            f"{side}: {len(found)} positions  KL {found.mean():.1e}, 99.9 % up to {tail:.1e}  top-1 {agree:.4f}",
            side=side,
            positions=len(found),
            kl=float(found.mean()),
            kl_tail=tail,
            top_1=agree,
        )


def main() -> None:
    """Print what is gained for each length of prompt, and what is lost."""
    parser = arguments(__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall")
    parser.add_argument("--parts", action="store_true", help="list the kernels of a prompt instead")
    options = parser.parse_args()
    report = Report("products by integers against float32, SmolLM2 in 4-bit blocks", options.json)
    device = open_device(times=options.parts)
    report.device(device)
    if options.parts:
        parts(report, device)
        report.close()
        return
    models = {side: kv.models.load(smollm2.path(), precision=side) for side in PRECISIONS}
    for model in models.values():
        model.warm_up()
    quality(report, models)
    speeds(report, models, options.rounds, wall if options.clock == "wall" else processor)
    report.close()


if __name__ == "__main__":
    main()
