"""Models whose success on every case of a suite is known in advance, as scripts of the fake engine; and a judge of them."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterable, Mapping
from random import Random
from typing import Any

from switchyard.evals.function_calls import FunctionCalls

from .engine import Request, Script, Step, reply

USAGE = {"prompt_tokens": 200, "completion_tokens": 30, "total_tokens": 230}


class World:
    """Which of the shipped function-call cases each model passes: big 91 %, small 70 %, with a known overlap.

    Attributes:
        big, small: cases that they pass.
    """

    def __init__(self, seed: int = 1) -> None:
        self.suite = FunctionCalls()
        ids = [case.id for case in self.suite.cases]
        assert len(ids) == 245
        Random(seed).shuffle(ids)
        both, only_big, only_small, self.neither = ids[:164], ids[164:223], ids[223:231], ids[231:]
        self.big, self.small = {*both, *only_big}, {*both, *only_small}
        self.only_big, self.only_small = only_big, only_small
        self._case_of = {self.suite.messages(id_)[-1]["content"]: id_ for id_ in ids}

    def case_in(self, text: str) -> str | None:
        """The case whose words stand in a prompt."""
        found = [(len(words), id_) for words, id_ in self._case_of.items() if words in text]
        return max(found)[1] if found else None

    def model(self, passes: Collection[str]) -> Script:
        """A model that passes exactly these cases: it makes the right calls, or none where some are right."""

        def answer(request: Request) -> Iterable[Step]:
            case = self._case_of.get(request.json()["messages"][-1]["content"])
            if case is None:  # the check before a run
                return reply(completion([]))
            calls = self.suite.right_answer(case)
            if case not in passes:
                calls = [] if calls else [(request.json()["tools"][0]["function"]["name"], {})]
            return reply(completion(calls))

        return answer

    def judge(self, p_of: Mapping[str, float]) -> Script:
        """A judge that gives each case its score."""

        def answer(request: Request) -> Iterable[Step]:
            case = self.case_in(request.json()["messages"][0]["content"])
            return reply(verdict(p_of[case] if case else 0.5))

        return answer


def completion(calls: list[tuple[str, dict[str, Any]]]) -> dict[str, Any]:
    """A chat completion with these tool calls, or with a text."""
    made = [
        {"id": f"call_{i}", "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}
        for i, (name, arguments) in enumerate(calls)
    ]
    message = {"role": "assistant", "content": None if made else "There is nothing to call.", "tool_calls": made}
    choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if made else "stop"}
    return {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice], "usage": USAGE}


def verdict(p: float) -> dict[str, Any]:
    """A judge's single token."""
    top = [{"token": t, "logprob": math.log(max(q, 1e-9)), "bytes": None} for t, q in (("yes", p), ("no", 1 - p))]
    choice = {
        "index": 0, "message": {"role": "assistant", "content": "yes"}, "finish_reason": "length",
        "logprobs": {"content": [{**top[0], "top_logprobs": top}]},
    }  # fmt: skip
    return {"id": "chatcmpl-j", "object": "chat.completion", "created": 1, "model": "j", "choices": [choice], "usage": USAGE}
