"""A chat with a transformers model whose every turn, branch and restart computes new tokens only.

    python examples/transformers_chat.py [MODEL] [--disk FOLDER]

MODEL: a name or folder that ``AutoModelForCausalLM`` knows, or a GGUF file, with a chat template. With ``--disk`` what
was computed outlives the program. Reads questions from the standard input, one a line.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from transformers import AutoModelForCausalLM, AutoTokenizer, Pipeline, pipeline

import kvtrie as kv


def load(name: str) -> Pipeline:
    if not name.endswith(".gguf"):
        return pipeline("text-generation", model=name, device="cpu")
    folder, file = Path(name).parent, Path(name).name
    model = AutoModelForCausalLM.from_pretrained(folder, gguf_file=file, dtype="float32")
    tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=file)
    return pipeline("text-generation", model=model, tokenizer=tokenizer, device="cpu")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="HuggingFaceTB/SmolLM2-135M-Instruct")
    parser.add_argument("--disk")
    parser.add_argument("--tokens", type=int, default=128)
    options = parser.parse_args()
    chat = load(options.model)
    with kv.hf.Cache(chat.model, memory="1GiB", disk=options.disk) as cache:
        messages: list[dict[str, str]] = []
        for question in sys.stdin:
            messages.append({"role": "user", "content": question.strip()})
            past = cache.session()  # knows what any turn before, or an earlier run, computed
            answer = chat(messages, cache=past, max_new_tokens=options.tokens, do_sample=False)
            messages = answer[0]["generated_text"]
            print(f"{messages[-1]['content']}\n  reused {past.reused} of {past.columns} tokens")
            past.close()


if __name__ == "__main__":
    main()
