"""Five agents on one system prompt, in one event loop: what all of them have read is computed once.

    ./dev run python examples/five_agents.py                  # SmolLM2, after `python -m kvtrie download`
    ./dev run python examples/five_agents.py --model tiny

Each agent asks two questions of the same manual, the second with its first answer in mind. All answers are computed
together, a step for all five at a time, and printed as they end.
"""

from __future__ import annotations

import argparse
import asyncio
import time

import kvtrie as kv
from plot import INSTRUCTIONS, TINY

AGENTS = {
    "Anna": ("When is a database server better?", "Please explain: high concurrency."),
    "Ben": ("What does the manual say about embedded devices?", "What about the internet of things?"),
    "Chloe": ("What about very large datasets?", "What about data on another computer?"),
    "Dora": ("Please explain: data analysis.", "Tell me about importing files."),
    "Eve": ("What does the manual say about websites?", "What about temporary files?"),
}
MANUAL = "\n\n".join(path.read_text(encoding="utf-8").strip() for path in (INSTRUCTIONS, TINY / "prompt.txt"))


async def agent(batcher: kv.Batcher, name: str, tokens: int) -> list[kv.Request[str]]:
    """Asks both questions, one after the other; its answers."""
    messages = [{"role": "system", "content": MANUAL}]
    answers = []
    for question in AGENTS[name]:
        messages.append({"role": "user", "content": question})
        answer = batcher.chat(messages, max_tokens=tokens)
        text = " ".join((await answer).split())
        print(f"{name}: {question}\n    {text}")
        print(f"    {answer.prompt_tokens} tokens read, {answer.reused} of them reused", flush=True)
        messages.append(answer.message)
        answers.append(answer)
    return answers


async def main(options: argparse.Namespace) -> None:
    """Loads the model, runs the agents, and sums up."""
    chosen = kv.models.default.choose(options.model)
    print(f"model: {chosen.name}", *filter(None, [chosen.note]), sep="\n")
    model = await asyncio.to_thread(kv.models.load, chosen.path)
    async with kv.Batcher(model, max_sessions=len(AGENTS)) as batcher:
        began = time.perf_counter()
        by_agent = await asyncio.gather(*(agent(batcher, name, options.tokens) for name in AGENTS))
        seconds = time.perf_counter() - began
    answers = [answer for each in by_agent for answer in each]
    read, reused = (sum(getattr(answer, what) for answer in answers) for what in ("prompt_tokens", "reused"))
    written = sum(len(answer.tokens) for answer in answers)
    print(f"\n{len(answers)} prompts of {read} tokens in all: {read - reused} computed, {reused} reused")
    print(f"{written} tokens written in {seconds:.1f} s")
    model.prefix_cache.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="a folder, a GGUF file, or tiny")
    parser.add_argument("--tokens", type=int, default=40, help="of an answer, at most")
    asyncio.run(main(parser.parse_args()))
