"""Property: bodies and streams cross the gateway byte for byte, but for the value of `model`."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from .client import PATHS, Client, Connection, ask
from .engine import CLOSE, SSE_TYPE, Engine, Gate, Step, chunk, head, reply, sse, stream
from .gateway import Gateway, policy, pool

many = settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)

EVERYTHING = ["tools", "structured_output", "images", "audio"]
ALL_SIGNALS = {
    "prompt_tokens": {"at_least": 10**9}, "max_output_tokens": {"at_least": 10**9}, "turns": 10**6, "tools": 10**6,
    "tool_calls_in_history": 10**6, "tool_errors_in_a_row": 10**6, "repeated_call": 10**6, "reasoning_effort": "unheard of",
    "code_share": {"at_least": 2}, "language": "none", "request_class": "compaction", "client": "none",
}  # fmt: skip


@dataclass
class World:
    engine: Engine
    gateway: Gateway
    client: Client
    kept: Connection  # one connection for many requests, as clients do


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[Engine, Gateway]]:
    """Pools asked for by name, and a route that reads every signal and asks its classifier."""
    with Engine(context=None) as engine:
        pools = {
            "small": pool(engine, accepts=EVERYTHING), "big": pool(engine, accepts=EVERYTHING),
            "asking": pool(engine, usage="ask"),
        }  # fmt: skip
        # No rule matches, but one signal after the other is read to find that out.
        rules = [{"when": {name: condition}, "use": "big"} for name, condition in ALL_SIGNALS.items()]
        choose = [{"p_at_least": 0.5, "use": "small"}, {"use": "big"}]
        auto = {"rules": rules, "classify": [{"type": "embedded"}], "choose": choose}
        with Gateway(policy(pools, {"auto": auto})) as gateway:
            yield engine, gateway


@pytest.fixture
def world(served: tuple[Engine, Gateway]) -> World:
    engine, gateway = served
    engine.reset()
    client = gateway.client()
    return World(engine, gateway, client, client.open())


# ---- requests ----

_SCALARS = st.one_of(
    st.sampled_from(["null", "true", "false", "-0", "1E5", "0.1000", "12345678901234567890", "1e-400", "-1.50e+3", '""']),
    st.text().map(lambda t: json.dumps(t, ensure_ascii=False).encode("utf-8", "replace").decode()),
    st.text().map(json.dumps),  # escapes; also halves of surrogate pairs
    st.sampled_from(
        [r'"cut \ud83d here"', r'"\ud83d\ude00"', r'"\\ud83d"', r'"\udc00\ud83d"', '"a\u2028b\u0085c"', r'"\/\u0041"']
    ),
)
_SPACE = st.sampled_from(["", "", "", " ", "\n", "\r\n\t "])
_WORDS = st.sampled_from(
    ["role", "content", "type", "text", "user", "assistant", "tool", "system", "tool_calls", "function", "name", "image_url",
     "tool_result", "input_text", "id", "arguments", "output", "is_error", "json_schema", "effort"]
)  # fmt: skip


def _object(values: st.SearchStrategy[str], keys: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    pair = st.tuples(_SPACE, keys, _SPACE, values).map(lambda p: f"{p[0]}{p[1]}{p[2]}:{p[3]}")
    return st.tuples(_SPACE, st.lists(pair, max_size=4)).map(lambda p: "{" + ",".join(p[1]) + p[0] + "}")


_JSON = st.recursive(
    _SCALARS | _WORDS.map(json.dumps),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4).map(lambda items: "[" + " ,".join(items) + "]"),
        _object(inner, st.one_of(_WORDS.map(json.dumps), st.text(max_size=3).map(json.dumps))),
    ),
    max_leaves=12,
)
_FIELDS = [
    "messages", "input", "prompt", "system", "instructions", "tools", "tool_choice", "metadata", "max_tokens",
    "response_format", "max_completion_tokens", "text", "reasoning", "thinking", "output_config",
    "stream_options", "conversation", "modalities",
    "prompt_cache_key", "chat_template_kwargs", "x_future", "stop", "temperature", "api_base", "base_url", "api_key",
]  # fmt: skip


@st.composite
def bodies(draw: st.DrawFn) -> tuple[bytes, bytes]:
    """A request body, and what the engine is to get."""
    fields = draw(st.lists(st.sampled_from(_FIELDS), unique=True, max_size=6))
    pieces = [f"{json.dumps(name)}{draw(_SPACE)}:{draw(_SPACE)}{draw(_JSON)}" for name in fields]
    key = draw(st.sampled_from(['"model"', r'"mo\u0064el"']))
    name = draw(st.sampled_from(['"auto"', '"small"', r'"\u0061uto"', '"auto"']))
    at = draw(st.integers(0, len(pieces)))
    before, after = draw(_SPACE), draw(_SPACE)

    def body(model: str) -> bytes:
        with_model = [*pieces[:at], f"{before}{key}:{after}{model}{after}", *pieces[at:]]
        return ("{" + ",".join(with_model) + "}" + before).encode()

    return body(name), body('"acme/small"')


@many
@given(body=bodies(), path=st.sampled_from(sorted(PATHS.values())))
def test_any_body_arrives_unchanged(world: World, body: tuple[bytes, bytes], path: str) -> None:
    sent, expected = body
    world.engine.reset()
    world.engine.play(reply({"fine": True}))
    world.kept.ask(path, sent)
    answer = world.kept.answer()
    assert (answer.status, answer.json()) == (200, {"fine": True})
    assert world.engine.last.target == path
    assert world.engine.last.body == expected


@pytest.mark.parametrize("model", ["small", "auto"])
def test_unusual_but_valid_fields_arrive(world: World, model: str) -> None:
    history = [
        {"role": "user", "content": []},
        {"role": "assistant", "content": None,
         "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{"}}]},
        {"role": "assistant", "tool_calls": None, "reasoning": "x", "reasoning_content": "y"},
        {"role": "tool", "tool_call_id": "c", "content": ""},
        {"role": "developer", "content": [{"type": "text", "text": "t", "cache_control": {"type": "ephemeral"}}], "name": "n"},
    ]  # fmt: skip
    path, body = ask(
        "chat", model=model, messages=history, chat_template_kwargs={"enable_thinking": False}, top_k=20, min_p=0.05
    )
    world.engine.reset()
    assert world.client.post(path, body).status == 200
    assert world.engine.last.json() == body | {"model": "acme/small"}


def test_a_number_beyond_floats_arrives(world: World) -> None:
    """JSON has no limits for numbers."""
    world.engine.play(reply({}))
    world.kept.ask(PATHS["chat"], b'{"model":"auto","messages":[],"max_tokens":1e400}')
    assert world.kept.answer().status == 200
    assert world.engine.last.body == b'{"model":"acme/small","messages":[],"max_tokens":1e400}'


@pytest.mark.parametrize("field", ["messages", "metadata", "x", "tools", "response_format"])
def test_deep_nesting_is_served_or_refused(world: World, field: str) -> None:
    """Around the depth that the gateway can read, no body makes it fail."""
    for depth in [*range(100, 1000, 60), *range(930, 1000, 4), 3000, 100_000]:
        world.engine.reset()
        world.engine.play(reply({}))
        world.kept.ask(PATHS["chat"], b'{"model":"auto","%b":%b%b}' % (field.encode(), b"[" * depth, b"]" * depth))
        answer = world.kept.answer()
        assert answer.status in {200, 400}, (depth, answer)
        assert (answer.status == 200) == bool(world.engine.work)


def test_a_body_in_chunks_arrives_whole(world: World) -> None:
    world.engine.reset()
    path, body = ask("chat", "x" * 3000)
    data = json.dumps(body).encode()
    pieces = b"".join(chunk(data[i : i + 700]) for i in range(0, len(data), 700)) + b"0\r\n\r\n"
    world.kept.ask(path, pieces, [("transfer-encoding", "chunked")])
    assert world.kept.answer().status == 200
    assert world.engine.last.json() == body | {"model": "acme/small"}
    assert world.engine.last.all("transfer-encoding") == []
    assert world.engine.last.all("content-length") == [str(len(world.engine.last.body))]


def test_the_query_goes_on(world: World) -> None:
    world.engine.reset()
    path, body = ask("messages")
    assert world.client.post(f"{path}?beta=true&x=%2F", body).status == 200
    assert world.engine.last.target == f"{path}?beta=true&x=%2F"


# ---- streams ----

_LINE_ENDS = st.sampled_from(["\n", "\r\n", "\r"])
_DATA = st.one_of(
    st.sampled_from(
        [
            '{"choices":[{"index":0,"delta":{"content":"\u5317\u4eac \U0001f600"}}]}',
            '{"choices":[{"delta":{"content":"a\u2028b\u0085c"}}]}',
            '{"choices":[{"index":0,"delta":{"reasoning":"x"}}]}', "[DONE]", '{"text":"not [DONE] yet"}', "{", "",
            '{"error":{"message":"EngineDead","code":500}}', '{"choices":[{"delta":{}}],"usage":{"prompt_tokens":1}}',
        ]
    ),
    st.text(st.characters(exclude_characters="\r\n"), max_size=20),
)  # fmt: skip
_LINES = st.one_of(
    _DATA.map(lambda d: f"data: {d}"), _DATA.map(lambda d: f"data:{d}"),
    st.sampled_from([": ping", "event: x", "id: 7", "retry: 10", "nonsense"]),
)  # fmt: skip


@st.composite
def streams(draw: st.DrawFn) -> bytes:
    """The bytes of an event stream in any spelling, or no event stream at all."""
    if draw(st.integers(0, 9)) == 0:
        return draw(st.binary(max_size=300))
    end = draw(_LINE_ENDS)
    events = draw(st.lists(st.lists(_LINES, min_size=1, max_size=3), max_size=6))
    text = "".join(end.join([*lines, "", ""]) for lines in events)
    bom = draw(st.sampled_from(["", "", "\ufeff"]))
    rest = draw(st.sampled_from(["", "data: no empty line behind", "data: [DONE]\n\n: bye"]))
    return (bom + text + rest).encode("utf-8", "replace")


@st.composite
def cuts(draw: st.DrawFn, data: bytes) -> list[Step]:
    """The same bytes in pieces; some with a moment between them, so that they come one by one."""
    at = sorted(draw(st.lists(st.integers(0, len(data)), max_size=8)))
    steps: list[Step] = []
    for begin, end in zip([0, *at], [*at, len(data)], strict=True):
        steps += [data[begin:end], *([0.001] if draw(st.booleans()) else [])]
    return steps


@many
@given(data=st.data(), content=streams(), kind=st.sampled_from(["chat", "responses", "messages", "completions"]))
def test_any_stream_arrives_unchanged(world: World, data: st.DataObject, content: bytes, kind: str) -> None:
    world.engine.reset()
    world.engine.play(stream(*data.draw(cuts(content))))
    world.kept.ask(*ask(kind, stream=True))
    answer = world.kept.answer()
    assert (answer.status, answer.complete, answer.body) == (200, True, content)
    assert answer.header("content-type") == SSE_TYPE[1]


@many
@given(data=st.data(), content=streams())
def test_frames_cut_anywhere_arrive_unchanged(world: World, data: st.DataObject, content: bytes) -> None:
    """Cuts through the HTTP framing and the head itself."""
    raw = head(200, [SSE_TYPE], chunked=True) + chunk(content[:7]) + chunk(content[7:]) + b"0\r\n\r\n"
    world.engine.reset()
    world.engine.play(data.draw(cuts(raw)))
    world.kept.ask(*ask("chat", stream=True))
    answer = world.kept.answer()
    assert (answer.complete, answer.body) == (True, content)


USAGE_ONLY = b'data: {"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":2}}'


@many
@given(data=st.data(), content=streams(), end=st.sampled_from([b"\n\n", b"\r\n\r\n", b"\r\r"]))
def test_taking_out_the_usage_event_touches_nothing_else(world: World, data: st.DataObject, content: bytes, end: bytes) -> None:
    before = b'data: {"choices":[{"index":0,"delta":{"content":"a"}}]}' + end
    behind = b"data: [DONE]" + end + content
    world.engine.reset()
    world.engine.play(stream(*data.draw(cuts(before + USAGE_ONLY + end + behind))))
    path, body = ask("chat", model="asking", stream=True)
    world.kept.ask(path, body)
    answer = world.kept.answer()
    assert world.engine.last.json()["stream_options"] == {"include_usage": True}
    assert (answer.complete, answer.body) == (True, before + behind)


@many
@given(content=st.binary(max_size=2000), kind=st.sampled_from(sorted(PATHS)), status=st.sampled_from([200, 201, 202]))
def test_any_whole_answer_arrives_unchanged(world: World, content: bytes, kind: str, status: int) -> None:
    headers = [
        ("content-type", "application/octet-stream"),
        ("x-from-engine", "1"),
        ("set-cookie", "a=1"),
        ("set-cookie", "b=2"),
    ]
    world.engine.reset()
    world.engine.play(reply(content, status, headers))
    world.kept.ask(*ask(kind))
    answer = world.kept.answer()
    assert (answer.status, answer.body) == (status, content)
    assert answer.header("content-length") == str(len(content))
    assert answer.all("set-cookie") == ["a=1", "b=2"]


def test_a_compressed_answer_stays_compressed(world: World) -> None:
    """The engine isn't asked for one, but if it sends one, it goes on as it is."""
    packed = gzip.compress(b'{"x":1}')
    world.engine.reset()
    world.engine.play(reply(packed, headers=[("content-type", "application/json"), ("content-encoding", "gzip")]))
    answer = world.client.post(*ask("chat"), [("accept-encoding", "gzip, br")])
    assert answer.body == packed
    assert answer.header("content-encoding") == "gzip"
    assert world.engine.last.all("accept-encoding") == []


def test_an_answer_that_ends_with_the_connection(world: World) -> None:
    world.engine.reset()
    world.engine.play([head(200, [("connection", "close")]) + b'{"x":', 0.02, b"1}", CLOSE])
    answer = world.client.post(*ask("chat"))
    assert (answer.complete, answer.body) == (True, b'{"x":1}')


def test_events_come_one_by_one(world: World) -> None:
    """Nothing waits for more: each event is there before the engine has sent the next one."""
    gates = [Gate() for _ in range(5)]
    steps: list[Step] = []
    for n, gate in enumerate(gates):
        steps += [sse({"n": n}), gate]
    world.engine.reset()
    world.engine.play(stream(*steps))
    connection = world.client.start(*ask("chat", stream=True))
    answer = connection.head()
    assert answer.header("cache-control") == "no-cache"
    assert answer.header("x-accel-buffering") == "no"
    for n, gate in enumerate(gates):
        connection.read_until(sse({"n": n}))
        gate.open()
    connection.read_until(b"0\r\n\r\n")
