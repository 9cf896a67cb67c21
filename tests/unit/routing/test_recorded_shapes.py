"""A session of Claude Code, Codex and opencode each, turn by turn, through the reference policy: session, class, pool, why.

The texts are made up, the bodies have the shape that these agents send. The judge is scripted: it finds renaming easy.
"""

import json
import math
from pathlib import Path

import pytest

from switchyard.app import Gateway
from switchyard.config.load import load_policy
from switchyard.config.secrets import Secrets
from switchyard.routing.session import identify

from ..agents import (
    CLAUDE_CODE,
    CODEX,
    OPENCODE,
    chat_call,
    chat_result,
    claude_call,
    claude_code,
    claude_result,
    claude_title,
    codex,
    codex_call,
    codex_message,
    opencode,
    opencode_title,
)
from ..build import signals_of

POLICY = Path(__file__).parents[3] / "policies" / "spark-8.yaml"
HARD, EASY = "find out why the scheduler deadlocks", "rename the variable x to count"
SAID = {"role": "assistant", "content": "done"}
BAD = claude_result("Error: no rule", is_error=True)

CLAUDE_CALLS = [claude_call("Bash", cmd="make"), claude_result("ok")]
CODEX_CALLS = codex_call("shell", "{}", "ok")
OPENCODE_CALLS = [chat_call("bash"), chat_result("ok")]

# what is sent, request class, pool, a word of the reason
SESSIONS = {
    "claude-code": ("messages", CLAUDE_CODE, "x-claude-code-session-id", [
        (claude_title(), {}, "title", "minicpm", "titles are easy"),
        (claude_code(ask=EASY), {}, "main", "minicpm", "p 0.95 >= 0.85 by model"),
        (claude_code(*CLAUDE_CALLS, ask=EASY), {}, "main", "minicpm", "tool loop"),
        (claude_code(claude_call("Bash", cmd="a"), BAD, claude_call("Bash", cmd="b"), BAD, ask=EASY), {}, "main", "qwen",
         "two tool errors in a row"),
        (claude_code(ask=EASY), {"x-claude-code-agent-id": "a1"}, "subagent", "minicpm", "p 0.95"),
        (claude_code(*CLAUDE_CALLS, SAID, {"role": "user", "content": HARD}, ask=EASY), {}, "main", "qwen",
         "4 more turns"),
    ]),
    "codex": ("responses", CODEX, "session-id", [
        (codex(ask=HARD), {}, "main", "qwen", "p 0.20 < 0.85 by model"),
        (codex(*CODEX_CALLS, ask=HARD), {}, "main", "qwen", "tool loop"),
        (codex(*CODEX_CALLS, codex_message("user", EASY), ask=HARD), {}, "main", "qwen", "only goes up"),
        (codex(ask=EASY), {"x-openai-subagent": "review"}, "subagent", "minicpm", "p 0.95"),
    ]),
    "opencode": ("chat", OPENCODE, "x-session-id", [
        (opencode_title(), {}, "title", "minicpm", "titles are easy"),
        (opencode(ask=EASY), {}, "main", "minicpm", "p 0.95"),
        (opencode(*OPENCODE_CALLS, SAID, {"role": "user", "content": HARD}, ask=EASY), {}, "main", "qwen", "p 0.20"),
        (opencode({"role": "user", "content": "Write a detailed summary of our conversation so far."}), {}, "compaction",
         "qwen", "a good summary"),
    ]),
}  # fmt: skip


async def judge(pool: str, body: bytes) -> tuple[int, bytes]:
    """An engine with known log-probabilities."""
    assert pool == "minicpm"
    asked = json.loads(body)["messages"][-1]["content"]
    yes = 0.95 if EASY in asked and HARD not in asked.rpartition("Said now:")[2] else 0.2
    top = [{"token": word, "logprob": math.log(p)} for word, p in (("yes", yes), ("no", 1 - yes))]
    return 200, json.dumps({"choices": [{"logprobs": {"content": [{"top_logprobs": top}]}}]}).encode()


@pytest.mark.parametrize("agent", SESSIONS)
def test_a_session_of_an_agent(agent, run):
    policy = load_policy(POLICY)
    server = policy.server.model_copy(update={"decision_log": None})
    gateway = Gateway(policy.model_copy(update={"server": server}), Secrets(("sk-1",)), ask=judge)
    protocol, headers, source, turns = SESSIONS[agent]
    keys = set()
    for n, (body, more, request_class, pool, why) in enumerate(turns):
        signals = signals_of(body, protocol, {**headers, **more})
        session = identify(signals)
        target = gateway.decider.find_target("auto")
        decision = run(gateway.decider.decide(target, signals, session))
        assert (signals.request_class, decision.pool) == (request_class, pool), (n, decision)
        assert why in "; ".join(decision.reasons), n
        assert session.source == source
        keys.add((session.key, request_class))
    classes = {request_class for _, _, request_class, _, _ in turns}
    assert len(keys) == len(classes) == len({key for key, _ in keys}), "one memory for each class"
