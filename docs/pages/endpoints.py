"""Paths of both planes, and headers."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

from fastapi.routing import APIRoute
from starlette.routing import Route as PlainRoute

import switchyard
from pages.markdown import code, codes, doc, fill, item, page, table
from switchyard.api import protocol
from switchyard.api.auth import Keys
from switchyard.api.control import make_control
from switchyard.api.endpoints import ENDPOINTS, allowed_methods
from switchyard.routing import session
from switchyard.telemetry.record import KEPT
from switchyard.upstream import headers as crossing

HEADERS_READ: Mapping[str, str] = {
    "authorization": "`Bearer KEY`: the gateway's key. Never sent on.",
    "x-api-key": "The same, as Anthropic's clients send it. Never sent on.",
    "x-switchyard-pool": "Use this pool of the route for this request; 400 when it can't serve it. Not sent on.",
    "x-switchyard-priority": "`background`: where requests queue, this one waits behind those of people. Not sent on.",
    "x-switchyard-case": "A label, repeated as `case` in the decision record; for evaluations. Not sent on.",
    "x-switchyard-session-id": "Name of the conversation; wins over every other name for it (below). Sent on.",
    "x-request-id": "Echoed in the answer, and kept as `client_request_id` in the decision record, when it is one "
    "value of 1 to 128 plain characters. Not sent on: the engine gets an id for each attempt.",
    "x-claude-code-agent-id, x-openai-subagent, x-parent-session-id": "Mark a request as a sub-agent's; the first "
    "two also tell sub-agents of one session apart, Codex's together with `thread-id`.",
    "user-agent": "Tells the client (signal `client`).",
    "traceparent, tracestate": "Go on to the engine when well formed, as the parent or with the gateway's own span.",
}
HEADERS_SENT: Mapping[str, str] = {
    "x-switchyard-pool": "The pool that answered.",
    "x-switchyard-replica": "The replica that answered.",
    "x-switchyard-affinity": "`hit` when this replica had the conversation's last request, `repin` when it had to move here, "
    "`miss` when it was not known. Only from pools with `balance: prefix`.",
    "x-switchyard-reason": "Why, for people; at most 300 characters of ASCII. Not on answers to stored responses.",
    "x-switchyard-error": "Code of an error of the gateway's own; see [errors](errors.md).",
    "x-switchyard-estimate": "On a count_tokens answer of the gateway's own, since the engine can't count: `true` for an "
    "estimate, `tokenizer` for a count by the pool's tokenizer.",
    "x-request-id": "The client's own id, else the gateway's. The decision record has both.",
    "retry-after": "Seconds, with errors that pass by themselves.",
}


def endpoints_page() -> str:
    """Paths of both planes, and headers."""
    assert_headers_listed()
    rows = []
    for endpoint in ENDPOINTS.values():
        methods = b", ".join(allowed_methods(endpoint)).decode()
        note = " (counts tokens)" if endpoint.counting else ""
        rows.append((methods, code(endpoint.path), endpoint.protocol + note))
    stored = b", ".join(allowed_methods(None)).decode()
    rows += [(stored, code(f"/v1/responses/ID{tail}"), "responses") for tail in ("", "/cancel", "/input_items")]
    limits = [
        f"request head: {protocol.MAX_HEAD_BYTES >> 10} KiB, {protocol.MAX_HEADERS} headers, {protocol.HEAD_LIMIT_S:g} s",
        f"longest pause inside a request's body: {protocol.BODY_STALL_S:g} s",
        "body: `server.max_body_mb`",
        f"idle connection: kept for {protocol.KEEP_ALIVE_S:g} s",
        f"a client that takes nothing of its answer for {protocol.WRITE_STALL_S:g} s is cut off",
    ]
    return page(
        "Endpoints and headers",
        "## Data plane",
        fill(
            "These go to engines, at the same path and with the same query. The body must be a JSON object with "
            "`model`: the name of a route, an alias, or a pool. Where keys are set, one is needed."
        ),
        table(("methods", "path", "protocol"), rows),
        fill(
            "`count_tokens` is answered with an estimate where the engine doesn't have it (404, 405 or 501). A "
            "stored response is asked of the replica that made it; the gateway forgets where that was when it "
            "restarts."
        ),
        "## Control plane",
        "\n".join(item(f"{methods} {path} - {what}" + needs) for methods, path, needs, what in control_rows()),
        fill(
            "The API key is needed only where `server.api_keys_env` is set. `/admin` needs the key of "
            "`server.admin_key_env`; without that it answers only where no API keys are set. "
            f"`/admin/decisions?limit=N` gives 100, at most {KEPT:,}; `&case=LABEL` only those whose request had this "
            "`x-switchyard-case`."
        ),
        "## Headers that are read",
        "\n".join(item(f"{codes(name.split(', '))} - {text}") for name, text in HEADERS_READ.items()),
        "### Session",
        fill(
            "The name of a conversation is the first of these that holds 1 to 256 printable ASCII characters "
            "without spaces. It is scoped to the API key, hashed before it is kept or shown, and gives nobody a "
            "right."
        ),
        "\n".join(f"{i}. {text}" for i, text in enumerate(session_sources(), 1)),
        "## Headers that are sent",
        "\n".join(item(f"`{name}` - {text}") for name, text in HEADERS_SENT.items()),
        "## Headers that don't cross",
        fill(
            f"Not to the engine: {codes(sorted(n.decode() for n in crossing._NOT_TO_ENGINE))}. The pool's own key "
            "is sent as `authorization` where `pools.NAME.api_key_env` is set."
        ),
        fill(f"Not to the client: {codes(sorted(n.decode() for n in crossing._NOT_TO_CLIENT))}."),
        fill("Both ways, headers that `Connection` names stay behind too. Everything else passes."),
        "## Limits of a connection",
        "\n".join(map(item, limits)),
    )


_OF_FIELDS = {"previous_response_id": ": the session of that response, where this gateway has passed it on"}


def session_sources() -> list[str]:
    """Where a session's name comes from, in order: the headers are the code's, the rest is read off `_named_id`."""
    source = inspect.getsource(session._named_id)
    fields = re.search(r"for name in (\(.*?\)):\n\s+if name in body", source)
    for word in ("x-codex-turn-metadata", "x-client-session-id", "user_id"):
        if word not in source:
            raise ValueError(f"sessions are no longer read from {word}")
    if fields is None:
        raise ValueError("the body fields that name a session are not found")
    return [
        *(f"header `{name}`" for name in session._HEADERS),
        "`session_id` in the JSON header `x-codex-turn-metadata`",
        "header `x-client-session-id`",
        "`session_id` in the JSON text `metadata.user_id`, or its suffix `_session_ID`",
        *(f"body field `{name}`{_OF_FIELDS.get(name, '')}" for name in ast.literal_eval(fields[1])),
        "nothing of these: a fingerprint of how the conversation begins, which is only a hint",
    ]


def control_rows() -> Iterator[tuple[str, str, str, str]]:
    """The control plane's routes."""
    app = make_control(cast(Any, None), Keys((), None), 1, str, cast(Any, None))
    needs = {"need_key": "API key", "need_admin": "admin key"}
    plain = {
        "/": "Name and version.",
        "/docs": "A page to try the control plane out.",
        "/openapi.json": "The control plane as an OpenAPI document.",
    }
    for route in app.routes:
        if not isinstance(route, PlainRoute | APIRoute) or route.path == "/docs/oauth2-redirect":
            continue
        path = re.sub(r"\{(\w+)(:\w+)?\}", lambda m: m[1].upper(), route.path)
        found = [needs[d.dependency.__name__] for d in getattr(route, "dependencies", []) if d.dependency is not None]
        what = plain.get(path) or " ".join(doc(route.endpoint).split())
        needs_words = f" Needs the {' and the '.join(found)}." if found else ""
        yield ", ".join(sorted(route.methods or ())), code(path), needs_words, what


def assert_headers_listed() -> None:
    """Fail when the code mentions a header of the gateway's own that this page doesn't describe."""
    root = Path(switchyard.__file__).parent
    used = {n for f in sorted(root.rglob("*.py")) for n in re.findall(r"x-switchyard-[a-z-]+", f.read_text("utf-8"))}
    missing = used - set(HEADERS_READ) - set(HEADERS_SENT)
    if missing:
        raise ValueError(f"headers without a description: {', '.join(sorted(missing))}")
