"""Errors of the gateway's own making, from their classes."""

from __future__ import annotations

from pages.markdown import code, doc, fenced, fill, item, page, table
from switchyard.api import protocol
from switchyard.errors import LEAVES, GatewayError


def all_errors() -> list[type[GatewayError]]:
    """Every class that gives an answer of its own: the leaves, and those that other modules add."""
    known = list(LEAVES)
    pending: list[type[GatewayError]] = [GatewayError]
    while pending:
        kind = pending.pop(0)
        pending += kind.__subclasses__()
        own = "code" in vars(kind) or "status" in vars(kind)
        if own and kind not in known:
            known.append(kind)
    return sorted(known, key=lambda k: (k.status, k.code))


def meaning_of(kind: type[GatewayError]) -> str:
    """What an error means, for a client."""
    head_kib = protocol.MAX_HEAD_BYTES >> 10
    own = {
        "internal_error": "The gateway itself failed on the request; its log has the reason, under the request id.",
        "head_too_large": f"The head is longer than {head_kib} KiB or has more than {protocol.MAX_HEADERS} headers.",
        "too_many_connections": "The gateway has `server.max_connections` client connections already.",
    }
    described = doc(kind) if "__doc__" in vars(kind) else ""
    added = {"upstream_broken": " Its status is never sent: the answer has begun with the engine's own."}
    return own.get(kind.code, described or "See its message.") + added.get(kind.code, "")


def errors_page() -> str:
    """Every error of the gateway's own making."""
    kinds = all_errors()
    rows = []
    for kind in kinds:
        again = "yes" if kind.retryable else "no"
        rows.append((str(kind.status), code(kind.code), code(kind.type), code(kind.anthropic_type), again))
    meanings = {k.code: meaning_of(k) for k in kinds}
    return page(
        "Errors",
        fill(
            "What the gateway itself answers with. The code is stable; it is in the header `x-switchyard-error` "
            "and, in OpenAI's shape, in `error.code`. \"Retry\" says whether the same request may succeed later "
            "without a change."
        ),
        table(("status", "code", "OpenAI type", "Anthropic type", "retry"), rows),
        "\n".join(item(f"**`{name}`** - {text}") for name, text in meanings.items()),
        "## Shape",
        fill(
            "The body has the shape of the endpoint's protocol. On `/v1/messages` and `/v1/messages/count_tokens` "
            "that is Anthropic's, everywhere else OpenAI's:"
        ),
        fenced(
            '{"error": {"message": "...", "type": "invalid_request_error", "param": "model", "code": "..."}}\n'
            '{"type": "error", "error": {"type": "not_found_error", "message": "..."}}',
            "json",
        ),
        fill(
            "In a stream that has begun the status can't change any more. The error then is the protocol's own "
            "event: a `data:` line with the error object (chat, completions), `event: error` (Messages), `event: "
            "response.failed` (Responses). A half event before it is closed first. An answer that is no stream is "
            "cut off, so that the client sees that it is incomplete."
        ),
        "## Not in the table",
        "\n".join(
            [
                item("An engine's own error (status 400 or more) passes with its status and body when the body "
                     "has the endpoint's shape already, else its message is wrapped in that shape. It carries "
                     "`x-switchyard-pool` and `x-switchyard-replica`, and no `x-switchyard-error`. A redirect by "
                     "an engine is never followed; it becomes `upstream_unreachable`."),
                item(f"A request whose head takes more than {protocol.HEAD_LIMIT_S:g} s, or whose body pauses for "
                     f"more than {protocol.BODY_STALL_S:g} s, gets 408 with the code `request_timeout`."),
                item("Some answers come before there is a request: 408, `head_too_large`, `too_many_connections`, and "
                     "400 for bytes that are no HTTP. The connection closes after them, and they carry no "
                     "`x-switchyard-error` and no `x-request-id`."),
                item("`retry-after` (seconds) is sent with `pool_saturated`, `queue_timeout`, `draining`, and "
                     "when no replica could be reached."),
            ]
        ),
    )  # fmt: skip
