"""Where requests go, over sockets: names, rules, sessions, what pools can do, and upwards when a pool is down."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from .client import Answer, Client, ask, error_of, eventually
from .engine import Engine, reply
from .gateway import Gateway, policy, pool

Start = Callable[..., Any]
EASY = "hi"  # has a high p by the embedded classifier
MIDDLING = "How many times does an eagle of 12 years beat its wings in 3 hours, if it rests 20 minutes in each hour?"  # lower
HARD = "Prove the theorem thoroughly, derive the complexity, debug the deadlock and refactor the design. " * 20  # it abstains
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}


@dataclass
class World:
    small: Engine
    big: Engine
    gateway: Gateway
    client: Client

    def ask(self, text: str = EASY, *, kind: str = "chat", model: str = "auto", headers: Any = (), **more: Any) -> Answer:
        path, body = ask(kind, text, model, **more)
        return self.client.post(path, body, headers)


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[Engine, Engine, Gateway]]:
    with Engine("acme/small", context=1000) as small, Engine("acme/big", context=100_000) as big:
        pools = {
            "small": pool(small, accepts=["tools"]), "big": pool(big, accepts=["tools", "structured_output", "images"]),
            "default": pool(small), "clamping": pool(small, accepts=["tools"], max_output_tokens="clamp"),
        }  # fmt: skip
        classified = {"classify": [{"type": "embedded"}], "choose": [{"p_at_least": 0.85, "use": "small"}, {"use": "big"}]}
        rules = [
            {"when": {"header.x-team": "gold"}, "use": "big", "why": "gold gets the best"},
            {"when": {"request_class": "title"}, "use": "small"},
            {"when": {"tool_errors_in_a_row": {"at_least": 2}}, "use": "big", "for": "3 turns"},
            {"when": {"protocol": ["embeddings", "rerank"]}, "use": "small"},
        ]
        routes = {
            "auto": classified | {"rules": rules, "aliases": ["claude-*", "gpt-4.1"]},
            "plain": classified,
            "always": {"use": "big"},
            "per-request": classified | {"decide_per": "request"},
            "per-session": classified | {"decide_per": "session"},
            "text-only": {"choose": [{"use": "small"}]},
            "clamped": classified | {"choose": [{"p_at_least": 0.85, "use": "clamping"}, {"use": "big"}]},
        }
        with Gateway(policy(pools, routes)) as gateway:
            yield small, big, gateway


@pytest.fixture
def world(served: tuple[Engine, Engine, Gateway]) -> World:
    small, big, gateway = served
    small.reset()
    big.reset()
    return World(small, big, gateway, gateway.client())


# ---- names ----


@pytest.mark.parametrize(
    "kind", ["chat", "completions", "responses", "messages", "count", "embeddings", "rerank", "score", "tokenize"]
)
def test_names(world: World, kind: str) -> None:
    """A pool, a route that always uses one, and a decided route; on every endpoint."""
    for model, expected, served in (
        ("small", "small", "acme/small"),
        ("big", "big", "acme/big"),
        ("always", "big", "acme/big"),
    ):
        answer = world.ask(kind=kind, model=model)
        assert (answer.status, answer.pool) == (200, expected)
        seen = world.small if expected == "small" else world.big
        assert seen.last.json()["model"] == served
    assert world.ask(kind=kind, model="auto").pool in {"small", "big"}


@pytest.mark.parametrize("model", ["claude-sonnet-4-5", "claude-", "gpt-4.1"])
def test_aliases(world: World, model: str) -> None:
    answer = world.ask(model=model, headers=[("x-team", "gold")])
    assert (answer.status, answer.pool, answer.reason) == (200, "big", "rule: gold gets the best")
    assert world.gateway.record()["route"] == "auto"


@pytest.mark.parametrize("model", ["gpt-4", "xclaude-1", "claude-a b", "auto2", "claude-" + "x" * 400])
def test_names_that_nobody_has(world: World, model: str) -> None:
    assert world.ask(model=model).status == 404


# ---- facts and scores ----


def test_easy_and_hard(world: World) -> None:
    easy, middling, hard = world.ask(EASY), world.ask(MIDDLING), world.ask(HARD)
    assert (easy.pool, middling.pool, hard.pool) == ("small", "big", "big")
    assert (easy.reason, middling.reason) == ("p 0.90 >= 0.85 by embedded", "p 0.78 < 0.85 by embedded")
    assert hard.reason.startswith("otherwise: embedded: it asks for a text or a change")
    kinds = [record["decision"]["kind"] for record in world.gateway.decisions()[:3][::-1]]
    assert kinds == ["score", "score", "otherwise"]


def test_a_rule_comes_before_a_score(world: World) -> None:
    answer = world.ask(EASY, headers=[("X-Team", "gold")])
    assert (answer.pool, answer.reason) == ("big", "rule: gold gets the best")
    assert world.ask(EASY, headers=[("X-Team", "silver")]).pool == "small"


def test_a_title_call(world: World) -> None:
    """An agent's small call for a headline, whatever is in it."""
    system = {"role": "system", "content": "Generate a short title for this conversation."}
    messages = [system, {"role": "user", "content": HARD}]
    agent = [("user-agent", "opencode/1.18.33")]
    answer = world.ask(messages=messages, headers=agent)
    assert answer.pool == "small"
    assert world.ask(messages=messages, headers=[("user-agent", "curl/8")]).pool == "big"


