"""Errors in the shape of the endpoint: as a body, and as an event inside a stream that has begun. Pure."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from switchyard.errors import GatewayError

EXCERPT_CHARACTERS = 300
_SEQUENCE = re.compile(rb'"sequence_number"\s*:\s*(\d{1,9})')
_RESPONSE_ID = re.compile(rb'"id"\s*:\s*"(resp_[^"\\]{1,200})"')
_TAG = re.compile(r"<(script|style)\b.*?</\1>|<[^>]*>", re.DOTALL | re.IGNORECASE)


def error_body(protocol: str, error: GatewayError) -> bytes:
    """An error of the gateway's own as the endpoint's clients read it: Anthropic's shape on Messages, else OpenAI's."""
    if protocol == "messages":
        return msgspec.json.encode({"type": "error", "error": {"type": error.anthropic_type, "message": error.message}})
    return msgspec.json.encode({"error": _openai_error(error.message, error.type, error.param, error.code)})


def engine_error_body(protocol: str, status: int, content_type: str, body: bytes) -> bytes | None:
    """An engine's error in the endpoint's shape; None when its body has that shape already and passes untouched."""
    found = _decoded(body)
    if _fits(protocol, found):
        return None
    error = found.get("error") if isinstance(found, dict) else None
    inner = error if isinstance(error, dict) else (found if isinstance(found, dict) else {})
    message = _message(inner, found, content_type, body, status)
    if protocol == "messages":
        return msgspec.json.encode({"type": "error", "error": {"type": _anthropic_type(status), "message": message}})
    kind = inner.get("type") if isinstance(inner.get("type"), str) else _openai_type(status)
    return msgspec.json.encode({"error": _openai_error(message, kind, inner.get("param"), inner.get("code", status))})


def stream_error(protocol: str, error: GatewayError, between_events: bool, tail: bytes) -> bytes:
    """The endpoint's own event for a failure in a stream. A half event before it is closed first, never continued.

    Args:
        protocol: endpoint family.
        error: what happened.
        between_events: whether the stream stands at the end of an event.
        tail: the engine's last bytes; a Responses failure goes on with their ids and numbers.
    """
    start = b"" if between_events else b"\n\n"
    if protocol == "messages":
        return start + b"event: error\ndata: " + error_body("messages", error) + b"\n\n"
    if protocol == "responses":
        numbers = _SEQUENCE.findall(tail)
        ids = _RESPONSE_ID.findall(tail)
        failed = {
            "type": "response.failed",
            "sequence_number": int(numbers[-1]) + 1 if numbers else 0,
            "response": {
                "id": ids[-1].decode("ascii", "replace") if ids else "resp_failed", "object": "response", "created_at": 0,
                "model": "", "output": [], "status": "failed", "parallel_tool_calls": True, "tool_choice": "auto", "tools": [],
                "error": {"code": "server_error", "message": error.message},
            },
        }  # fmt: skip
        return start + b"event: response.failed\ndata: " + msgspec.json.encode(failed) + b"\n\n"
    return start + b"data: " + error_body(protocol, error) + b"\n\n"


def _openai_error(message: str, type_: Any, param: Any, code: Any) -> dict[str, Any]:
    return {"message": message, "type": type_, "param": param, "code": code}


def _fits(protocol: str, found: Any) -> bool:
    error = found.get("error") if isinstance(found, dict) else None
    if not isinstance(error, dict):
        return False
    shaped = isinstance(error.get("message"), str) and bool(error["message"]) and isinstance(error.get("type"), str)
    return shaped and (protocol != "messages" or found.get("type") == "error")


def _message(inner: dict[str, Any], found: Any, content_type: str, body: bytes, status: int) -> str:
    """The engine's own words, shortened; markup is never shown."""
    for value in (inner.get("message"), inner.get("detail"), found.get("error") if isinstance(found, dict) else None):
        words = value if isinstance(value, str) else "; ".join(map(_detail, value[:5])) if isinstance(value, list) else ""
        if words.strip(" ;"):
            return words[: 4 * EXCERPT_CHARACTERS]
    text = body[:8192].decode("utf-8", "replace")
    if "html" in content_type.lower() or text.lstrip()[:1] == "<":
        text = _TAG.sub(" ", text)
    text = " ".join(text.split())[:EXCERPT_CHARACTERS]
    return f"the engine answered with status {status}" + (f": {text}" if text else " and no body")


def _detail(value: Any) -> str:
    """One entry of a validation list (FastAPI's shape): where and what."""
    if isinstance(value, dict) and "msg" in value:
        where = value.get("loc")
        place = ".".join(map(str, where)) if isinstance(where, list) else ""
        return f"{place}: {value['msg']}" if place else str(value["msg"])
    return str(value)


def _decoded(body: bytes) -> Any:
    try:
        return msgspec.json.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def _openai_type(status: int) -> str:
    kinds = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
    return kinds.get(status, "invalid_request_error" if status < 500 else "server_error")


def _anthropic_type(status: int) -> str:
    kinds = {
        401: "authentication_error", 403: "permission_error", 404: "not_found_error", 413: "request_too_large",
        429: "rate_limit_error", 503: "overloaded_error", 504: "timeout_error", 529: "overloaded_error",
    }  # fmt: skip
    return kinds.get(status, "invalid_request_error" if status < 500 else "api_error")
