"""Which conversation a request belongs to: the order of names in clients.md, sane ids, scope, and the fingerprint."""

import json

import pytest

from switchyard.routing.session import Session, identify
from switchyard.routing.stored import StoredResponses

from ..agents import CLAUDE_CODE, CODEX, OPENCODE, SESSION, claude_call, claude_code, claude_result, codex, opencode
from ..build import chat, signals_of

USER_ID = json.dumps({"device_id": "d", "account_uuid": "a", "session_id": "from-user-id"})
OLD_USER_ID = "user_0123abcd_account_11111111-2222_session_aaaaaaaa-bbbb-cccc"
# In the order of precedence: source, headers, fields of the body, id
NAMES = [
    ("x-switchyard-session-id", {"x-switchyard-session-id": "s1"}, {}),
    ("x-claude-code-session-id", {"x-claude-code-session-id": "s2"}, {}),
    ("x-session-id", {"x-session-id": "s3"}, {}),
    ("x-session-affinity", {"x-session-affinity": "s4"}, {}),
    ("x-opencode-session", {"x-opencode-session": "s5"}, {}),
    ("session-id", {"session-id": "s6"}, {}),
    ("session_id", {"session_id": "s7"}, {}),
    ("x-codex-turn-metadata", {"x-codex-turn-metadata": json.dumps({"session_id": "s8", "parent_thread_id": "p"})}, {}),
    ("x-client-session-id", {"x-client-session-id": "s9"}, {}),
    ("metadata.user_id", {}, {"metadata": {"user_id": USER_ID}}),
    ("prompt_cache_key", {}, {"prompt_cache_key": "s11"}),
    ("conversation", {}, {"conversation": {"id": "conv_1"}}),
    ("previous_response_id", {}, {"previous_response_id": "resp_1"}),
    ("fingerprint", {}, {}),
]


def session(body=None, headers=None, protocol="chat", **how) -> Session:
    return identify(signals_of(chat(("user", "hi")) if body is None else body, protocol, headers, **how))


@pytest.mark.parametrize("at", range(len(NAMES)))
def test_the_first_name_that_is_there_wins(at):
    headers, fields = {}, {}
    for _, more_headers, more_fields in reversed(NAMES[at:]):
        headers |= more_headers
        fields |= more_fields
    found = session(chat(("user", "hi"), **fields), headers)
    assert found.source == NAMES[at][0]
    assert found.certain is (found.source != "fingerprint")


@pytest.mark.parametrize(
    ("value", "source"),
    [
        (USER_ID, "metadata.user_id"),
        (OLD_USER_ID, "metadata.user_id"),
        ("user_0123_account_1111", "fingerprint"),
        (json.dumps({"device_id": "d", "account_uuid": "a"}), "fingerprint"),
        ("{broken", "fingerprint"),
        ("[1]", "fingerprint"),
        ("x" * 5000 + "_session_aaaaaaaa-bbbb", "fingerprint"),
        (None, "fingerprint"),
    ],
)
def test_the_two_forms_of_claude_codes_user_id(value, source):
    assert session(chat(("user", "hi"), metadata={"user_id": value})).source == source


def test_the_session_of_an_old_user_id_is_its_suffix():
    one = session(chat(("user", "hi"), metadata={"user_id": OLD_USER_ID}))
    other_account = session(chat(("user", "bye"), metadata={"user_id": OLD_USER_ID.replace("0123abcd", "99")}))
    assert one == other_account
    assert session(chat(("user", "hi"), metadata={"user_id": OLD_USER_ID.replace("bbbb", "eeee")})) != one


@pytest.mark.parametrize("name", ["user", "device_id", "account_uuid", "safety_identifier"])
def test_a_user_is_no_session(name):
    assert session(chat(("user", "hi"), **{name: "anna"}, metadata={name: "anna"})).source == "fingerprint"


def test_a_request_id_is_no_session():
    assert session(headers={"x-client-request-id": SESSION, "x-request-id": SESSION}).source == "fingerprint"


@pytest.mark.parametrize("bad", ["", " ", "x" * 257, "x" * 10_000, "naïve", "a b", "a\tb", "\x7f", "日本"])
@pytest.mark.parametrize(
    ("make", "next_source"),
    [
        (lambda bad: ({"x-session-id": bad, "session-id": "good"}, {}), "session-id"),
        (lambda bad: ({"x-session-id": bad}, {"prompt_cache_key": bad, "conversation": "good"}), "conversation"),
        (
            lambda bad: ({"x-switchyard-session-id": bad}, {"conversation": {"id": bad}, "previous_response_id": bad}),
            "fingerprint",
        ),
        (lambda bad: ({"x-codex-turn-metadata": json.dumps({"session_id": bad})}, {}), "fingerprint"),
    ],
)
def test_an_insane_id_counts_as_none(bad, make, next_source):
    headers, fields = make(bad)
    assert session(chat(("user", "hi"), **fields), headers).source == next_source


@pytest.mark.parametrize("value", [3, None, True, ["s"], {"id": 3}, {"session_id": "s"}])
def test_an_id_of_another_type_counts_as_none(value):
    fields = {"prompt_cache_key": value, "conversation": value, "previous_response_id": value}
    assert session(chat(("user", "hi"), **fields)).source == "fingerprint"


def test_the_longest_id_is_as_good_as_a_short_one():
    key = session(headers={"x-session-id": "x" * 256}).key
    assert len(key) == 16
    assert int(key, 16) >= 0
    assert "x" not in key


