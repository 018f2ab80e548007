"""What `.ci/bare` asks an installed kvtrie: the first answer of a model in the folder that it is given."""

import sys
import time

import kvtrie as kv

begun = time.perf_counter()
model = kv.models.load(sys.argv[1])
cache = kv.PrefixCache(model.caches(capacity=1024), fingerprint=model.fingerprint)
with cache.begin(model.tokenizer.encode("When is a server better?")) as session:
    tokens = []
    for token in kv.generate(model, session, max_tokens=16):
        if not tokens:
            print(f"first token after {time.perf_counter() - begun:.1f} s on {model.device.name}")
        tokens.append(token)
print(f"{len(tokens)} tokens: {model.tokenizer.decode(tokens)!r}")
