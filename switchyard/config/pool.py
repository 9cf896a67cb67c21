"""A block under `pools`: replicas that serve one model, where they are and how they are watched."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, Discriminator, Field, Tag, model_validator
from pydantic_core import PydanticCustomError

from switchyard.config.block import Block, Count, Listed, Name, Seconds, Variable

Protocol = Literal["chat", "responses", "messages", "completions", "embeddings", "rerank", "score", "tokenize"]
Capability = Literal["tools", "structured_output", "images", "audio"]
Balance = Literal["prefix", "least_tokens", "p2c", "round_robin", "random"]
_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(:[1-9][0-9]{0,4})?")


def _url(value: str) -> str:
    try:
        parts = urlsplit(value)
        port = parts.port
    except ValueError as error:
        raise PydanticCustomError("url", "not a URL: {reason}", {"reason": str(error)}) from None
    if parts.scheme != "http" or not parts.hostname or not _HOST.fullmatch(parts.netloc.rpartition("@")[2]):
        raise PydanticCustomError("url", "an engine's URL is expected, like http://10.0.0.1:8000")
    if parts.username or parts.password:
        raise PydanticCustomError("url", "no user name or password in a URL: name the pool's key with api_key_env")
    if parts.path not in {"", "/"} or parts.query or parts.fragment:
        raise PydanticCustomError("url", "only scheme, host and port are expected: leave out {path}", {"path": parts.path})
    return f"http://{parts.netloc}" if port else f"http://{parts.netloc}:80"


EngineUrl = Annotated[str, AfterValidator(_url)]


class Replica(Block):
    """One engine: one copy of the model, be it on one node or tensor-parallel over several (then its head)."""

    url: EngineUrl
    """Where its HTTP server listens, like http://10.0.0.1:8000."""
    name: Name | None = None
    """Name in headers, logs and metrics; left out: host:port."""
    weight: Annotated[float, Field(gt=0, le=1000, allow_inf_nan=False)] = 1.0
    """Share of traffic relative to the other replicas of the pool."""
    nodes: Listed[Name] = ()
    """Machines it runs on; for people and tools, the gateway doesn't need them."""

    @model_validator(mode="before")
    @classmethod
    def _from_url(cls, value: Any) -> Any:
        return {"url": value} if isinstance(value, str) else value

    @property
    def label(self) -> str:
        """Its name, or host:port."""
        return self.name or self.url.removeprefix("http://")


def _source(value: str) -> str:
    if value.startswith("file://") and len(value) > len("file://"):
        return value
    try:
        parts = urlsplit(value)
        good = parts.scheme == "dns" and parts.hostname and parts.port and not (parts.path or parts.query or parts.username)
    except ValueError:
        good = False
    if not good:
        raise PydanticCustomError("source", "a list of replicas is expected, or dns://NAME:PORT, or file://PATH")
    return value


Replicas = Annotated[
    Annotated[Annotated[Listed[Replica], Field(min_length=1)], Tag("list")]
    | Annotated[Annotated[str, AfterValidator(_source)], Tag("source")],
    Discriminator(lambda value: "source" if isinstance(value, str) else "list"),
]


class Limits(Block):
    """How much a pool takes at once."""

    in_flight: Count = 48
    """Requests that one replica works on at the same time."""
    queue: Annotated[int, Field(ge=0)] = 200
    """Requests that may wait for the pool; more get 429."""
    queue_timeout_s: Seconds = 30
    """Longest wait in the queue; then 503."""


class Timeouts(Block):
    """How long an engine may take, each step on its own. They are long by default: a prefill takes minutes."""

    connect_s: Seconds = 2
    """Until the TCP connection stands."""
    first_byte_s: Seconds = 600
    """Until an answer begins, from the end of the request: its status line, and of a stream its first event, since engines
    send the head before they have read the prompt."""
    idle_s: Seconds = 120
    """Longest pause inside an answer that has begun."""
    total_s: Seconds = 3600
    """Whole attempt."""


class Health(Block):
    """How the replicas of a pool are watched."""

    path: str = "/health"
    """Path that is asked; any 2xx is good."""
    every_s: Seconds = 2
    """Pause between two probes of a replica."""
    stall_s: Seconds = 20
    """A replica that has work and shows no progress for so long, or from which nothing comes at all, is taken out; long
    prompts on it are given more time."""
    token_every_s: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 60
    """A replica that has been idle for so long is asked for one token, and so is one that has failed twice in a row; 0 for
    never."""


class Pool(Block):
    """Replicas that serve one model and stand in for each other."""

    model: Annotated[str, Field(min_length=1, max_length=512)]
    """The model name that its engines serve."""
    replicas: Replicas
    """One entry for each engine: a URL, or a block with url, name, weight, nodes. Or where to find them:
    `dns://NAME:PORT` (every address of the name, asked again every two seconds) or `file://PATH` (YAML that lists them by
    pool, read again when it changes)."""
    balance: Balance = "prefix"
    """How a replica is picked: prefix (a conversation stays where its cache is), least_tokens, p2c, round_robin, random."""
    api_key_env: Variable | None = None
    """Environment variable with the key that the engines want. A client's own key never reaches an engine."""
    context: Literal["auto"] | Count = "auto"
    """Tokens that fit, prompt and answer together; auto reads it from the engine's /v1/models."""
    tokenizer: Annotated[str, Field(min_length=1)] | None = None
    """Path of its model's tokenizer.json (extra `tokenizer`): where the estimate leaves open whether a prompt fits, it is
    counted."""
    accepts: Listed[Capability] = ("tools", "structured_output")
    """What the model can deal with besides text."""
    max_output_tokens: Literal["pass", "clamp"] = "pass"
    """clamp lowers what a client asks for to what fits beside its prompt, and says so in the reason."""
    usage: Literal["pass", "ask"] = "pass"
    """ask adds stream_options.include_usage to streams and takes the usage event out again for a client that did not
    ask: exact token counts for one more event per stream."""
    speaks: Literal["auto"] | Annotated[Listed[Protocol], Field(min_length=1)] = "auto"
    """Protocols that the engines answer natively; auto asks them."""
    limits: Limits = Limits()
    """How much it takes at once."""
    timeouts: Timeouts = Timeouts()
    """How long its engines may take."""
    health: Health = Health()
    """How its engines are watched."""

    @property
    def listed(self) -> tuple[Replica, ...]:
        """The replicas that stand in the policy itself."""
        return () if isinstance(self.replicas, str) else self.replicas

    @property
    def source(self) -> str | None:
        """Where else to find them."""
        return self.replicas if isinstance(self.replicas, str) else None
