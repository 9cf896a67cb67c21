"""Which headers cross the gateway, each way."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from switchyard.upstream.headers import to_client, to_engine


def sent(*headers: tuple[str, str], length: int | None = 2, key: str | None = None, extra=()) -> dict[str, list[str]]:
    """The head that an engine gets, by name."""
    pairs = [(n.encode(), v.encode("latin-1")) for n, v in headers]
    head = to_engine(b"POST", b"/v1/x?beta=true", pairs, host=b"h:8000", length=length, key=key, extra=extra)
    assert head.endswith(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").removesuffix("\r\n\r\n").split("\r\n")
    assert first == "POST /v1/x?beta=true HTTP/1.1"
    found: dict[str, list[str]] = {}
    for line in lines:
        name, _, value = line.partition(": ")
        found.setdefault(name, []).append(value)
    return found


HOP_BY_HOP = ["connection", "keep-alive", "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade"]
CREDENTIALS = ["authorization", "proxy-authorization", "x-api-key", "api-key", "x-goog-api-key", "cookie"]
OURS = ["x-request-id", "traceparent", "tracestate", "x-switchyard-pool", "x-switchyard-case"]


@pytest.mark.parametrize("name", [*HOP_BY_HOP, *CREDENTIALS, *OURS, "accept-encoding", "expect"])
def test_what_an_engine_never_gets_from_a_client(name):
    assert name not in sent((name, "secret"))


@pytest.mark.parametrize(
    "name",
    ["content-type", "accept", "user-agent", "anthropic-beta", "anthropic-version", "openai-organization", "x-session-id",
     "x-claude-code-session-id", "x-future", "if-none-match"],
)  # fmt: skip
def test_what_passes_to_the_engine_unchanged(name):
    assert sent((name, "Some Value; q=1"))[name] == ["Some Value; q=1"]


def test_a_header_given_twice_stays_twice_and_in_order():
    assert sent(("anthropic-beta", "a"), ("x", "1"), ("anthropic-beta", "b"))["anthropic-beta"] == ["a", "b"]


def test_bytes_of_values_are_kept():
    assert sent(("x-name", "J\xfcrgen"))["x-name"] == ["J\xfcrgen"]


@pytest.mark.parametrize(
    ("connection", "dropped", "kept"),
    [
        ("close, x-trick", {"x-trick"}, {"x-other"}),
        ("X-Trick , x-other", {"x-trick", "x-other"}, set()),
        ("keep-alive", set(), {"x-trick", "x-other"}),
        ("close", set(), {"x-trick", "x-other"}),
        ("", set(), {"x-trick", "x-other"}),
        (",,", set(), {"x-trick", "x-other"}),
    ],
)
def test_headers_named_by_connection_are_hop_by_hop_too(connection, dropped, kept):
    found = sent(("connection", connection), ("x-trick", "1"), ("x-other", "2"))
    assert not dropped & found.keys()
    assert kept <= found.keys()
    pairs = [(b"connection", connection.encode()), (b"x-trick", b"1"), (b"x-other", b"2")]
    assert {n.decode() for n, _ in to_client(pairs)} == kept


def test_host_and_length_are_made_anew():
    found = sent(("host", "gateway"), ("content-length", "999"), ("transfer-encoding", "chunked"), length=17)
    assert (found["host"], found["content-length"]) == (["h:8000"], ["17"])
    assert "content-length" not in sent(("content-length", "999"), length=None)
    assert sent(length=0)["content-length"] == ["0"]


def test_the_engine_gets_the_pools_key_and_never_the_clients():
    credentials = [("authorization", "Bearer gw-SECRET1"), ("x-api-key", "gw-SECRET1")]
    assert "SECRET" not in str(sent(*credentials))
    assert "authorization" not in sent(*credentials)
    assert sent(*credentials, key="engine")["authorization"] == ["Bearer engine"]


def test_extra_lines_come_last():
    found = sent(("x-request-id", "client"), extra=(b"x-request-id: ours-1", b"traceparent: 00-a-b-01"))
    assert (found["x-request-id"], found["traceparent"]) == (["ours-1"], ["00-a-b-01"])


@pytest.mark.parametrize("name", [*HOP_BY_HOP, "proxy-authenticate", "content-length", "date", "server", "x-request-id"])
def test_what_a_client_never_gets_from_an_engine(name):
    assert to_client([(name.encode(), b"x")]) == []


@pytest.mark.parametrize(
    "name", ["content-type", "retry-after", "x-ratelimit-remaining", "openai-processing-ms", "x-future", "vary"]
)
def test_what_passes_to_the_client(name):
    assert to_client([(name.encode(), b"Some Value")]) == [(name.encode(), b"Some Value")]


NAMES = st.sampled_from(
    [n.encode() for n in [*HOP_BY_HOP, *CREDENTIALS, *OURS, "host", "content-length", "x-a", "x-b", "content-type"]]
)
VALUES = st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=20).map(str.encode)


@given(st.lists(st.tuples(NAMES, VALUES), max_size=8), st.none() | st.integers(0, 10**9), st.sampled_from([None, "engine-key"]))
def test_one_host_one_length_one_key_whatever_a_client_sends(headers, length, key):
    found = sent(*((n.decode(), v.decode()) for n, v in headers), length=length, key=key)
    assert found["host"] == ["h:8000"]
    assert found.get("content-length", []) == ([] if length is None else [str(length)])
    assert found.get("authorization", []) == ([] if key is None else ["Bearer engine-key"])
    assert not found.keys() & {*HOP_BY_HOP, *OURS, "cookie", "x-api-key"}
