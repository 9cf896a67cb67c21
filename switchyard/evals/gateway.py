"""The gateway under evaluation, over HTTP: its names, its readiness, its decision records. Starts one where asked to.

A started gateway is `switchyard serve` as a process of its own, with the given policy except for `server`: loopback, a free
port, keys of this run that nobody else knows, and a decision log in the run's folder.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import secrets
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx

from switchyard.config.policy import Policy
from switchyard.config.route import Fingerprint
from switchyard.config.sources import file_path

START_LIMIT_S = 30.0
READY_LIMIT_S = 60.0  # of a gateway that was just started: its engines may still load
PATIENCE_S = 2.0
REACHED_LIMIT_S = 5.0  # of one that runs
JOIN_LIMIT_S = 5.0
CHECK_LIMIT_S = 120.0
STOP_LIMIT_S = 10.0
ADMIN_HINT = "the admin key is wanted, in the variable that --admin-key-env names"
_KEYS, _ADMIN_KEY = "SWITCHYARD_EVAL_KEYS", "SWITCHYARD_EVAL_ADMIN_KEY"
# On Linux the gateway gets SIGTERM when this process dies, however it does; elsewhere it is ended on every normal way out.
_FOLLOW_PARENT = """
import ctypes, os, sys
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, 15)
os.execv(sys.argv[1], sys.argv[1:])
"""


class CouldNotRun(Exception):
    """The run can't begin or go on; the message says what to do."""


class Gateway:
    """A running gateway.

    Args:
        url: its address; a /v1 at its end, as SDKs want it, is left out.
        api_key: for /v1, if it wants one.
        admin_key: for /admin, if it wants one.
    """

    def __init__(self, url: str, api_key: str | None, admin_key: str | None) -> None:
        self.url, self.api_key, self._admin_key = url.rstrip("/").removesuffix("/v1"), api_key, admin_key
        self.transport = httpx.AsyncHTTPTransport(limits=httpx.Limits(max_connections=256, max_keepalive_connections=64))
        self._http = httpx.AsyncClient(base_url=self.url, transport=self.transport, timeout=10)

    async def aclose(self) -> None:
        """Close its connections."""
        await self._http.aclose()

    async def alive(self) -> bool:
        """Whether it answers at all."""
        for _ in range(3):
            try:
                await self._http.get("/healthz")
            except httpx.HTTPError:
                await asyncio.sleep(0.2)
            else:
                return True
        return False

    async def wait_ready(self, limit_s: float, say: Callable[[str], None]) -> None:
        """Wait until it takes traffic; says so when that takes a while.

        Raises:
            CouldNotRun: it doesn't.
        """
        reason, said = "", False
        began_s = time.monotonic()
        while (waited_s := time.monotonic() - began_s) < limit_s:
            if waited_s > PATIENCE_S and not said:
                said = True
                say(f"waiting up to {limit_s:g} s for the gateway at {self.url}: {reason}")
            try:
                answer = await self._http.get("/readyz")
            except httpx.HTTPError as error:
                reason = f"{type(error).__name__}: {error}"
            else:
                if answer.status_code == 200:
                    return
                reason = _why_not_ready(answer)
            await asyncio.sleep(0.1)
        raise CouldNotRun(f"the gateway at {self.url} is not ready after {limit_s:g} s: {reason}")

    async def check_models(self, names: Collection[str], label: str) -> None:
        """Ask for one token of each: a pool whose engines are down is found before a whole arm has failed on it.

        Raises:
            CouldNotRun: one doesn't answer.
        """
        headers = {"x-switchyard-case": label} | ({"authorization": f"Bearer {self.api_key}"} if self.api_key else {})
        for name in names:
            body = {"model": name, "max_tokens": 1, "messages": [{"role": "user", "content": "Hello"}]}
            try:
                answer = await self._http.post("/v1/chat/completions", json=body, headers=headers, timeout=CHECK_LIMIT_S)
            except httpx.HTTPError as error:
                raise CouldNotRun(f"{name} does not answer: {type(error).__name__}: {error}") from None
            if answer.status_code != 200:
                raise CouldNotRun(f"{name} does not answer: HTTP {answer.status_code}: {answer.text[:300]}")

    async def cards(self) -> dict[str, dict[str, Any]]:
        """Routes and pools by name: `kind`, and `pools` from small to big.

        Raises:
            CouldNotRun: it doesn't say.
        """
        answer = await self._get(
            "/v1/models", self.api_key, "a valid API key is wanted, in the variable that --api-key-env names"
        )
        try:
            return {card["id"]: card["switchyard"] for card in answer["data"]}
        except (LookupError, TypeError):
            raise CouldNotRun(f"{self.url} is no Switchyard gateway: its /v1/models doesn't tell routes from pools") from None

    async def fingerprints(self) -> dict[str, Fingerprint]:
        """What its policy's routes come to, by name: the hashes that a verdict in a policy has.

        Raises:
            CouldNotRun: it doesn't say.
        """
        answer = await self._get("/admin/policy", self._admin_key, ADMIN_HINT)
        try:
            return {name: Fingerprint(**hashes) for name, hashes in answer["routes"].items()}
        except (LookupError, TypeError, AttributeError, ValueError):
            raise CouldNotRun(f"{self.url}/admin/policy does not tell about the policy in force") from None

    async def decisions(self, case: str, wanted: Collection[str]) -> list[dict[str, Any]]:
        """The decision records of a case, oldest first: one for each of these request ids.

        A gateway of several workers keeps them in several places. So each question comes over a connection of its own,
        which any worker may take, and what they say is gathered.

        Raises:
            CouldNotRun: some are not there, so that outcome and decision can't be joined.
        """
        deadline = time.monotonic() + JOIN_LIMIT_S
        records: dict[str, dict[str, Any]] = {}
        while True:
            found = await self._get("/admin/decisions", self._admin_key, ADMIN_HINT, {"case": case, "limit": "1000"})
            records |= {str(record.get("client_request_id")): record for record in found}
            missing = [name for name in wanted if name not in records]
            if not missing:
                return [records[name] for name in wanted]
            if time.monotonic() > deadline:
                raise CouldNotRun(
                    f"the gateway has no decision record of {missing[0]} ({len(missing)} of {len(wanted)} of this case): it "
                    "keeps the latest 1,000, and other traffic may have pushed them out; evaluate with --policy FILE instead"
                )
            await asyncio.sleep(0.02)

    async def _get(self, path: str, key: str | None, hint: str, parameters: dict[str, str] | None = None) -> Any:
        headers = {"connection": "close"} | ({"authorization": f"Bearer {key}"} if key else {})
        try:
            answer = await self._http.get(path, params=parameters, headers=headers)
            if answer.status_code == 401:
                raise CouldNotRun(f"{self.url}{path}: {hint}")
            answer.raise_for_status()
            return answer.json()
        except (httpx.HTTPError, ValueError) as error:
            raise CouldNotRun(f"{self.url}{path}: {type(error).__name__}: {error}") from None


