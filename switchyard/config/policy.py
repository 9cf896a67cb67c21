"""The policy as frozen models: one class for each block of the YAML file.

Field docstrings become the descriptions in the JSON Schema. What a value means across blocks (does this pool exist?)
is checked in `references.py`; reading files is `load.py`.
"""

from __future__ import annotations

import re
from datetime import date
from typing import Annotated, Any, Literal, TypeVar
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    Strict,
    Tag,
    model_validator,
)  # fmt: skip
from pydantic_core import PydanticCustomError

from switchyard.config.vocabulary import HEADER_PREFIX, SIGNALS, Kind

T = TypeVar("T")
Listed = Annotated[tuple[T, ...], Strict(False)]  # YAML has lists; the models are immutable
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1)]
Protocol = Literal["chat", "responses", "messages", "completions", "embeddings", "rerank", "score", "tokenize"]
Capability = Literal["tools", "structured_output", "images", "audio"]
Balance = Literal["prefix", "least_tokens", "p2c", "round_robin", "random"]

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/:-]*")
_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(:[1-9][0-9]{0,4})?")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def _name(value: str) -> str:
    if not _NAME.fullmatch(value) or len(value) > 128:
        raise PydanticCustomError("name", "a name is 1 to 128 letters, digits and . _ - / : and starts with a letter or digit")
    return value


def _key_name(value: str) -> str:
    if not re.fullmatch(r"key-[1-9][0-9]{0,5}", value):
        raise PydanticCustomError(
            "key_name", "key-1 is expected for the first key of server.api_keys_env, key-2 for the second"
        )
    return value


def _variable(value: str) -> str:
    if not _VARIABLE.fullmatch(value):
        raise PydanticCustomError("variable", "the name of an environment variable is expected, not a secret itself")
    return value


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


