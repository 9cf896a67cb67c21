"""Who may call: keys in either header, compared whole."""

import pytest

from switchyard.api.auth import Keys, names_an_address

KEYS = Keys(["anna-key", "ben-key"], "root-key")


def bearer(value: str) -> list[tuple[bytes, bytes]]:
    return [(b"authorization", value.encode())]


@pytest.mark.parametrize(
    ("headers", "name"),
    [
        (bearer("Bearer anna-key"), "key-1"),
        (bearer("bearer ben-key"), "key-2"),
        (bearer("BEARER   ben-key  "), "key-2"),
        ([(b"x-api-key", b"anna-key")], "key-1"),
        ([(b"x-api-key", b" ben-key ")], "key-2"),
        ([*bearer("Bearer wrong"), (b"x-api-key", b"ben-key")], "key-2"),
        ([*bearer("Bearer anna-key"), (b"x-api-key", b"wrong")], "key-1"),
        ([(b"accept", b"anna-key"), (b"x-api-key", b"ben-key")], "key-2"),
        ([], None),
        (bearer(""), None),
        (bearer("Bearer"), None),
        (bearer("Bearer "), None),
        (bearer("anna-key"), None),
        (bearer("Basic anna-key"), None),
        (bearer("Bearer anna-ke"), None),
        (bearer("Bearer anna-keyy"), None),
        (bearer("Bearer anna-key,ben-key"), None),
        (bearer("Bearer root-key"), None),  # the admin key is no API key
        ([(b"x-api-key", b"\xff\x00")], None),
        ([(b"api-key", b"anna-key")], None),
    ],
)
def test_which_key_a_request_carries(headers, name):
    assert KEYS.name_of(headers) == name


def test_without_keys_everybody_may_call_without_a_name():
    keys = Keys([], None)
    assert keys.open
    assert keys.name_of([]) == ""
    assert keys.name_of(bearer("Bearer anything")) == ""
    assert not KEYS.open


@pytest.mark.parametrize(
    ("keys", "headers", "admitted"),
    [
        (KEYS, bearer("Bearer root-key"), True),
        (KEYS, [(b"x-api-key", b"root-key")], True),
        (KEYS, bearer("Bearer anna-key"), False),
        (KEYS, [], False),
        (Keys([], None), [], True),  # an open gateway without an admin key
        (Keys(["anna-key"], None), bearer("Bearer anna-key"), False),  # keys, but none for /admin: nobody
        (Keys([], "root-key"), [], False),
        (Keys([], "root-key"), bearer("Bearer root-key"), True),
    ],
)
def test_who_may_use_admin(keys, headers, admitted):
    assert keys.admits_admin(headers) is admitted


def test_no_key_is_kept_or_shown():
    assert "anna-key" not in str(vars(KEYS)) + repr(KEYS)


@pytest.mark.parametrize(
    ("host", "address"),
    [
        ("127.0.0.1:4000", True), ("127.0.0.1", True), ("localhost:4000", True), ("LOCALHOST", True), ("[::1]:4000", True),
        ("[::1]", True), ("10.0.0.9:80", True), ("evil.example", False), ("evil.example:4000", False), ("", False),
        ("localhost.evil.example", False), ("127.0.0.1.evil.example:4000", False), (":4000", False),
    ],
)  # fmt: skip
def test_what_a_host_header_names(host, address):
    assert names_an_address(host) is address


def test_admin_is_open_on_a_gateway_without_any_key():
    assert Keys([], None).admin_open
    assert not Keys(["k"], None).admin_open
    assert not Keys([], "root").admin_open
