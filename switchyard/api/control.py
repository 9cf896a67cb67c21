"""The control plane: health, metrics, lists, a decision without its request. FastAPI, since convenience wins here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from fastapi import Depends, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, PlainTextResponse, Response
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from switchyard import __version__
from switchyard.api.auth import Keys, names_an_address
from switchyard.api.endpoints import ENDPOINTS
from switchyard.api.envelope import error_body
from switchyard.api.exchange import sane_id
from switchyard.config.problem import PolicyError
from switchyard.errors import (
    BodyTooLarge,
    Forbidden,
    GatewayError,
    InvalidRequest,
    MethodNotAllowed,
    RequestTimeout,
    Unauthorized,
    UnknownModel,
    UnknownPath,
)
from switchyard.exchange import Endpoint

MAX_POLICY_BYTES = 1_000_000
PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"


class Gateway(Protocol):
    """What the control plane shows; `app.py` has the real one."""

    def readiness(self) -> tuple[bool, dict[str, Any]]:
        """Whether traffic is welcome, and details for people."""

    def models(self) -> Mapping[str, dict[str, Any]]:
        """Cards of all routes and pools, by name."""

    def model(self, name: str) -> dict[str, Any] | None:
        """The card of a route, pool or alias."""

    async def explain(
        self, body: bytes, endpoint: Endpoint, headers: Mapping[str, str], key_name: str, address: str
    ) -> dict[str, Any]:
        """The decision for a request of this API key from this address, without serving it."""

    async def metrics(self) -> bytes:
        """Prometheus text; of all workers, where there are several."""

    async def replace_policy(self, raw: bytes | None) -> list[str]:
        """Put another policy in force; gives what changed, in words."""

    async def fingerprints(self) -> dict[str, dict[str, str]]:
        """What each route's pools, classifiers and ways to choose come to, as a verdict in the policy is about them."""

    async def describe_pools(self) -> dict[str, Any]:
        """Load, state and reason of every replica; of all workers together, and how many of them have said theirs."""

    async def act_on_replica(self, pool_name: str, label: str, action: str, force: bool) -> dict[str, Any]:
        """Drain, undrain, eject or readmit a replica; gives what it looks like then, and whether that changed it."""

    async def latest_decisions(self, limit: int, case: str = "") -> list[dict[str, Any]]:
        """The newest records of all workers, newest first; with a case, only those that carry this label."""

    def shadows(self) -> list[dict[str, Any]]:
        """What came of shadows, by route and pools."""


