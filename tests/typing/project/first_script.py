"""What a newcomer copies from README.md; tests/lint/prose.py warns where the two differ."""

from pathlib import Path

import kvtrie as kv

model = kv.models.load("examples/tiny")  # or a folder from Hugging Face or a GGUF file
cache = kv.PrefixCache(model.caches(capacity=4096), fingerprint=model.fingerprint)
manual = Path("examples/tiny/prompt.txt").read_text()

for question in ("When is a server better?", "How large may a database be?"):
    with cache.begin(model.tokenizer.encode(f"{manual}\n\n{question}")) as session:
        print(f"reused {session.reused} tokens, {len(session.remaining)} to compute")
        print(model.tokenizer.decode(list(kv.generate(model, session, max_tokens=16))))