@pytest.mark.parametrize(
    ("body", "protocol", "headers", "source"),
    [
        (claude_code(), "messages", CLAUDE_CODE, "x-claude-code-session-id"),
        (claude_code(), "messages", {}, "metadata.user_id"),
        (codex(), "responses", CODEX, "session-id"),
        (codex(), "responses", {}, "prompt_cache_key"),
        (opencode(), "chat", OPENCODE, "x-session-id"),
        (opencode(), "chat", {}, "fingerprint"),
    ],
)
def test_agents_are_known_by_their_own_id(body, protocol, headers, source):
    assert session(body, headers, protocol).source == source


def test_a_session_is_scoped_to_key_agent_and_request_class():
    def key(headers=None, **how) -> str:
        return session(claude_code(), {**CLAUDE_CODE, **(headers or {})}, "messages", **how).key

    keys = [
        key(),
        key(key_name="key-1"),
        key(key_name="key-2"),
        key({"x-claude-code-agent-id": "a1"}),
        key({"x-claude-code-agent-id": "a2"}),
        key({"x-openai-subagent": "review"}),
        key({"x-openai-subagent": "review", "thread-id": "t1"}),  # two of the same kind, side by side
        key({"x-openai-subagent": "review", "thread-id": "t2"}),
        key(counting=True),
        key({"x-claude-code-session-id": "another"}),
    ]
    assert len(set(keys)) == len(keys)
    assert key() == keys[0]


def test_an_id_does_not_leak_into_another_scope():
    """A key named like a part of an id can't be mistaken for it."""
    one = session(headers={"x-session-id": "ab"}, key_name="key-1")
    assert one != session(headers={"x-session-id": "b"}, key_name="key-1a")
    assert one != session(headers={"x-session-id": "abkey-1"})


def test_with_its_own_id_a_session_is_the_same_in_every_turn_and_from_every_address():
    first = session(claude_code(), CLAUDE_CODE, "messages", address="10.0.0.1")
    later = claude_code(claude_call("Bash"), claude_result("a"), nonce="bbbbb")
    assert session(later, CLAUDE_CODE, "messages", address="10.0.0.2") == first


def anonymous(protocol: str, body: dict, **how) -> Session:
    found = session(body, {}, protocol, **how)
    assert found.source == "fingerprint"
    return found


def claude_without_id(*later, **how) -> dict:
    return {**claude_code(*later, **how), "metadata": {}}


def test_the_fingerprint_ignores_a_nonce_in_the_system_text():
    first = anonymous("messages", claude_without_id(nonce="aaaaa"))
    assert anonymous("messages", claude_without_id(nonce="bbbbb")) == first
    text = "x-anthropic-billing-header: cc_version=2.1.0; cch={};\nYou are a coding agent."
    plain = [{**claude_without_id(), "system": text.format(nonce)} for nonce in ("aaaaa", "bbbbb")]
    assert anonymous("messages", plain[0]) == anonymous("messages", plain[1])


def test_the_fingerprint_stays_while_a_history_grows():
    growing = [
        claude_without_id(),
        claude_without_id(claude_call("Bash"), claude_result("a")),
        claude_without_id(claude_call("Bash"), claude_result("a"), {"role": "user", "content": "more"}),
    ]
    assert len({anonymous("messages", body) for body in growing}) == 1
    chats = [chat(("system", "s"), ("user", "a")), chat(("system", "s"), ("user", "a"), ("assistant", "b"), ("user", "c"))]
    assert anonymous("chat", chats[0]) == anonymous("chat", chats[1])


def test_the_fingerprint_tells_conversations_apart():
    base = {"protocol": "chat", "body": chat(("system", "s"), ("user", "a"))}
    others = [
        {**base, "body": chat(("system", "s"), ("user", "b"))},
        {**base, "body": chat(("system", "t"), ("user", "a"))},
        {**base, "body": {**base["body"], "model": "other"}},
        {**base, "body": {**base["body"], "tools": [{"name": "x"}]}},
        {**base, "address": "10.0.0.9"},
        {**base, "key_name": "key-1"},
        {**base, "body": {"model": "auto", "input": "a", "instructions": "s"}, "protocol": "responses"},
    ]
    found = [anonymous(**case) for case in [base, *others]]
    assert len(set(found)) == len(found)


def test_with_a_key_the_address_does_not_matter():
    one = anonymous("chat", chat(("user", "a")), key_name="key-1", address="10.0.0.1")
    assert anonymous("chat", chat(("user", "a")), key_name="key-1", address="10.0.0.2") == one


def test_a_stored_response_leads_to_its_session():
    """The id of the latest response is another one in every turn; the session is not."""
    stored = StoredResponses()

    def turn(made: str, previous: str | None = None, key_name: str = "key-1", **headers: str) -> Session:
        fields = {"previous_response_id": previous} if previous else {}
        body = {"model": "auto", "input": "go on", **fields}
        found = identify(signals_of(body, "responses", headers, key_name=key_name), stored.session_of)
        stored.remember(made, "big", "r1", found.key if found.certain else "", key_name)
        return found

    named = turn("resp_1", **{"x-session-id": "s"})
    later = [turn(f"resp_{n}", f"resp_{n - 1}") for n in range(2, 5)]
    assert {one.key for one in later} == {named.key}
    assert {one.source for one in later} == {"previous_response_id"}
    assert turn("resp_9", "resp_2", key_name="key-2").key != named.key, "nobody gets into another key's session"

    guess = turn("resp_a")
    chain = [turn("resp_b", "resp_a"), turn("resp_c", "resp_b"), turn("resp_d", "resp_c")]
    assert len({one.key for one in chain}) == 1
    assert chain[0] != guess, "an equal beginning may be somebody else's"
    assert turn("resp_z", "never seen here").key not in {named.key, chain[0].key}