def test_the_client_asks_for_a_pool(world: World) -> None:
    for name in ("small", "big"):
        for text in (EASY, HARD):
            answer = world.ask(text, headers=[("x-switchyard-pool", name)])
            assert (answer.status, answer.pool) == (200, name)
    assert world.gateway.record()["decision"]["kind"] == "asked"
    answer = world.ask(headers=[("x-switchyard-pool", "default")])
    assert (answer.status, answer.code) == (400, "invalid_request")
    assert "small" in error_of("chat", answer.json())["message"]
    for engine in (world.small, world.big):
        assert all(r.all("x-switchyard-pool") == [] for r in engine.work)


# ---- what pools can do ----


def test_images_go_where_they_are_taken(world: World) -> None:
    messages = [{"role": "user", "content": [{"type": "text", "text": EASY}, IMAGE]}]
    answer = world.ask(model="plain", messages=messages)
    assert (answer.status, answer.pool) == (200, "big")
    assert "small" in answer.reason


@pytest.mark.parametrize("kind", ["chat", "messages", "responses"])
def test_images_are_refused_where_nobody_takes_them(world: World, kind: str) -> None:
    """The policy says so explicitly, so no engine is bothered."""
    parts = {
        "chat": IMAGE, "messages": {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA=="}},
        "responses": {"type": "input_image", "image_url": "data:image/png;base64,AA=="},
    }  # fmt: skip
    field = "input" if kind == "responses" else "messages"
    answer = world.ask(kind=kind, model="text-only", **{field: [{"role": "user", "content": [parts[kind]]}]})
    assert (answer.status, answer.code) == (400, "no_capable_pool")
    assert "images" in error_of(kind, answer.json())["message"]
    assert world.small.work == []


def test_where_the_policy_is_silent_the_engine_decides(world: World) -> None:
    world.small.play(reply({"error": {"message": "no images", "type": "BadRequestError", "param": None, "code": 400}}, 400))
    answer = world.ask(model="default", messages=[{"role": "user", "content": [IMAGE]}])
    assert answer.json()["error"]["message"] == "no images"


def test_structured_output_goes_where_it_is_taken(world: World) -> None:
    schema = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}}}
    assert world.ask(model="plain", response_format=schema).pool == "big"
    assert world.ask(model="plain", tools=[TOOL]).pool == "small"


