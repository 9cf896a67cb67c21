"""Who may call: the gateway's keys, compared in constant time. No key is ever logged or sent on."""

from __future__ import annotations

import hmac
from collections.abc import Iterable, Sequence
from hashlib import sha256
from ipaddress import ip_address


class Keys:
    """The keys that clients may use; none at all means that everybody may.

    Args:
        api_keys: for /v1 and the rest of the data plane.
        admin_key: for /admin.
    """

    def __init__(self, api_keys: Sequence[str], admin_key: str | None) -> None:
        self._digests = [(sha256(key.encode()).digest(), f"key-{n}") for n, key in enumerate(api_keys, 1)]
        self._admin = sha256(admin_key.encode()).digest() if admin_key is not None else None

    @property
    def open(self) -> bool:
        """Whether everybody may call."""
        return not self._digests

    def name_of(self, headers: Iterable[tuple[bytes, bytes]]) -> str | None:
        """Which key a request carries, as `Authorization: Bearer` or `x-api-key`: its name, or None for no valid key.

        Without any keys the name is empty.
        """
        if not self._digests:
            return ""
        found: str | None = None
        for candidate in _credentials(headers):
            digest = sha256(candidate).digest()
            for known, name in self._digests:  # all of them, whichever fits
                if hmac.compare_digest(digest, known):
                    found = name
        return found

    @property
    def admin_open(self) -> bool:
        """Whether /admin wants no key."""
        return self._admin is None and self.open

    def admits_admin(self, headers: Iterable[tuple[bytes, bytes]]) -> bool:
        """Whether a request may use /admin: by the admin key, or on an open gateway without one."""
        if self._admin is None:
            return self.admin_open
        return any(hmac.compare_digest(sha256(c).digest(), self._admin) for c in _credentials(headers))


def names_an_address(host: str) -> bool:
    """Whether a Host header is an IP address or localhost, with or without a port.

    A web page can let its own name point to this machine (DNS rebinding), and is then of the same origin; so its requests
    have that name.
    """
    name = host.rpartition(":")[0] if host.rpartition(":")[2].isdecimal() and not host.endswith("]") else host
    if name.lower() == "localhost":
        return True
    try:
        ip_address(name.removeprefix("[").removesuffix("]"))
    except ValueError:
        return False
    return True


def _credentials(headers: Iterable[tuple[bytes, bytes]]) -> list[bytes]:
    found: list[bytes] = []
    for name, value in headers:
        if name == b"authorization":
            scheme, _, token = value.partition(b" ")
            if scheme.lower() == b"bearer":
                found.append(token.strip())
        elif name == b"x-api-key":
            found.append(value.strip())
    return found
