"""What one agent's test is played on: three scripted engines, the real gateway, a tap, a folder, and the agent itself.

All of it runs on loopback (`network.loopback_only`) and ends with the `with`. What must hold for every agent is asked
here in `Played`; what is special to an agent is its test's business.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from integration.engine import Request
from integration.gateway import Json, Serve, policy, pool

from .pages import KEY, probes
from .scripted_model import NOTE, ScriptedModel
from .tap import Call, Tap
from .terminal import Terminal

WORDS = ("otter", "heron", "badger", "lynx", "marten", "raven", "viper", "walrus")
TIMEOUT_S = 90  # agents need seconds; this is for a machine under load
CONTEXT = 262_144


class Stage:
    """A context manager: inside, engines and gateway run, and `play` runs an agent against them.

    Args:
        folder: for everything that is written.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.home = folder / "home"
        self.work = folder / "work"
        self.word = f"{secrets.choice(WORDS)}-{secrets.choice(WORDS)}-{secrets.randbelow(900) + 100}"
        self.note = self.work / "note.txt"
        self._log = folder / "decisions.jsonl"
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        for made in (self.home, self.work, self.folder / "tmp"):
            made.mkdir()
        self.note.write_text(NOTE.format(self.word) + "\n")
        with ExitStack() as stack:
            self.engines = {
                name: stack.enter_context(ScriptedModel(f"scripted/{name.partition('-')[0]}", context=CONTEXT))
                for name in ("small-1", "big-1", "big-2")
            }
            variables = {"SWITCHYARD_API_KEYS": KEY}
            self._gateway = stack.enter_context(Serve(self._policy(), self.folder, environment=variables))
            self._gateway.wait_ready()
            self._tap = stack.enter_context(Tap(self._gateway.port))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stack.close()

    @property
    def url(self) -> str:
        """The gateway's, as the agent knows it: without a path."""
        return self._tap.url

    @property
    def question(self) -> str:
        """The task; it names the file, and not the word."""
        return f"Read the file {self.note} with your tool and tell me the secret word that stands in it."

    def _policy(self) -> Json:
        """Titles to the small pool and all else to the big one, by rules; the vendors' model names are aliases."""

        def replicas(kind: str) -> Json:
            named = [{"url": e.url, "name": name} for name, e in self.engines.items() if name.startswith(kind)]
            return pool(model=f"scripted/{kind}", replicas=named)

        rules = [
            {"when": {"client": "nobody"}, "use": "big", "why": "never; it makes every record name the client"},
            {"when": {"request_class": "title"}, "use": "small", "why": "titles are easy"},
            {"when": {"request_class": {"is_not": "title"}}, "use": "big", "why": "work"},
        ]
        auto = {"aliases": ["claude-*", "gpt-*"], "rules": rules, "otherwise": "big"}
        settings = {"api_keys_env": "SWITCHYARD_API_KEYS", "decision_log": str(self._log)}
        pools = {name: replicas(name) for name in ("small", "big")}
        return policy(pools, {"auto": auto, "claude-by-name": {"use": "big"}}, **settings)

    def play(
        self, command: Sequence[str | Path], environment: Mapping[str, str] | None = None, timeout_s: float = TIMEOUT_S
    ) -> Played:
        """Run the agent to its end, then the gateway; once only."""
        written = self.folder / "agent.out"
        with (
            written.open("wb") as out,
            (self.folder / "agent.err").open("wb") as err,
            self._started(command, environment or {}, subprocess.DEVNULL, out, err) as process,
            contextlib.suppress(subprocess.TimeoutExpired),
        ):
            process.wait(timeout_s)
        return self._curtain(written.read_text(errors="replace"), process.returncode)

    def play_in_terminal(
        self,
        command: Sequence[str | Path],
        environment: Mapping[str, str],
        lines: Sequence[str],
        until: Callable[[Terminal, Tap], bool],
        timeout_s: float = TIMEOUT_S,
    ) -> Played:
        """Run the agent in a terminal: type the lines but the last, wait, type the last one, with which it ends."""
        terminal = Terminal()
        try:
            inside = dict(environment) | {"TERM": "xterm-256color"}
            with self._started(command, inside, terminal.theirs, terminal.theirs, terminal.theirs) as process:
                terminal.wait_for(lambda: bool(terminal.text.strip()), timeout_s)
                terminal.wait_quiet()
                for line in lines[:-1]:
                    terminal.type_line(line)
                terminal.wait_for(lambda: until(terminal, self._tap), timeout_s)
                terminal.wait_quiet()
                terminal.type_line(lines[-1])
                terminal.wait_end(process, 20)
            return self._curtain(terminal.text, process.returncode)
        finally:
            terminal.close()

    @contextlib.contextmanager
    def _started(
        self, command: Sequence[str | Path], environment: Mapping[str, str], stdin: int, stdout: Any, stderr: Any
    ) -> Iterator[subprocess.Popen[bytes]]:
        """The agent as a process; one that is late is killed.

        It gets a process namespace of its own. So whatever it starts, in whichever group or session, ends with it.
        """
        alone = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "--", *map(str, command)]
        process = subprocess.Popen(
            alone, stdin=stdin, stdout=stdout, stderr=stderr, env=self._environment(environment), cwd=self.work,
            start_new_session=True,
        )  # fmt: skip
        try:
            yield process
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(10)

    def _curtain(self, output: str, exit_code: int) -> Played:
        self._gateway.stop()
        records = [json.loads(line) for line in self._log.read_text().splitlines()] if self._log.exists() else []
        seen = {name: engine.work for name, engine in self.engines.items()}
        said = self.folder / "agent.err"
        errors = said.read_text(errors="replace") if said.exists() else ""
        return Played(output, errors, exit_code, self.word, self._tap.calls, records, seen, self._gateway.output)

    def _environment(self, more: Mapping[str, str]) -> dict[str, str]:
        """The agent's whole environment: nothing of ours but the search path."""
        home = str(self.home)
        return {
            "PATH": os.environ["PATH"], "HOME": home, "TMPDIR": str(self.folder / "tmp"), "LANG": "C.UTF-8",
            "TERM": "dumb", "NO_COLOR": "1", "SHELL": "/bin/sh", "XDG_CONFIG_HOME": f"{home}/.config",
            "XDG_DATA_HOME": f"{home}/.local/share", "XDG_STATE_HOME": f"{home}/.local/state",
            "XDG_CACHE_HOME": f"{home}/.cache", **more,
        }  # fmt: skip