def _state(value: str) -> str:
    if value == "memory":
        return value
    try:
        parts = urlsplit(value)
        good = parts.scheme in {"redis", "rediss"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        good = False
    if not good or not re.fullmatch(r"(/[0-9]{1,5})?", parts.path.rstrip("/")) or parts.query or parts.fragment:
        raise PydanticCustomError("state", "memory or redis://host:6379/0 is expected; a password as redis://:${NAME}@host")
    return value


def whole(value: Any) -> Any:
    """Literals compare by value: keep 1.0 and true from passing for 1."""
    return value if type(value) is int else str(value)


def _turns(value: str) -> str:
    if not re.fullmatch(r"[1-9]\d{0,3} turns?", value):
        raise PydanticCustomError("turns", "a number of turns is expected, like 5 turns")
    return value


Name = Annotated[str, AfterValidator(_name)]
Variable = Annotated[str, AfterValidator(_variable)]
KeyName = Annotated[str, AfterValidator(_key_name)]
EngineUrl = Annotated[str, AfterValidator(_url)]


class Block(BaseModel):
    """What all blocks share: immutable, no unknown keys, no silent conversions."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, use_attribute_docstrings=True)


class KeyLimits(Block):
    """What one API key may do; what is left out is not limited."""

    requests_per_minute: Count | None = None
    """Requests within any 60 s."""
    tokens_per_minute: Count | None = None
    """Tokens within any 60 s, prompts and answers together: estimated when a request comes, corrected when it ends."""
    concurrent_requests: Count | None = None
    """Requests that wait or run at the same time."""


class ServerLimits(Block):
    """Limits of the API keys; over one of them a request gets 429 and Retry-After. Without keys all clients share one."""

    default: KeyLimits = KeyLimits()
    """For every key."""
    keys: dict[KeyName, KeyLimits] = {}
    """For single ones, by the names that records show: key-1 is the first of `api_keys_env`. What an entry leaves out is
    as in `default`; null lifts it."""

    def of(self, key_name: str) -> KeyLimits | None:
        """The limits of a key; None when it has none."""
        own = self.keys.get(key_name)
        limits = self.default if own is None else self.default.model_copy(update=_given(own))
        return limits if any(value is not None for value in (limits.model_dump().values())) else None


def _given(block: Block) -> dict[str, Any]:
    return {name: getattr(block, name) for name in block.model_fields_set}


class Server(Block):
    """The gateway process itself. Flags of `switchyard serve` win over this block."""

    host: str = "127.0.0.1"
    """Address to listen on. Anything but loopback needs `api_keys_env`."""
    port: Annotated[int, Field(ge=0, le=65535)] = 4000
    """TCP port; 0 takes a free one."""
    api_keys_env: Variable | None = None
    """Environment variable with the comma-separated keys that clients may use. Left out, the gateway is open, and only
    loopback may be bound. Named but unset or empty is an error."""
    admin_key_env: Variable | None = None
    """Environment variable with the key for /admin. Left out, /admin answers only where no API keys are set."""
    max_body_mb: Annotated[int, Field(ge=1, le=1024)] = 64
    """Longest request body in MiB; longer ones get 413."""
    max_connections: Annotated[int, Field(ge=1, le=1_000_000)] = 10_000
    """Client connections at the same time; more are told 503 and closed."""
    drain_delay_s: Annotated[float, Field(ge=0, le=3600, allow_inf_nan=False)] = 0
    """On SIGTERM /readyz says 503 at once; the listener closes after this many seconds."""
    drain_s: Annotated[float, Field(ge=0, le=86400, allow_inf_nan=False)] = 30
    """How long running requests may go on after the listener closed; what is left then ends with an error."""
    limits: ServerLimits = ServerLimits()
    """What the API keys may do. Unlike the rest of this block, a change takes effect while the gateway runs."""
    session_ttl_s: Seconds = 3600
    """A conversation that was silent for so long is forgotten: its next request is decided anew."""
    state: Annotated[str, AfterValidator(_state)] = "memory"
    """Where sessions, use of limits, ejections and classifiers' answers live: memory of the process, or
    redis://host:6379/0 (rediss:// with TLS) to share them between gateways and workers. Without Redis each goes on alone."""
    state_prefix: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.:-]{0,64}$")] = "switchyard:"
    """Begins every key in Redis; gateways with the same prefix share."""
    state_budget_ms: Annotated[float, Field(gt=0, le=1000, allow_inf_nan=False)] = 10
    """Longest that a request waits for Redis; then it goes on with what the process knows."""
    decision_log: str | None = None
    """File to which one JSON line for each decision is appended; left out, the last 1,000 are kept in memory only."""
    log_prompts: bool = False
    """Put the human's last text into decision records. Off: no text of prompts is written anywhere."""


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
    """Until the engine's status line, from the end of the request."""
    idle_s: Seconds = 120
    """Longest pause inside an answer."""
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


Scalar = bool | int | Annotated[float, Field(allow_inf_nan=False)] | str


class Test(Block):
    """A comparison for a signal; all that are given must hold."""

    at_least: int | Annotated[float, Field(allow_inf_nan=False)] | None = None
    """The signal is this number or more."""
    at_most: int | Annotated[float, Field(allow_inf_nan=False)] | None = None
    """The signal is this number or less."""
    is_not: Scalar | None = None
    """The signal differs from this value."""
    matches: str | None = None
    """The text of the signal contains a match of this regular expression."""

    @model_validator(mode="after")
    def _says_something(self) -> Test:
        if not self.model_fields_set:
            raise PydanticCustomError("empty", "at least one of at_least, at_most, is_not, matches is expected")
        if self.matches is not None:
            try:
                re.compile(self.matches)
            except re.error as error:
                raise PydanticCustomError("regex", "not a regular expression: {why}", {"why": str(error)}) from None
        return self


def _form(value: Any) -> str:
    return "test" if isinstance(value, dict | Test) else "values" if isinstance(value, list | tuple) else "value"


Condition = Annotated[
    Annotated[Scalar, Tag("value")]
    | Annotated[Annotated[Listed[Scalar], Field(min_length=1)], Tag("values")]
    | Annotated[Test, Tag("test")],
    Discriminator(_form),
]


def _signal(name: str) -> str:
    if name in SIGNALS or (name.startswith(HEADER_PREFIX) and len(name) > len(HEADER_PREFIX)):
        return name
    raise PydanticCustomError("signal", "no signal is called {name}", {"name": name, "known": ", ".join(SIGNALS)})


