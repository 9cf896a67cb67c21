"""A judge that dies, hangs, is slow or talks nonsense, at 100 requests/s: no client sees an error."""

from __future__ import annotations

import asyncio

import httpx

from .engine import CLOSE, HANG, RESET, Engine, reply
from .gateway import Gateway, policy, pool

RATE_PER_S = 100
TROUBLES = (
    [HANG], [RESET], [CLOSE],
    reply({"error": {"message": "x", "type": "t"}}, 500), reply(b"\xff\x00 nonsense"),
    reply({"choices": [{"logprobs": None}]}), reply({"error": {"message": "busy", "type": "t"}}, 429),
    [0.5, *reply({"choices": []})],
)  # fmt: skip


def test_no_client_sees_the_judges_trouble() -> None:
    with Engine("acme/small") as small, Engine("acme/big") as big, Engine("acme/judge") as judge:
        route = {
            "decide_per": "request",
            "classify": [{"type": "model", "pool": "judge", "deadline_ms": 100}],
            "choose": [{"p_at_least": 0.5, "use": "small"}, {"use": "big"}],
            "otherwise": "big",
        }
        pools = {"small": pool(small), "big": pool(big), "judge": pool(judge)}
        with Gateway(policy(pools, {"auto": route})) as gateway:
            outcomes = asyncio.run(_load(gateway.port, judge))
            judge.shut()
            outcomes += asyncio.run(_load(gateway.port, None))
            assert len(outcomes) == len(TROUBLES) * 50 + 100
            assert {status for status, _ in outcomes} == {200}
            assert all(pool_name in {"small", "big"} for _, pool_name in outcomes)
            kinds = {record["decision"]["kind"] for record in gateway.decisions()}
            assert kinds <= {"otherwise", "score"}
            assert "otherwise" in kinds
            degraded = [r for r in gateway.decisions() if r["decision"]["degraded"]]
            assert degraded
            assert all(r["decision"]["pool"] == "big" for r in degraded)


async def _load(port: int, judge: Engine | None) -> list[tuple[int, str]]:
    """Requests at a steady rate, half a second for each trouble."""
    found: list[asyncio.Task[tuple[int, str]]] = []
    async with httpx.AsyncClient(
        base_url=f"http://127.0.0.1:{port}", timeout=20, limits=httpx.Limits(max_connections=200)
    ) as client:

        async def one(number: int) -> tuple[int, str]:
            body = {"model": "auto", "messages": [{"role": "user", "content": f"question number {number}"}]}
            answer = await client.post("/v1/chat/completions", json=body)
            return answer.status_code, answer.headers.get("x-switchyard-pool", "")

        for round_, trouble in enumerate(TROUBLES if judge is not None else [None, None]):
            if judge is not None:
                judge.play(trouble)
            for number in range(50):
                found.append(asyncio.create_task(one(round_ * 1000 + number)))
                await asyncio.sleep(1 / RATE_PER_S)
        return list(await asyncio.gather(*found))