def test_a_long_prompt_goes_to_a_long_context(world: World) -> None:
    answer = world.ask("word " * 2000, model="plain")
    assert (answer.status, answer.pool) == (200, "big")
    assert "1000 tokens" in answer.reason


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens", "max_output_tokens"])
def test_the_wanted_output_counts(world: World, name: str) -> None:
    assert world.ask(model="plain", **{name: 900}).pool == "small"
    assert world.ask(model="plain", **{name: 32_000}).pool == "big"


def test_a_prompt_too_long_for_all(world: World) -> None:
    """Surely too long: refused here, with the code that agents know. Perhaps too long: the engine's verdict."""
    for kind in ("chat", "messages", "responses"):
        answer = world.ask("word " * 400_000, kind=kind, model="plain")
        assert (answer.status, answer.code) == (400, "context_length_exceeded")
        assert "prompt is too long" in error_of(kind, answer.json())["message"]
    assert world.big.work == []
    assert world.ask("word " * 100_000, model="plain").status == 200
    assert len(world.big.work) == 1


def test_clamping(world: World) -> None:
    """An agent asks for 32,000 tokens from a pool of 1,000: lowered to what fits, and said."""
    for kind, name in (
        ("chat", "max_tokens"),
        ("chat", "max_completion_tokens"),
        ("responses", "max_output_tokens"),
        ("messages", "max_tokens"),
    ):
        answer = world.ask(kind=kind, model="clamped", **{name: 32_000, "x": 1e30})
        assert (answer.status, answer.pool) == (200, "clamping")
        assert "lowered from 32000" in answer.reason
        sent = world.small.last.json()
        assert 900 < sent[name] <= 1000
        assert sent["x"] == 1e30
    assert world.ask(model="clamped", max_tokens=10).reason.count("lowered") == 0
    assert world.small.last.json()["max_tokens"] == 10
    assert world.ask(model="small", max_tokens=32_000).status == 200
    assert world.small.last.json()["max_tokens"] == 32_000, "this pool passes what it gets"


# ---- sessions ----


def history(*texts: str, loop: int = 0) -> list[dict[str, Any]]:
    """A conversation with these human texts; `loop` tool calls with their results at the end."""
    messages: list[dict[str, Any]] = []
    for text in texts:
        messages += [{"role": "user", "content": text}, {"role": "assistant", "content": "ok"}]
    messages.pop()
    for n in range(loop):
        call = {"id": f"c{n}", "type": "function", "function": {"name": "look", "arguments": f'{{"n":{n}}}'}}
        messages += [{"role": "assistant", "content": None, "tool_calls": [call]}]
        messages += [{"role": "tool", "tool_call_id": f"c{n}", "content": "fine " * 300 if n else "fine"}]
    return messages


def test_a_tool_loop_is_held(world: World) -> None:
    """With a session id and without: the pool where it began, though the text is judged otherwise by now."""
    for headers in ([("x-session-id", "loop-1")], []):
        texts = [f"Say hello {len(headers)} times."]
        first = world.ask(messages=history(*texts), tools=[TOOL], headers=headers)
        assert first.pool == "small"
        for loop in range(1, 4):
            answer = world.ask(messages=history(*texts, loop=loop), tools=[TOOL], headers=headers)
            assert answer.pool == "small", loop
            assert "tool loop" in answer.reason


def test_a_loop_that_began_on_a_stand_in_stays_there_when_the_pool_is_back(start: Start) -> None:
    small, big = start(Engine("s")), start(Engine("b"))
    route = {"classify": [{"type": "embedded"}], "choose": [{"p_at_least": 0.85, "use": "small"}, {"use": "big"}]}
    gateway: Gateway = start(Gateway(policy({"small": pool(small), "big": pool(big)}, {"auto": route})))
    client, session = gateway.client(), [("x-session-id", "s")]

    def turn(*texts: str, loop: int = 0) -> Answer:
        path, body = ask("chat", "", "auto", messages=history(*texts, loop=loop), tools=[TOOL])
        return client.post(path, body, session)

    small.shut()
    answer = turn("Say hello.")
    assert (answer.pool, answer.reason.startswith("no replica of small can be reached")) == ("big", True)
    small.listen()
    eventually(lambda: gateway.metric("switchyard_replica_up", pool="small") == 1, 30)
    answer = turn("Say hello.", loop=1)
    assert (answer.pool, answer.reason) == ("big", "the tool loop goes on where it began")
    assert turn("Say hello.", "Say thanks.").pool == "small", "the session has never left it"


