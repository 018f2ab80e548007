"""One model, one cache and one batcher, as the APIs ask for answers.

Threads: the event loop's only; templates and tokenizers run in threads of asyncio's. Ends: ``close`` ends all requests,
waits for the step that is under way, writes what the disk does not have yet, and closes the cache.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from .._core import CausalCache, HybridCache
from .._flushing import flushed
from .._options import SamplingOptions
from ..batcher import Batcher
from ..draft import DraftFunction
from ..errors import NotSupportedError
from ..explain import Explanation
from ..models.base import Model
from ..models.tokenizer import TextReading
from ..prefix_cache import PrefixCache
from ..sampling import LogitsProcessor
from ..thinking.limit import ThinkingLimit
from ..thinking.reasoning import reasoning_of
from .answer import Answer, Reading
from .clocks import ADVICE, Clocks
from .conversation_texts import ConversationTexts, Messages
from .generic_tools import needs_generic, syntax_for
from .grammar import DEEPEST, Grammars, calls_or, json_expression, with_known_formats
from .journal import Journal
from .json_values import JsonView
from .predictions import PredictedText, Prediction
from .prompts import Prompt, Prompts
from .replays import Replays
from .rules import Rule
from .settings import Settings
from .tool_grammar import grammar_for_tools
from .volatile import VolatileLines
from .wrong_fields import FieldError

_log = logging.getLogger("kvtrie.serve")
_ANY_OBJECT = {"type": "object"}
_TOKEN = 4  # characters


@dataclass(frozen=True)
class AnswerOptions:
    """How an answer is made. ``max_tokens``: -1 for as many as there is room for, 0 to compute the prompt alone.

    ``tools``: those that it may call, as the OpenAI API has them; ``tool_fields``: by their names, the fields of the
    request that have their schemas. A call is required where ``must_call``, one at most where ``one_call``.
    ``schema``: JSON schema that the answer follows where it is no call; {} for any JSON object; ``schema_field``: what
    asked for it. ``rule``: what the answer is instead. ``most_thoughts``: tokens of reasoning. ``prompt_logprobs``: how
    many of the likeliest tokens those of the prompt come with; such a prompt is computed from its beginning, alone.
    ``prediction``: what most of the answer is expected to be.
    ``each_token``: a piece for each, also where it completes no text. ``keeps_nothing``: it reuses nothing, and nothing
    of it is kept."""

    max_tokens: int | None = None
    stops: tuple[str, ...] = ()
    stop_tokens: tuple[int, ...] = ()
    sampling: SamplingOptions = field(default_factory=lambda: SamplingOptions())
    tools: tuple[JsonView, ...] = ()
    tool_fields: Mapping[str, str] = field(default_factory=dict)
    must_call: bool = False
    one_call: bool = False
    schema: JsonView | None = None
    schema_field: str = "response_format"
    rule: Rule | None = None
    most_thoughts: int | None = None
    prompt_logprobs: int | None = None
    prediction: PredictedText | None = None
    ignore_eos: bool = False
    each_token: bool = False
    keeps_nothing: bool = False

    @property
    def is_held(self) -> bool:
        """Whether the answer follows a grammar: beside tools that may be called it is a call, or follows that."""
        return self.schema is not None or self.rule is not None or self.must_call


class Engine:
    """Everything behind the routes. ``name``: what the model is called there."""

    def __init__(self, model: Model, cache: PrefixCache, name: str, settings: Settings) -> None:
        self.model, self.cache, self.name, self.settings = model, cache, name, settings
        self._draft: list[str | DraftFunction] = [*settings.draft]
        self.batcher = Batcher(
            model, cache, max_sessions=settings.max_sessions, max_waiting=settings.max_waiting, draft=self._draft
        )
        self.journal = Journal()
        self._replays = Replays()
        clocks = Clocks(settings.freeze_clock)
        texts = ConversationTexts(model.tokenizer, self._replays, VolatileLines(settings.volatile), clocks)
        self._prompts = Prompts(model, cache, settings.context, texts)
        self._grammars = Grammars(model)
        templates = model.tokenizer.chat_templates
        self._template = templates.get("default", templates.get("tool_use"))
        self._syntax = syntax_for(model.tokenizer)
        self._calls_apart = self._syntax is not None and self._syntax.form.apart
        self._ends = frozenset(model.end_tokens)
        added = model.tokenizer.raw.get_added_tokens_decoder()
        self._specials = frozenset(token for token, each in added.items() if each.special)
        self._has_points = any(_needs_points(each) for each in cache.caches)

    # --- prompts ----------------------------------------------------------------------------------------------------

    async def chat(
        self,
        messages: Messages,
        namespace: str,
        tools: Sequence[object] | None = None,
        variables: JsonView | None = None,
        marks: Sequence[int] = (),
        special_tokens: TextReading = "letters",
    ) -> Prompt:
        """See ``Prompts.of_chat``; ``marks`` are of use only where state is kept at single lengths.

        There, the state in front of an answer is kept, too, where the model reasons: most templates strip that from the
        next prompt, which then differs from the answer on, and would have to go on from further above.
        """
        kept: Sequence[int] = ()
        if self._has_points:
            kept = [*marks, len(messages)] if reasoning_of(self._template, "") else marks
        of_chat = self._prompts.of_chat
        return await asyncio.to_thread(of_chat, messages, namespace, tools, variables, kept, special_tokens)

    async def text(self, text: str, namespace: str, special_tokens: TextReading = "parse") -> Prompt:
        """See ``Prompts.of_text``."""
        return await asyncio.to_thread(self._prompts.of_text, text, namespace, special_tokens)

    async def prediction(self, text: str) -> PredictedText:
        """See ``Prompts.of_prediction``."""
        return await asyncio.to_thread(self._prompts.of_prediction, text)

    def tokens(self, tokens: Sequence[int]) -> Prompt:
        """See ``Prompts.of_tokens``."""
        return self._prompts.of_tokens(tokens)

    async def explain(self, prompt: Prompt, namespace: str) -> Explanation:
        """Why no more of it would be reused."""
        decode = self.model.tokenizer.decode
        return await asyncio.to_thread(self.cache.explain, prompt.tokens, namespace, decode=decode)

    async def advice(self, found: Explanation, prompt: Prompt) -> list[str]:
        """The server's options that would let more of ``prompt`` be reused."""
        if found.end != "differs" or not prompt.times:
            return []
        shared = [int(token) for token in found.tokens[: found.matched]]
        common = len(await asyncio.to_thread(self.model.tokenizer.decode, shared))
        return [ADVICE] if any(_lies_in(prompt.text, text, common) for text in prompt.times) else []

    async def plan(self, prompt: Prompt, namespace: str) -> int:
        """How many tokens of it would be reused now."""
        return (await asyncio.to_thread(self.cache.plan, prompt.tokens, namespace)).reusable

    # --- answers ----------------------------------------------------------------------------------------------------

    async def answers(
        self, api: str, prompts: Sequence[Prompt], namespace: str, options: AnswerOptions, count: int = 1
    ) -> list[Answer]:
        """``count`` answers to each prompt, which are being computed from now on.

        Those to one prompt share its computation; each has a seed of its own. Raises ``kv.errors.BusyError`` where too
        many wait, ``kv.errors.ArgumentError`` for what is out of its range; then none is.
        """
        made: list[Answer] = []
        try:
            for prompt in prompts:
                for number in range(count):
                    made.append(await self._answer(api, prompt, namespace, options, number))
        except BaseException:
            for answer in made:
                answer.cancel()
            raise
        return made

    async def _answer(self, api: str, prompt: Prompt, namespace: str, options: AnswerOptions, number: int) -> Answer:
        why = ""
        if self.journal.listeners:
            found = await self.explain(prompt, namespace)
            advice = await self.advice(found, prompt)
            why = "\n".join([str(found), *(f"to reuse more: {each}" for each in advice)])
        reading = self._reading(options, prompt)
        predicted = None if options.prediction is None else Prediction(options.prediction, len(prompt.tokens))
        request = self.batcher.submit(
            prompt.tokens,
            self._length(options, prompt),
            [*options.stops, *options.stop_tokens],
            ignore_eos=options.ignore_eos,
            namespace=namespace,
            checkpoints=prompt.checkpoints,
            alone=options.keeps_nothing,
            prompt_logprobs=options.prompt_logprobs,
            draft=None if predicted is None else [predicted, *self._draft],
            **await self._sampling(options, reading, number),
        )
        try:
            entry = self.journal.begin(api, namespace, request, why)
            replays = Replays() if options.keeps_nothing else self._replays
            return Answer(request, reading, entry, self.journal, replays, predicted)
        except BaseException:  # whose traceback has the request for as long as anybody has it
            request.cancel()
            self.journal.give_up(request)
            raise

    def _length(self, options: AnswerOptions, prompt: Prompt) -> int:
        room, wanted = self.settings.context - len(prompt.tokens), options.max_tokens
        if wanted == -1:
            return room
        return min(room, self.settings.max_tokens if wanted is None else max(1, wanted))

    async def _sampling(self, options: AnswerOptions, reading: Reading, number: int) -> SamplingOptions:
        sampling = SamplingOptions(**options.sampling)
        seed = sampling.get("seed")
        if seed is not None:
            sampling["seed"] = seed + number
        rules: list[LogitsProcessor] = []
        reasoning = reading.reasoning
        if options.most_thoughts is not None and reasoning is not None:
            most = options.most_thoughts
            rules.append(ThinkingLimit(self.model.tokenizer, reasoning, most))
        if options.is_held:
            rules.append(await asyncio.to_thread(self._grammar, options, reading))
        if rules:
            sampling["logits_processors"] = rules
        return sampling

    def _grammar(self, options: AnswerOptions, reading: Reading) -> LogitsProcessor:
        """The rules that an answer has to follow; behind its reasoning, where the prompt has begun one."""
        behind = None if reading.reasoning is None else reading.reasoning.behind
        schema = None if options.schema is None else options.schema or _ANY_OBJECT
        calls = self._grammar_of_calls(options)
        if options.must_call:
            if calls is None:
                said = "this model's template has no form of calls that can be required"
                raise NotSupportedError(f"[serve] tool_choice: {said}")
            return self._of_calls(calls, options, None if self._calls_apart else behind, "tool_choice")
        if self._calls_apart:
            calls = None
        if options.rule is not None:
            return self._by_rule(options.rule, calls, options, behind)
        alone = self._grammars.json_schema(schema or _ANY_OBJECT, behind, options.schema_field)
        if calls is None or schema is None:
            return alone
        return self._of_calls(calls_or(calls, json_expression(schema)), options, behind, "tools")

    def _by_rule(self, rule: Rule, calls: str | None, options: AnswerOptions, behind: str | None) -> LogitsProcessor:
        alone = self._grammars.lark(rule.lark(), behind, rule.field)
        if calls is None or not options.tools:
            return alone
        return self._of_calls(calls_or(calls, rule.expression()), options, behind, "tools")

    def _grammar_of_calls(self, options: AnswerOptions) -> str | None:
        if self._syntax is None:
            return None
        try:
            tools = [with_known_formats(tool) for tool in options.tools]
        except RecursionError as error:
            raise FieldError(
                f"[serve] tools: got schemas too deep, allowed a depth of {DEEPEST}", param="tools"
            ) from error
        most = {"at_most": 1} if options.one_call else {}
        return grammar_for_tools(self._syntax, tools, True, self.model.tokenizer.special_id, **most)

    def _of_calls(self, grammar: str, options: AnswerOptions, behind: str | None, where: str) -> LogitsProcessor:
        try:
            return self._grammars.lark(grammar, behind, where)
        except FieldError:
            self._name_the_culprit(options)
            raise

    def _name_the_culprit(self, options: AnswerOptions) -> None:
        """Raises for the tool whose parameters are refused by themselves."""
        for tool in options.tools:
            function = tool["function"]
            field = options.tool_fields.get(function["name"], "tools")
            try:
                self._grammars.json_schema(function.get("parameters") or _ANY_OBJECT, field=field)
            except FieldError as error:
                raise FieldError(f"{error} (of the tool {function['name']!r})", param=field) from error

    def _reading(self, options: AnswerOptions, prompt: Prompt) -> Reading:
        special_id = self.model.tokenizer.special_id
        texts = [text for text in options.stops if special_id(text) is None]
        ids = [found for found in map(special_id, options.stops) if found is not None]
        functions = {str(tool["function"]["name"]): tool["function"].get("parameters") for tool in options.tools}
        tools = self._syntax.reader(functions) if self._syntax is not None and functions else None
        asked = prompt.text[: len(prompt.text) - len(prompt.begun)]
        reasoning = reasoning_of(self._template, asked, prompt.begun) if prompt.text else None
        marks = [*(reasoning.kept if reasoning else ()), *(self._syntax.marks if tools and self._syntax else ())]
        silent = self._specials.difference(special_id(mark) for mark in marks)
        return Reading(
            self.model.tokenizer,
            self._ends | silent.union(ids, options.stop_tokens),
            texts,
            tools,
            reasoning,
            options.each_token,
            prompt.begins,
            most_calls=1 if options.one_call and not options.must_call else None,
            warm=options.max_tokens == 0,
        )

    # --- what it can do ---------------------------------------------------------------------------------------------

    @property
    def template(self) -> str | None:
        """The chat template; None: it answers no chats."""
        return self._template

    @property
    def describes_tools(self) -> bool:
        """Whether they are described in a system message, since the template knows none (generic_tools.py)."""
        return needs_generic(self.model.tokenizer)

    @property
    def capabilities(self) -> list[str]:
        """As Ollama calls them."""
        thinks = reasoning_of(self._template, "") is not None
        can = {"completion": True, "tools": self._syntax is not None, "thinking": thinks}
        return [name for name, there in can.items() if there]

    # --- its end ----------------------------------------------------------------------------------------------------

    def require_text(self, what: str) -> None:
        """Raises where the model cannot be asked for chats."""
        if self._template is None:
            raise FieldError(f"[serve] {what}: this model has no chat template, allowed /v1/completions", param=what)

    def close(self) -> None:
        """Ends all requests, then the cache; all that is idle is written to its disk before. It may be called again."""
        try:
            self.batcher.close()
            if not flushed(self.cache):
                _log.warning("serve: some of the state was not written to the disk")
        finally:
            self.cache.close()


def _lies_in(text: str, part: str, at: int) -> bool:
    """Whether ``part`` stands in ``text`` where it has ``at`` characters; a token may begin a little before it."""
    begin = text.find(part, max(0, at - len(part)))
    return 0 <= begin <= at + _TOKEN


def _needs_points(cache: object) -> bool:
    """Whether what it keeps can be gone back to at some lengths only."""
    if isinstance(cache, CausalCache):
        return bool(getattr(cache, "window", None) or getattr(cache, "chunk", None))
    return isinstance(cache, HybridCache) or not isinstance(cache, CausalCache)
