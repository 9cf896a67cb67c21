"""Every error that the gateway itself can answer a client with.

A class exists when it has its own HTTP answer or when someone catches it differently. Errors of an engine are not
here: they pass through (api/envelope.py gives them the endpoint's shape where they lack it).
"""

from __future__ import annotations

from typing import ClassVar


class GatewayError(Exception):
    """An answer of the gateway's own making.

    Attributes:
        status: HTTP status.
        code: stable name for programs; also sent as `x-switchyard-error`.
        type: the OpenAI error type.
        anthropic_type: the Anthropic error type for the same thing.
        retryable: whether the same request may succeed later without a change.
    """

    status: ClassVar[int] = 500
    code: ClassVar[str] = "internal_error"
    type: ClassVar[str] = "server_error"
    anthropic_type: ClassVar[str] = "api_error"
    retryable: ClassVar[bool] = False

    def __init__(self, message: str, *, param: str | None = None, retry_after_s: int | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.retry_after_s = retry_after_s


class _ClientFault(GatewayError):
    type = "invalid_request_error"
    anthropic_type = "invalid_request_error"


class InvalidRequest(_ClientFault):
    """The body or the head can't be read as what the endpoint takes."""

    status = 400
    code = "invalid_request"


class NotCapable(_ClientFault):
    """No pool of the route can serve what the request contains (images, tools, ...)."""

    status = 400
    code = "no_capable_pool"


class ContextOverflow(_ClientFault):
    """The request is too long for every pool of the route."""

    status = 400
    code = "context_length_exceeded"


class Unauthorized(GatewayError):
    """No key, or one that is not in the list."""

    status = 401
    code = "invalid_api_key"
    type = "authentication_error"
    anthropic_type = "authentication_error"


class Forbidden(GatewayError):
    """Not from there, whoever asks."""

    status = 403
    code = "forbidden"
    type = "permission_error"
    anthropic_type = "permission_error"


class RequestTimeout(_ClientFault):
    """The request did not arrive in time."""

    status = 408
    code = "request_timeout"


class HeadTooLarge(_ClientFault):
    """The request's head is longer than any client's."""

    status = 431
    code = "head_too_large"


class TooManyConnections(GatewayError):
    """The gateway has as many client connections as it may have."""

    status = 503
    code = "too_many_connections"
    anthropic_type = "overloaded_error"
    retryable = True


class UnknownModel(_ClientFault):
    """The model name is no route, alias or pool."""

    status = 404
    code = "model_not_found"
    anthropic_type = "not_found_error"


class UnknownPath(_ClientFault):
    """There is no such endpoint, or no pool of the route offers it."""

    status = 404
    code = "endpoint_not_found"
    anthropic_type = "not_found_error"


class UnknownReplica(_ClientFault):
    """An operator's action names a pool or a replica that is not there."""

    status = 404
    code = "replica_not_found"
    anthropic_type = "not_found_error"


class LastReplica(_ClientFault):
    """An operator's action would leave a pool without any replica that gets requests."""

    status = 409
    code = "last_replica"


class MethodNotAllowed(_ClientFault):
    """The endpoint exists, but not for this method."""

    status = 405
    code = "method_not_allowed"


class BodyTooLarge(_ClientFault):
    """The body is longer than `server.max_body_mb`."""

    status = 413
    code = "body_too_large"
    anthropic_type = "request_too_large"


class OverTokenLimit(_ClientFault):
    """The request takes more tokens than its API key may use in a minute."""

    status = 413
    code = "request_over_limit"
    anthropic_type = "request_too_large"


class PoolSaturated(GatewayError):
    """Every replica is at its limit and the queue is full."""

    status = 429
    code = "pool_saturated"
    type = "rate_limit_error"
    anthropic_type = "rate_limit_error"
    retryable = True


class RateLimited(GatewayError):
    """The API key has used up what it may: requests or tokens a minute, or requests at the same time."""

    status = 429
    code = "rate_limit_exceeded"
    type = "rate_limit_error"
    anthropic_type = "rate_limit_error"
    retryable = True


class QueueDeadline(GatewayError):
    """The request waited in the queue for as long as the policy allows."""

    status = 503
    code = "queue_timeout"
    anthropic_type = "overloaded_error"
    retryable = True


class Draining(GatewayError):
    """The gateway is shutting down."""

    status = 503
    code = "draining"
    anthropic_type = "overloaded_error"
    retryable = True


class Unreachable(GatewayError):
    """No replica could be reached, or it broke off before it answered."""

    status = 502
    code = "upstream_unreachable"
    retryable = True


class UpstreamTimeout(GatewayError):
    """The engine took longer than one of the pool's limits."""

    status = 504
    code = "upstream_timeout"
    anthropic_type = "timeout_error"
    retryable = True


class BrokenStream(GatewayError):
    """The engine broke off after the answer had begun; told inside the stream."""

    status = 502
    code = "upstream_broken"
    retryable = True


class BadToolCall(GatewayError):
    """A small pool's tool call was bad, and no larger pool could take over."""

    status = 502
    code = "bad_tool_call"
    retryable = True


LEAVES: tuple[type[GatewayError], ...] = (
    InvalidRequest,
    NotCapable,
    ContextOverflow,
    Unauthorized,
    Forbidden,
    RequestTimeout,
    HeadTooLarge,
    TooManyConnections,
    UnknownModel,
    UnknownPath,
    UnknownReplica,
    LastReplica,
    MethodNotAllowed,
    BodyTooLarge,
    OverTokenLimit,
    PoolSaturated,
    RateLimited,
    QueueDeadline,
    Draining,
    Unreachable,
    UpstreamTimeout,
    BrokenStream,
    BadToolCall,
)
"""All of them, for the reference page and its test."""