@dataclass(frozen=True)
class Played:
    """What came of it.

    Attributes:
        output: standard output of the agent, or what its terminal showed.
        errors: standard error.
        exit_code: its own; -9 when it was late and killed.
        calls: every request of the agent, in order, with its status.
        records: lines of the gateway's decision log.
        seen: requests for model work, by engine.
        gateway_log: what the gateway said.
    """

    output: str
    errors: str
    exit_code: int
    word: str
    calls: list[Call]
    records: list[Json]
    seen: Mapping[str, list[Request]]
    gateway_log: str

    def check(self, agent: str, *, client: str, path: str, source: str, word: bool = True) -> None:
        """What must hold for every agent.

        Args:
            agent: its name in the table of docs/how-to/agents/README.md.
            client: the value of the signal.
            path: the only one that engines are asked for.
            source: where the gateway finds the session.
            word: whether it had the task to say the secret word.
        """
        assert self.exit_code == 0, f"exit code {self.exit_code}\n{self}"
        assert not word or self.word in self.output, f"the secret word is missing\n{self}"
        assert self.records, f"the gateway saw nothing\n{self}"
        for record in self.records:
            assert (record["status"], record["outcome"], record["key"]) == (200, "ok", "key-1"), record
            assert (record["signals"]["client"], record["session_source"]) == (client, source), record
            assert record["path"] == path, record
            assert record["pool"] == _expected_pool(record), record
        self._check_sessions()
        self._check_bytes()
        self._check_documented(agent)
        troubles = [line for line in self.gateway_log.splitlines() if re.search(r" (WARNING|ERROR|CRITICAL) ", line)]
        assert not troubles, troubles

    @property
    def classes(self) -> list[str]:
        """The request class of each record, in the order in which they ended."""
        return [record["signals"]["request_class"] for record in self.records]

    @property
    def sessions(self) -> dict[tuple[str, str], list[Json]]:
        """Records by session; what one sends to different routes is pinned apart."""
        found: dict[tuple[str, str], list[Json]] = {}
        for record in self.records:
            found.setdefault((record["route"], record["session"]), []).append(record)
        return found

    def _check_sessions(self) -> None:
        """A session stays on one pool and one replica; counting goes anywhere in the pool."""
        for records in self.sessions.values():
            places = {(r["pool"], r["replica"]) for r in records if r["signals"]["request_class"] != "count"}
            assert len(places) <= 1, f"a session was split over {places}"

    def _check_bytes(self) -> None:
        """What the agent sent is what an engine got, but for the model's name and the gateway's key."""
        sent = [c.body for c in self.calls if c.method == "POST"]
        for name, requests in self.seen.items():
            for request in requests:
                assert not any(KEY in value for _, value in request.headers), f"{name} saw the gateway's key"
                match = next((b for b in sent if _same_but_model(b, request.body, self._models[name])), None)
                assert match is not None, f"{name} got a body that the agent did not send: {request.body[:300]!r}"
                sent.remove(match)
        assert not sent, f"{len(sent)} bodies of the agent reached no engine"

    @property
    def _models(self) -> Mapping[str, str]:
        return {name: f"scripted/{name.partition('-')[0]}" for name in self.seen}

    def _check_documented(self, agent: str) -> None:
        """Every path that it asked for stands in the table for users, with the status it got."""
        known = probes(agent)
        for call in self.calls:
            row = (call.method, call.target, str(call.status))
            hint = f"docs/how-to/agents/README.md has no row {' | '.join((agent, *row))}"
            assert row in known, f"{hint}; the answer was {call.answer[:500]!r}"

    def __str__(self) -> str:
        calls = "\n".join(f"  {c.method} {c.target} {c.status}" for c in self.calls)
        return (
            f"calls:\n{calls}\nits output:\n{self.output[-3000:]}\nits errors:\n{self.errors[-3000:]}\n"
            f"the gateway:\n{self.gateway_log[-2000:]}"
        )


def _expected_pool(record: Json) -> str:
    """By the policy of the stage: a pool that is asked for by its name, else what the rules say."""
    if not record["route"]:
        return str(record["model"])
    return "small" if record["signals"]["request_class"] == "title" else "big"


def _same_but_model(sent: bytes, arrived: bytes, model: str) -> bool:
    """Whether two bodies are the same bytes but for one stretch, in which the value of `model` stands."""
    before = _shared(sent, arrived)
    after = _shared(sent[:before:-1], arrived[:before:-1])
    wanted, got = json.loads(sent), json.loads(arrived)
    if got.pop("model") != model:
        return False
    replaced = len(json.dumps(wanted.pop("model")))
    return wanted == got and len(sent) - before - after <= replaced


def _shared(one: bytes, other: bytes) -> int:
    """Bytes that both begin with."""
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
