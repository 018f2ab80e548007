"""Whether and for how long a model thinks, and its reasoning told apart from its answer: for chats and servers alike.

    reasoning.py      an answer's text as it is written -> reasoning | text; channels of gpt-oss: harmony.py
    piece_reader.py   what both have in common, over marks.py
    asked.py          on, off, an effort, a number of tokens -> variables of a chat template, and a limit
    limit.py          closes the reasoning of a model that has had its tokens

Needs a tokenizer and its chat template, no model and no server.
"""
