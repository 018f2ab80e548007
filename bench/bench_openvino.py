"""Beside OpenVINO GenAI on the same GGUF file (SmolLM2-135M-Instruct, Q4_1) and as many threads as there are cores.

    cold    a prompt that nothing is known of: tokens of it a second until the first one of the answer, and the steps
            after it
    day     the day of chats (workload.py), each side by its own answers: seconds to the first token, ours with a prefix
            cache, theirs with the prefix caching of its scheduler, each with 1 GiB of K and V (and none on the host)

Engines run in processes of their own, in turns. Theirs computes as it is shipped: it rounds activations to 8 bits and
keeps K and V in 8 bits; ours rounds activations to 16 bits where a processor multiplies integers, with ``--precision
fast`` to 8, and keeps float16.
``./dev peers`` installs it.
"""

from __future__ import annotations

import os
import time
from typing import Any

import numpy as np

import kvtrie as kv
import smollm2
from chat_engine import Engine
from peers import openvino_engine
from report import Report, arguments
from timing import human, race, summarise
from workload import Day

PROMPTS = (512, 2048)
STEPS = 32
GIB = 1  # of K and V; theirs takes whole ones
TOKENS, SEED, VOCABULARY = GIB * 2**30 // 23040, 1, 4096  # float16 cells of SmolLM2 in them
PAUSE = 0.05  # seconds between sides: threads go to sleep
OURS, THEIRS = "kvtrie", "OpenVINO"


def cold(report: Report, engines: dict[str, Any], text: np.ndarray, rounds: int) -> None:
    """Prefill and decode; each prompt begins at another token, so that no block of it is known."""
    for length in PROMPTS:
        found: dict[str, list[tuple[float, float]]] = {side: [] for side in engines}

        def sample(side: str, length: int = length, found: Any = found) -> float:
            place = 7 * len(found[side]) + 1
            time.sleep(PAUSE)
            answer = engines[side].complete(text[place : place + length].tolist(), STEPS + 1)
            found[side].append((answer["first"], (answer["total"] - answer["first"]) / STEPS))
            return float(answer["first"])

        race({side: lambda side=side: sample(side) for side in engines}, rounds=rounds, warm_up=1, clocked=engines)
        for at, (part, tokens) in enumerate((("prompt", length), ("step", 1))):
            seconds = {side: [each[at] for each in runs[1:]] for side, runs in found.items()}
            middle = {side: summarise(each) for side, each in seconds.items()}
            ratio = summarise(theirs / ours for ours, theirs in zip(seconds[OURS], seconds[THEIRS], strict=True))
            rates = ", ".join(f"{side} {tokens / each.median:.0f}/s" for side, each in middle.items())
            report.row(
                f"{length:>5} tokens, {part:<6}  {rates}; {THEIRS} takes {ratio.median:.2f} x"
                f" ({ratio.low:.2f} .. {ratio.high:.2f})",
                part=part,
                tokens=length,
                ours=middle[OURS],
                theirs=middle[THEIRS],
                ratio=ratio,
            )


def day(report: Report, engines: dict[str, Any], requests: int) -> None:
    """Each side's own day, in turns."""
    days = {side: Day(SEED, VOCABULARY) for side in engines}
    first: dict[str, list[float]] = {side: [] for side in engines}
    prompts = dict.fromkeys(engines, 0)
    for index in range(requests):
        for side in list(engines)[:: 1 if index % 2 else -1]:
            request = days[side].next()
            time.sleep(PAUSE)
            answer = engines[side].complete(request.prompt, request.answer_length)
            days[side].answer(answer["tokens"])
            first[side].append(answer["first"])
            prompts[side] += len(request.prompt)
    for side, seconds in first.items():
        middle, most = summarise(seconds), sorted(seconds)[len(seconds) * 9 // 10]
        report.row(
            f"day    {side:<9} first token {middle}, p90 {human(most)}, all {sum(seconds):.1f} s of"
            f" {prompts[side]} tokens",
            part="day",
            side=side,
            first=middle,
            p90=most,
            total=sum(seconds),
            prompt_tokens=prompts[side],
        )
    ratio = summarise(first[THEIRS]).median / summarise(first[OURS]).median
    report.row(f"day    {THEIRS} takes {ratio:.2f} x at the median", part="day", ratio=ratio)


def main() -> None:
    """Print one row for each part."""
    parser = arguments(__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--requests", type=int, default=60)
    parser.add_argument("--precision", choices=("auto", "fast", "exact"), default="auto", help="of our products")
    options = parser.parse_args()
    report = Report("cold prompts, steps and a day of chats beside OpenVINO GenAI", options.json)
    report.device(kv.Device())
    report.note(f"{OURS} with precision {options.precision}")
    if not openvino_engine.installed():
        report.note("OpenVINO GenAI is not installed (./dev peers): left out")
        return
    file, threads = smollm2.path(), os.cpu_count() or 1
    text = np.array(kv.models.load(file).tokenizer.encode(smollm2.text()), np.int32)
    engines: dict[str, Any] = {
        OURS: Engine(str(file), tokens=4096, host_mib=0, use=False, precision=options.precision),
        THEIRS: openvino_engine.Engine(file, threads=threads),
    }
    report.note(f"OpenVINO GenAI {engines[THEIRS].start['version']}")
    try:
        cold(report, engines, text, options.rounds)
    finally:
        for engine in engines.values():
            engine.close()
    engines = {
        OURS: Engine(str(file), tokens=TOKENS, host_mib=0, precision=options.precision),
        THEIRS: openvino_engine.Engine(file, threads=threads, keep_gib=GIB),
    }
    try:
        day(report, engines, options.requests)
    finally:
        for engine in engines.values():
            engine.close()
    report.close()


if __name__ == "__main__":
    main()