def make_control(
    gateway: Gateway, keys: Keys, max_body_bytes: int, next_id: Callable[[], str], lifespan: Callable[[FastAPI], Any]
) -> FastAPI:
    """The FastAPI app around a gateway.

    Args:
        gateway: what is shown.
        keys: who may see it.
        max_body_bytes: longest body of `/v1/decision`.
        next_id: gives a fresh request id.
        lifespan: owns every background task.
    """
    app = FastAPI(title="Switchyard", version=__version__, lifespan=lifespan, redoc_url=None, docs_url="/docs")

    def need_key(request: Request) -> None:
        if keys.name_of(request.headers.raw) is None:
            raise Unauthorized("a valid key is needed: send Authorization: Bearer KEY, or x-api-key: KEY")

    def need_admin(request: Request) -> None:
        if "origin" in request.headers:  # a web page in somebody's browser can reach loopback, too
            raise Forbidden("/admin takes no requests from web pages")
        if keys.admin_open and not names_an_address(request.headers.get("host", "")):
            raise Forbidden(
                "/admin without a key is asked by an address or localhost, not by a name; or set server.admin_key_env"
            )
        if not keys.admits_admin(request.headers.raw):
            raise Unauthorized("the admin key is needed here (server.admin_key_env)")

    keyed, admin = [Depends(need_key)], [Depends(need_admin)]

    @app.exception_handler(GatewayError)
    async def _refuse(request: Request, error: GatewayError) -> Response:
        return _error_response(request, error, error.status)

    @app.exception_handler(RequestValidationError)
    async def _refuse_invalid(request: Request, error: RequestValidationError) -> Response:
        found = "; ".join(f"{'.'.join(map(str, e['loc'][1:]))}: {e['msg']}" for e in error.errors())
        return _error_response(request, InvalidRequest(found), 400)

    @app.exception_handler(HTTPException)
    async def _refuse_http(request: Request, error: HTTPException) -> Response:
        if error.status_code == 405:
            refusal: GatewayError = MethodNotAllowed(f"{request.url.path} does not take {request.method}")
        else:
            refusal = UnknownPath(f"there is no {request.method} {request.url.path}; see /docs")
        return _error_response(request, refusal, error.status_code)

    @app.head("/api/hello", include_in_schema=False)  # so Claude Code asks whether anybody is there
    @app.head("/", include_in_schema=False)
    @app.get("/", include_in_schema=False)
    async def root() -> dict[str, str]:
        return {"name": "switchyard", "version": __version__, "docs": "/docs"}

    @app.get("/health", include_in_schema=False)  # where clients of vLLM look
    @app.head("/healthz", include_in_schema=False)
    @app.get("/healthz", response_class=PlainTextResponse)
    async def healthz() -> str:
        """200 while the process lives."""
        return "ok\n"

    @app.head("/readyz", include_in_schema=False)
    @app.get("/readyz")
    async def readyz() -> Response:
        """200 when traffic is welcome, 503 while starting, draining, or while no engine at all can be reached."""
        ready, details = gateway.readiness()
        return JSONResponse(details, 200 if ready else 503)

    @app.get("/metrics", response_class=PlainTextResponse)
    async def metrics() -> Response:
        """Prometheus text. Open like the health paths: it holds names from the policy and numbers."""
        return Response(await gateway.metrics(), media_type=PROMETHEUS)

    @app.get("/v1/models", dependencies=keyed)
    async def models() -> dict[str, Any]:
        """Routes and pools, with the context that any request to them really gets."""
        return {"object": "list", "data": list(gateway.models().values())}

    @app.get("/v1/models/{name:path}", dependencies=keyed)
    async def model(name: str) -> dict[str, Any]:
        """One route, pool or alias; names may have slashes."""
        card = gateway.model(name)
        if card is None:
            raise UnknownModel(f"there is no model {name[:100]!r} here; known: {', '.join(gateway.models())}", param="model")
        return card

    @app.post("/v1/decision", dependencies=keyed)
    async def decision(request: Request) -> dict[str, Any]:
        """What would happen to a request, without doing it: send its body, and `?endpoint=/v1/messages` if not chat.

        It counts as a request of its API key, and takes none of its tokens.
        """
        path = request.query_params.get("endpoint", "/v1/chat/completions")
        endpoint = ENDPOINTS.get(path.encode())
        if endpoint is None:
            known = ", ".join(e.path for e in ENDPOINTS.values())
            raise InvalidRequest(f"endpoint must be one of {known}")
        body = await _limited_body(request, max_body_bytes)
        key_name, address = keys.name_of(request.headers.raw) or "", request.client.host if request.client else ""
        return await gateway.explain(body, endpoint, dict(request.headers), key_name, address)

    @app.post("/admin/policy", dependencies=admin)
    async def policy(request: Request) -> Response:
        """Put another policy in force: the YAML in the body, or, with an empty body, the gateway's file read again.

        A body is not written to the file. A policy with problems changes nothing; they are the answer.
        """
        body = await _limited_body(request, MAX_POLICY_BYTES)
        try:
            changes = await gateway.replace_policy(body or None)
        except PolicyError as error:
            return JSONResponse({"good": False, "problems": [str(p) for p in error.problems]}, 400)
        except OSError as error:
            raise InvalidRequest(f"the policy's file can't be read: {error}") from None
        return JSONResponse({"good": True, "changes": changes})

    @app.get("/admin/policy", dependencies=admin)
    async def policy_in_force() -> dict[str, Any]:
        """Of each route the hashes that `evaluated` in a policy has: equal ones mean that requests are decided alike."""
        return {"routes": await gateway.fingerprints()}

    @app.get("/admin/decisions", dependencies=admin)
    async def decisions(limit: int = 100, case: str = "") -> list[dict[str, Any]]:
        """The latest decision records, newest first; `?case=` gives those whose request had this `x-switchyard-case`."""
        return await gateway.latest_decisions(max(0, min(limit, 1000)), case)

    @app.get("/admin/shadows", dependencies=admin)
    async def shadows() -> list[dict[str, Any]]:
        """How often the big pool said the same as a small one did, where the policy has `shadow`: counts and intervals."""
        return gateway.shadows()

    @app.get("/admin/pools", dependencies=admin)
    async def pools() -> dict[str, Any]:
        """Every pool and replica: state and why, load here and as the engine says it, ejections, nodes."""
        return await gateway.describe_pools()

    @app.post("/admin/pools/{pool:path}/replicas/{replica:path}/{action}", dependencies=admin)
    async def act_on_replica(pool: str, replica: str, action: str, force: bool = False) -> dict[str, Any]:
        """ACTION is drain (nothing new until undrain), undrain, eject (until a real completion works) or readmit (now).

        Names are the policy's, with or without %2F. The last replica that gets requests is taken out with ?force=true only.
        """
        return await gateway.act_on_replica(pool, replica, action, force)

    app.add_middleware(_RequestIds, next_id=next_id)
    return app


class _RequestIds:
    """Gives every answer of the control plane a request id, as those of the data plane have one."""

    def __init__(self, app: ASGIApp, next_id: Callable[[], str]) -> None:
        self._app = app
        self._next_id = next_id

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = (sane_id(scope["headers"]) or self._next_id()).encode("ascii")

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message.get("headers", []), (b"x-request-id", request_id)]}
            await send(message)

        await self._app(scope, receive, send_with_id)


async def _limited_body(request: Request, limit: int) -> bytes:
    body = bytearray()
    try:
        async for piece in request.stream():
            body += piece
            if len(body) > limit:
                raise BodyTooLarge(f"the body is longer than {limit} bytes")
    except ClientDisconnect:
        raise RequestTimeout("the body did not arrive") from None  # nobody reads this
    return bytes(body)


def _error_response(request: Request, error: GatewayError, status: int) -> Response:
    protocol = "messages" if request.url.path.startswith("/v1/messages") else "chat"
    headers = {"x-switchyard-error": error.code}
    if error.retry_after_s is not None:
        headers["retry-after"] = str(error.retry_after_s)
    if isinstance(error, Unauthorized):
        headers["www-authenticate"] = "Bearer"
    return Response(error_body(protocol, error), status, headers, "application/json")