def test_a_session_only_goes_up(world: World) -> None:
    session = [("x-session-id", "up-1")]
    pools = [world.ask(messages=history(*texts), headers=session).pool for texts in ([EASY], [EASY, HARD], [EASY, HARD, EASY])]
    assert pools == ["small", "big", "big"]


def test_a_turn_is_decided_once(world: World) -> None:
    session = [("x-session-id", "turn-1")]
    world.ask(messages=history(EASY), headers=session)
    answer = world.ask(messages=history(HARD), headers=session)
    assert (answer.pool, answer.reason) == ("small", "the same turn as before")


def test_decide_per_request_and_per_session(world: World) -> None:
    session = [("x-session-id", "per-1")]
    turns = ([EASY], [EASY, HARD], [EASY, HARD, EASY])
    per_request = [world.ask(model="per-request", messages=history(*t), headers=session).pool for t in turns]
    per_session = [world.ask(model="per-session", messages=history(*t), headers=session).pool for t in turns]
    assert per_request == ["small", "big", "small"]
    assert per_session == ["small", "small", "small"]


def test_a_rule_holds_for_some_turns(world: World) -> None:
    """Two failed tools: up for three turns, then back to what the session had."""
    session = [("x-session-id", "hold-1")]
    turns = ["Say one.", "Say two.", "Say three.", "Say four."]
    assert world.ask(messages=history(*turns[:1]), headers=session).pool == "small"
    failed = history(*turns[:1], loop=2)
    for message in failed:
        if message["role"] == "tool":
            message["content"] = "Error: no such file"
    assert world.ask(messages=failed, headers=session).pool == "big"
    assert world.ask(messages=history(*turns[:2]), headers=session).pool == "big"
    assert world.ask(messages=history(*turns[:3]), headers=session).pool == "big"
    assert world.ask(messages=history(*turns), headers=session).pool == "small"


def test_sessions_of_clients(world: World) -> None:
    """The names that clients have for it; the same id is the same session, another one isn't."""
    ways: list[tuple[list[tuple[str, str]], dict[str, Any]]] = [
        ([("x-claude-code-session-id", "ID")], {}), ([("x-session-affinity", "ID")], {}), ([("session-id", "ID")], {}),
        ([("x-codex-turn-metadata", '{"session_id":"ID"}')], {}),
        ([], {"metadata": {"user_id": '{"device_id":"d","session_id":"ID"}'}}),
        ([], {"metadata": {"user_id": "user_abc_account__session_ID-0123456789"}}), ([], {"prompt_cache_key": "ID"}),
    ]  # fmt: skip
    for n, (headers, fields) in enumerate(ways):
        keys = []
        for id_ in (f"id{n}a", f"id{n}a", f"id{n}b"):
            given = [(name, value.replace("ID", id_)) for name, value in headers]
            more = {
                k: str(v).replace("ID", id_) if isinstance(v, str) else {"user_id": v["user_id"].replace("ID", id_)}
                for k, v in fields.items()
            }
            assert world.ask(headers=given, **more).status == 200
            keys.append(world.gateway.record()["session"])
        assert keys[0] == keys[1] != keys[2], ways[n]


@pytest.mark.parametrize("id_", ["", "x" * 10_000, "caf\xe9", "a b"])
def test_bad_session_ids_are_none(world: World, id_: str) -> None:
    assert world.ask(headers=[("x-session-id", id_)]).status == 200
    assert world.gateway.record()["session_source"] == "fingerprint"


