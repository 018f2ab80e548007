"""`python -m kvtrie serve`: models over HTTP, by the APIs of OpenAI, Anthropic and Ollama.

    clients --HTTP--> server.py        heads and their limits (heads.py)
                      app.py           routes, keys (tenants.py), names and origins (visitors.py), limits (body.py),
                                       errors (failures.py), which are counted (refusals.py)
                      openai_api.py    JSON in, JSON or events (streams.py) out; what may be in it: openai_schema.py,
                                       wire.py
                      anthropic_api.py the same; blocks of other kinds: anthropic_blocks.py
                      responses_api.py items in, items out: responses_schema.py, responses_items.py,
                                       responses_output.py, responses_events.py; kept: responses_store.py
                      ollama_api.py    lines of JSON: ollama_schema.py
                      fields.py        which fields are obeyed, ignored or refused (asked_for.py, wrong_fields.py)
                      tools_api.py     tokens of texts, explanations
                      engine.py        one model, one cache, one batcher
                        conversation_texts.py   messages -> text (replays.py, volatile.py, clocks.py, generic_tools.py,
                                       ../thinking/asked.py)
                        prompts.py     text -> tokens as the cache knows them
                        answer.py      tokens -> text, reasoning (../thinking), tool_calls.py, up to the stop text
                        grammar.py     answers that follow a JSON schema, or rules.py; ../thinking/limit.py
                        echo.py        prompts that are given back, and how likely they were
                        journal.py     what became of the last requests: metrics.py, live.py

HTTP is uvicorn's and FastAPI's. Everything runs in one event loop, but for the batcher's thread, and templates and
tokenizers, which work in threads of asyncio's. ``create_app`` needs the extra ``kvtrie[serve]``; nothing else of kvtrie
imports this package.
"""
