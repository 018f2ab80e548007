"""Errors that name the field of a request, for programs (``code``) and in the words that clients look for.

Clients tell errors apart by words, as their APIs say little else: one that finds "prompt is too long" makes its
conversation shorter, one that reads that the role "system" is not supported moves such messages to the front. So those
words are constants, which nothing may change by the way.
"""

from __future__ import annotations

from ..errors import ArgumentError

TOO_LONG = "prompt is too long"  # Anthropic's words; those of the OpenAI API follow
TOO_LONG_CODE = "context_length_exceeded"
CONTEXT_LENGTH = "maximum context length"
ROLE_NOT_SUPPORTED = "role 'system' is not supported"
EMPTY_CODE = "empty_prompt"


class FieldError(ArgumentError):
    """``param``: the field's path in the request; ``code``: for programs."""

    def __init__(self, message: str, *, param: str, code: str = "invalid_value") -> None:
        super().__init__(message)
        self.param, self.code = param, code


def too_long(count: int, most: int, param: str) -> FieldError:
    """Of a prompt with ``count`` tokens or more, where ``most`` are allowed."""
    said = f"{TOO_LONG}: {count} tokens > {most} maximum (this model's {CONTEXT_LENGTH} leaves one for the answer)"
    return FieldError(f"[serve] {param}: {said}: got {count}, allowed {most}", param=param, code=TOO_LONG_CODE)


def empty(param: str = "prompt") -> FieldError:
    """Of a prompt without tokens."""
    return FieldError(f"[serve] {param}: got no tokens, allowed 1 or more", param=param, code=EMPTY_CODE)