# ---- replicas ----


def test_a_conversation_stays_on_its_replica(start: Start) -> None:
    engines = [start(Engine()) for _ in range(3)]
    gateway = start(Gateway(policy({"small": pool(*engines)})))
    client = gateway.client()
    places = {}
    for session in range(12):
        seen = {client.post(*ask("chat"), [("x-session-id", f"s{session}")]).replica for _ in range(3)}
        assert len(seen) == 1
        places[session] = seen.pop()
    assert len(set(places.values())) > 1
    gone = engines[0]
    label = gone.url.removeprefix("http://")
    gone.shut()
    eventually(lambda: gateway.metric("switchyard_replica_up", replica=label) == 0)
    after = {s: client.post(*ask("chat"), [("x-session-id", f"s{s}")]).replica for s in places}
    for session, place in places.items():
        assert (after[session] == place) == (place != label)
    gone.listen()
    eventually(lambda: gateway.metric("switchyard_replica_up", replica=label) == 1)
    again = {s: client.post(*ask("chat"), [("x-session-id", f"s{s}")]).replica for s in places}
    assert again == after, "what has moved stays, since its cache is there now"


# ---- upwards ----


@pytest.fixture
def pair(start: Start) -> tuple[Engine, Engine, Gateway]:
    small, big = start(Engine("acme/small")), start(Engine("acme/big"))
    route = {"classify": [{"type": "embedded"}], "choose": [{"p_at_least": 0.85, "use": "small"}, {"use": "big"}]}
    gateway = start(Gateway(policy({"small": pool(small), "big": pool(big)}, {"auto": route})))
    return small, big, gateway


@pytest.mark.parametrize("noticed", [True, False])
def test_a_pool_that_is_down_is_left_upwards(pair: tuple[Engine, Engine, Gateway], noticed: bool) -> None:
    small, big, gateway = pair
    client = gateway.client()
    small.shut()
    if noticed:
        eventually(lambda: gateway.metric("switchyard_replica_up", pool="small") == 0)
    answer = client.post(*ask("chat", EASY, "auto"))
    assert (answer.status, answer.pool) == (200, "big")
    assert "small" in answer.reason
    assert big.last.json()["model"] == "acme/big"
    assert client.post(*ask("chat", EASY, "small")).status == 502, "a pool asked for by name has no substitute"


def test_never_downwards(pair: tuple[Engine, Engine, Gateway]) -> None:
    small, big, gateway = pair
    big.shut()
    answer = gateway.client().post(*ask("chat", HARD, "auto"))
    assert (answer.status, answer.pool) == (502, "big")
    assert small.work == []


def test_readiness_tells_what_is_down(pair: tuple[Engine, Engine, Gateway]) -> None:
    small, big, gateway = pair
    small.shut()
    eventually(lambda: gateway.ready().json()["pools"]["small"]["healthy"] == 0)
    answer = gateway.ready()
    assert (answer.status, answer.json()["ready"]) == (200, True), "the other pool works"
    (replica,) = answer.json()["pools"]["small"]["replicas"].values()
    assert replica["state"] == "down"
    assert replica["problem"]
    big.shut()
    assert eventually(lambda: gateway.ready().status == 503)


def test_an_engine_that_is_ill_gets_nothing(start: Start) -> None:
    one, two = start(Engine()), start(Engine())
    gateway = start(Gateway(policy({"small": pool(one, two, balance="round_robin")})))
    client = gateway.client()
    one.healthy = False
    eventually(lambda: gateway.metric("switchyard_replica_up") == 1)
    for _ in range(4):
        assert client.post(*ask("chat")).status == 200
    assert one.work == []
    one.healthy = True
    eventually(lambda: gateway.metric("switchyard_replica_up") == 2)
    for _ in range(4):
        assert client.post(*ask("chat")).status == 200
    assert len(one.work) == 2