SignalName = Annotated[str, AfterValidator(_signal)]

_FITS: dict[Kind, tuple[type, ...]] = {"bool": (bool,), "int": (int,), "float": (int, float), "text": (str,)}
_WANTED: dict[Kind, str] = {"bool": "true or false", "int": "a whole number", "float": "a number", "text": "a text"}


def condition_problem(name: str, condition: Any) -> str | None:
    """Say what is wrong with comparing this signal to that value; None when it makes sense."""
    kind: Kind = "text" if name.startswith(HEADER_PREFIX) else SIGNALS[name].kind

    def wrong(value: Any) -> bool:
        return not isinstance(value, _FITS[kind]) or (isinstance(value, bool) and kind != "bool")

    if isinstance(condition, Test):
        if (condition.at_least is not None or condition.at_most is not None) and kind not in {"int", "float"}:
            return f"{name} is {_WANTED[kind]}: at_least and at_most need a number"
        if condition.matches is not None and kind != "text":
            return f"{name} is {_WANTED[kind]}: matches needs a text"
        values: tuple[Any, ...] = () if condition.is_not is None else (condition.is_not,)
    else:
        values = condition if isinstance(condition, tuple) else (condition,)
    known = () if name.startswith(HEADER_PREFIX) else SIGNALS[name].values
    strange = [v for v in values if known and not wrong(v) and v not in known]
    if strange:
        return f"{name} is never {strange[0]}, only {', '.join(known)}"
    bad = [v for v in values if wrong(v)]
    return f"{name} is {_WANTED[kind]}, not {bad[0]!r}" if bad else None


def _conditions(value: dict[str, Any]) -> dict[str, Any]:
    problems = [p for name, condition in value.items() if (p := condition_problem(name, condition))]
    if problems:
        raise PydanticCustomError("condition", "{problems}", {"problems": "; ".join(problems)})
    return value


class Rule(Block):
    """A choice from facts alone. The first rule that matches wins, before any classifier."""

    when: Annotated[dict[SignalName, Condition], Field(min_length=1), AfterValidator(_conditions)]
    """Signals and what they must be; all must hold. A value, a list of values, or {at_least, at_most, is_not, matches}."""
    use: str
    """Pool to use."""
    why: str | None = None
    """Reason shown in headers and records."""
    for_: Annotated[str, AfterValidator(_turns)] | None = Field(None, alias="for")
    """Keep the choice for this many turns of the session, like 5 turns; then back to what the session had."""


class Calibrated(Block):
    """A classifier whose score is put right by a logistic curve that was fitted to labels (`switchyard calibrate`)."""

    bias: Annotated[float, Field(ge=-100, le=100)] = 0
    """Calibration: added to the logit of the score."""
    scale: Annotated[float, Field(gt=0, le=100)] = 1
    """Calibration: the logit of the score is multiplied by it, before `bias`."""


class EmbeddedClassifier(Calibrated):
    """In process, without a network, well under a millisecond; trained on questions with short answers, silent on the rest."""

    type: Literal["embedded"]
    """embedded"""
    weights: Annotated[str, Field(min_length=1)] | None = None
    """File with a head of your own, as `switchyard calibrate --train` writes it; left out: the shipped one."""


class ModelClassifier(Calibrated):
    """An LLM on a pool is asked for one token, yes or no, and its probabilities are read."""

    type: Literal["model"]
    """model"""
    pool: str
    """Pool that judges."""
    deadline_ms: Annotated[int, Field(ge=1, le=60000)] = 300
    """Longest wait; then the next classifier is asked."""
    prompt: str | None = None
    """Question put to the judge; {task} stands for the human's text. Left out: the shipped one."""
    max_input_tokens: Annotated[int, Field(ge=64, le=32768)] = 1024
    """The task is cut to about this length, beginning and end kept."""
    concurrency: Count = 4
    """Questions under way at the same time; one too many is not asked, and the next classifier is."""
    cache_size: Annotated[int, Field(ge=0, le=1_000_000)] = 4096
    """Answers that are remembered, by a digest of the question; 0 for none."""
    cache_ttl_s: Seconds = 600
    """How long an answer is remembered."""

    @model_validator(mode="after")
    def _shows_the_task(self) -> ModelClassifier:
        if self.prompt is not None and "{task}" not in self.prompt:
            raise PydanticCustomError("prompt", "prompt has no {task}: the judge would see nothing of the request")
        return self