def _why_not_ready(answer: httpx.Response) -> str:
    """What /readyz says, in a line: its reason, and the replicas that have one of their own."""
    try:
        said = answer.json()
        replicas = [(name, replica) for pool in said["pools"].values() for name, replica in pool["replicas"].items()]
        troubles = [f"{name}: {replica['problem']}" for name, replica in replicas if replica.get("problem")]
        return "; ".join([str(said["reason"]), *troubles])
    except (ValueError, LookupError, TypeError, AttributeError):
        return f"HTTP {answer.status_code}: {answer.text[:500]}"


# ---- a gateway of our own ----


@asynccontextmanager
async def started(policy: Policy, folder: Path, home: Path) -> AsyncIterator[Gateway]:
    """Run `switchyard serve` with this policy while the context lasts; its log and decisions go into the folder.

    Args:
        policy: of the gateway.
        folder: of the run.
        home: where the policy's file is; the paths of its replica files begin there.

    Raises:
        CouldNotRun: it doesn't start.
    """
    api_key, admin_key = secrets.token_urlsafe(24), secrets.token_urlsafe(24)
    file, log = folder / "gateway.yaml", folder / "gateway.log"
    # JSON is YAML; without descriptions, and with its secrets only as names of variables.
    file.write_text(json.dumps(served(policy, folder, home), indent=1))
    began = log.stat().st_size if log.exists() else 0
    command = [sys.executable, "-m", "switchyard", "serve", str(file), "--host", "127.0.0.1", "--port", "0"]
    with log.open("ab") as out:
        process = subprocess.Popen(  # noqa: ASYNC220 (returns at once)
            [sys.executable, "-c", _FOLLOW_PARENT, *command],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            env={**os.environ, _KEYS: api_key, _ADMIN_KEY: admin_key},
            start_new_session=True,  # Ctrl-C is for us; the gateway ends after the last request
        )
    try:
        gateway = Gateway(await _address(process, log, began), api_key, admin_key)
        try:
            yield gateway
        finally:
            await gateway.aclose()
    finally:
        await _stop(process)


def served(policy: Policy, folder: Path, home: Path) -> dict[str, Any]:
    """The policy as it is served from the run's folder: all as its author wrote it, but for `server`; see `started`."""
    written = policy.model_dump(mode="json", by_alias=True, exclude_unset=True)
    kept = {k: v for k, v in written.get("server", {}).items() if k in {"max_body_mb", "session_ttl_s", "log_prompts"}}
    own = {
        "api_keys_env": _KEYS, "admin_key_env": _ADMIN_KEY, "decision_log": str((folder / "decisions.jsonl").resolve()),
        "drain_s": 1,
    }  # fmt: skip
    for name, pool in policy.pools.items():
        if pool.source is not None and pool.source.startswith("file://"):
            written["pools"][name]["replicas"] = f"file://{file_path(pool.source, home.resolve())}"
    return {**written, "server": {**kept, **own}}


async def _address(process: subprocess.Popen[bytes], log: Path, began: int) -> str:
    deadline = time.monotonic() + START_LIMIT_S
    while True:
        said = (await asyncio.to_thread(log.read_bytes))[began:].decode(errors="replace")
        if found := re.search(r"listens on (http://\S+)", said):
            return found[1]
        if process.poll() is not None or time.monotonic() > deadline:
            raise CouldNotRun(f"the gateway did not start; {log} says:\n{said[-2000:].strip()}")
        await asyncio.sleep(0.03)


async def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        await asyncio.to_thread(process.wait, STOP_LIMIT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        await asyncio.to_thread(process.wait)