class LocalClassifier(Calibrated):
    """A transformers model of the gateway's own, in a process beside it; needs the extra `local`."""

    type: Literal["local"]
    """local"""
    model: Annotated[str, Field(min_length=1)]
    """Folder with the model: config.json, weights, tokenizer. Nothing is downloaded."""
    kind: Literal["sequence", "causal"]
    """sequence: a classifier, whose probability of `label` is the score. causal: a language model, asked for yes or no."""
    label: str | None = None
    """Of a sequence classifier, the label that means that the small pool is good enough; left out: the second of two."""
    deadline_ms: Annotated[int, Field(ge=1, le=60000)] = 300
    """Longest wait; then the next classifier is asked."""
    max_input_tokens: Annotated[int, Field(ge=64, le=32768)] = 512
    """The human's text is cut to about this length, beginning and end kept."""

    @model_validator(mode="after")
    def _label_fits(self) -> LocalClassifier:
        if self.kind == "causal" and self.label is not None:
            raise PydanticCustomError("label", "label is for kind: sequence; a causal model is asked for yes or no")
        return self


Classifier = Annotated[EmbeddedClassifier | ModelClassifier | LocalClassifier, Field(discriminator="type")]


class Threshold(Block):
    """One step from the score to a pool."""

    p_at_least: Annotated[float, Field(ge=0, le=1)] | None = None
    """Lowest score for this pool; left out: always."""
    use: str
    """Pool to use."""


class Check(Block):
    """What is looked at before an answer is released."""

    tool_calls: Literal["pass", "escalate"] = "pass"
    """escalate: a small pool's tool call must parse, name a given tool and fit its schema, else the next larger pool is
    asked."""


class Share(Block):
    """Keep a pool's share of the scored decisions."""

    pool: str
    """The pool whose share is held."""
    at_most: Annotated[float, Field(ge=0, le=1)] | None = None
    """Never more than this share; only tightens."""
    hold: Annotated[float, Field(ge=0, le=1)] | None = None
    """This share, from both sides."""

    @model_validator(mode="after")
    def _one_target(self) -> Share:
        if (self.at_most is None) == (self.hold is None):
            raise PydanticCustomError("share", "exactly one of at_most and hold is expected")
        return self


class Shadow(Block):
    """Ask the big pool once more, after the client has its answer, to see how often both say the same."""

    share: Annotated[float, Field(gt=0, le=1)]
    """Share of the small pools' answers that are tried."""
    when_idle: Literal[True] = True
    """Only while the big pool has nothing queued or in flight; it ends when somebody comes. There is no other way."""
    concurrency: Annotated[int, Field(ge=1, le=64)] = 1
    """At most so many at the same time; others are dropped."""


class Pressure(Block):
    """Let borderline requests move to a neighbouring pool while their own queues."""

    band: Annotated[float, Field(gt=0, le=0.5)] = 0.05
    """Scores so near to a threshold are borderline."""
    at_most: Annotated[float, Field(gt=0, le=1)] = 0.1
    """Largest share of the scored decisions that may move."""


def _hash(value: str) -> str:
    if not re.fullmatch(r"[0-9a-f]{12}", value):
        raise PydanticCustomError("hash", "12 hexadecimal digits are expected, as `eval` and `calibrate` write them")
    return value


def _day(value: str) -> str:
    try:
        return date.fromisoformat(value).isoformat()
    except ValueError:
        raise PydanticCustomError("day", 'a quoted day is expected, like "2026-11-30"') from None


def _ends(value: tuple[float, ...]) -> tuple[float, ...]:
    if len(value) != 2 or value[0] > value[1]:
        raise PydanticCustomError("ends", "two numbers are expected, the lower one first")
    return value


Hash = Annotated[str, AfterValidator(_hash)]
Points = Annotated[float, Field(ge=-100, le=100)]


class Fingerprint(Block):
    """What a verdict was about, so that `switchyard check` can say when it holds no longer."""

    pools: Hash
    """Models, contexts and abilities of the route's pools."""
    classifier: Hash
    """Its classifiers, with the content of weights and the judge's model and question."""
    choosing: Hash
    """Rules, thresholds, share, pressure, check, decide_per, otherwise."""


class Evaluated(Block):
    """The last verdict on a route, written by `eval --write-verdict` and `calibrate --write`; it changes nothing."""

    by: Literal["eval", "calibrate"]
    """eval: the routed agent was run. calibrate: a forecast from graded requests."""
    suite: str
    """What was tried."""
    date: Annotated[str, AfterValidator(_day)]
    """When, as a quoted day."""
    cases: Count
    """Cases that were compared."""
    margin: Points
    """Largest loss that was allowed, in percentage points."""
    interval: Annotated[Listed[Points], AfterValidator(_ends)]
    """90 % interval of routed minus big, in percentage points."""
    verdict: Literal["non-inferior", "inferior", "inconclusive"]
    """What it came to."""
    hash: Fingerprint
    """What it was about."""


class Route(Block):
    """A model name that clients ask for, and how its requests are decided."""

    use: str | None = None
    """Always this pool, without any decision."""
    aliases: Listed[Annotated[str, Field(min_length=1, max_length=128)]] = ()
    """Other names that mean this route; * stands for any text, like claude-*."""
    decide_per: Literal["request", "user_turn", "session"] = "user_turn"
    """When a new decision is made. No score splits a tool loop."""
    rules: Listed[Rule] = ()
    """Facts that settle it without a model; the first match wins."""
    classify: Listed[Classifier] = ()
    """Asked in order until one does not abstain. The score p is the probability that the small pool's answer is as good
    as the big one's."""
    choose: Listed[Threshold] = ()
    """From the score to a pool, from small to big; the first that holds."""
    check: Check = Check()
    """What is looked at before an answer is released."""
    share: Share | None = None
    """Hold a pool's share of the scored decisions."""
    pressure: Pressure | None = None
    """Move borderline requests away from a pool that queues; left out: never."""
    shadow: Shadow | None = None
    """Compare a sample of the small pools' answers with the big pool's while that is idle; left out: never."""
    otherwise: str | None = None
    """Pool for when no classifier could say; left out: the last pool of choose."""
    evaluated: Evaluated | None = None
    """The last verdict on this route; written by commands."""

    @model_validator(mode="after")
    def _decidable(self) -> Route:
        decided = bool(self.rules or self.classify or self.choose or self.otherwise or self.share)
        if self.use is not None and decided:
            raise PydanticCustomError("route", "use means always: leave out rules, classify, choose, share and otherwise")
        if self.use is None and not (self.choose or self.otherwise):
            raise PydanticCustomError("route", "say where requests go: use, or choose, or otherwise")
        if self.choose and self.otherwise is None and self.choose[-1].p_at_least is not None:
            raise PydanticCustomError(
                "route", "the last entry of choose still has p_at_least: add {use: POOL} after it, or otherwise: POOL"
            )
        return self

    @property
    def default_pool(self) -> str:
        """Pool for a request on which no classifier had an opinion."""
        return self.use or self.otherwise or self.choose[-1].use

    @property
    def pools(self) -> tuple[str, ...]:
        """Every pool it may use, from small to big as `choose` says, without repeats."""
        named = [t.use for t in self.choose] + [r.use for r in self.rules] + [self.default_pool]
        return tuple(dict.fromkeys(named))


class Policy(Block):
    """The whole file."""

    version: Annotated[Literal[1], BeforeValidator(whole)]
    """Version of this format; 1."""
    server: Server = Server()
    """The gateway process itself."""
    pools: Annotated[dict[Name, Pool], Field(min_length=1)]
    """Groups of engines that serve one model each. A pool can be asked for by its name."""
    routes: dict[Name, Route] = {}
    """Model names that clients ask for."""
