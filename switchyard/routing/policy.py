"""The decision itself: policy + signals + score + a view of the pools give a pool. Pure: no clock, no network, no state.

Read from top to bottom it is the order of the questions: can a pool serve this at all, do facts settle it, did the
session settle it already, what does the score say.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
from msgspec.structs import replace

from switchyard.config.route import Route
from switchyard.errors import ContextOverflow, InvalidRequest, NotCapable, UnknownPath
from switchyard.routing.decision import Decision, Outcome, PoolView
from switchyard.routing.rules import describe, matches, turns_to_hold
from switchyard.routing.signals import Signals

SURE_OVERFLOW = 4
"""Prompts whose estimate is this many times a pool's context are refused by us; closer calls are the engine's to make."""


class Candidates(msgspec.Struct, frozen=True):
    """The pools of a route that can serve the request.

    Attributes:
        pools: their names, from small to big.
        excluded: reasons for the others, for people.
    """

    pools: tuple[str, ...]
    excluded: tuple[str, ...] = ()


def find_candidates(names: Sequence[str], pools: Mapping[str, PoolView], signals: Signals) -> Candidates:
    """Keep the pools that can serve the request.

    Raises:
        UnknownPath: none speaks the protocol.
        NotCapable: none takes images, audio, tools or structured output that the request has.
        ContextOverflow: the prompt is surely too long for all of them.
    """
    serving = [n for n in names if _serves(pools[n], signals)]
    if len(serving) == len(names):
        return Candidates(tuple(serving))
    excluded: list[str] = []
    speaking = [n for n in names if pools[n].speaks(signals.protocol)]
    if not speaking:
        raise UnknownPath(f"no pool of this model speaks {signals.protocol} ({', '.join(names)}); ask another model")
    excluded += [f"{n} doesn't speak {signals.protocol}" for n in names if n not in speaking]
    able = [n for n in speaking if not _lacks(pools[n], signals)]
    if not able:  # a pool whose policy doesn't say what it takes is asked when nobody else can
        able = [n for n in speaking if not pools[n].declares]
    if not able:
        lacking = "; ".join(f"pool {n} doesn't take {' or '.join(_lacks(pools[n], signals))}" for n in speaking)
        raise NotCapable(f"no pool can serve this request: {lacking}. Leave that out, or ask a model that takes it")
    excluded += [f"{n} doesn't take {' or '.join(_lacks(pools[n], signals))}" for n in speaking if n not in able]
    fitting = [n for n in able if _fits(pools[n], signals)]
    if fitting:
        excluded += [f"{n} holds {pools[n].context_tokens} tokens" for n in able if n not in fitting]
        return Candidates(tuple(fitting), tuple(excluded))
    longest = max(able, key=lambda n: pools[n].context_tokens or 0)
    holds = pools[longest].context_tokens or 0
    tokens, counted = signals.prompt_tokens_for(longest), longest in signals.counted
    if tokens > holds * (1 if counted else SURE_OVERFLOW):
        raise ContextOverflow(
            f"prompt is too long: {'' if counted else 'about '}{tokens} tokens ({'counted' if counted else 'estimated'}), and "
            f"the longest pool, {longest}, has a context length of {holds} tokens. Shorten the conversation"
        )
    # The estimate may be wrong by half: the engine that holds most has the last word.
    return Candidates((longest,), (*excluded, f"about {tokens} prompt tokens: only {longest} may hold them"))


def _serves(pool: PoolView, signals: Signals) -> bool:
    if not pool.speaks(signals.protocol):
        return False
    for need in pool.refuses:
        if getattr(signals, need):
            return False
    return pool.context_tokens is None or _fits(pool, signals)


def _lacks(pool: PoolView, signals: Signals) -> list[str]:
    return [need.replace("_", " ") for need in pool.refuses if signals.get(need)]


def _fits(pool: PoolView, signals: Signals) -> bool:
    if pool.context_tokens is None:
        return True
    wanted = 1 if pool.clamps else signals.max_output_tokens
    return signals.prompt_tokens_for(pool.name) + wanted <= pool.context_tokens


def worth_counting(pool: PoolView, signals: Signals) -> bool:
    """Whether the estimate leaves open if the prompt fits: a tokenizer's count then settles it."""
    if pool.context_tokens is None or signals.view.counting:
        return signals.view.counting
    wanted = 1 if pool.clamps else signals.max_output_tokens
    most = SURE_OVERFLOW * signals.prompt_tokens + wanted
    return most > pool.context_tokens and signals.prompt_tokens <= SURE_OVERFLOW * pool.context_tokens


def decide_by_facts(name: str, route: Route, candidates: Candidates, signals: Signals) -> Decision | None:
    """What header, capability and rules settle without a score; None when they leave it open.

    Raises:
        InvalidRequest: the client names a pool in `x-switchyard-pool` that the route doesn't have.
    """
    asked = signals.view.headers.get("x-switchyard-pool")
    if asked and asked not in candidates.pools:
        who = f"route {name}" if name else "this model"
        raise InvalidRequest(
            f"x-switchyard-pool asks for {asked[:64]}; for this request {who} can use {', '.join(candidates.pools)}"
        )
    if route.use is not None:
        why = f"route {name} always uses {route.use}" if name else "the client asks for this pool by name"
        return Decision(name, route.use, (), "named", (why,))
    if asked:
        return Decision(name, asked, (), "asked", ("the client asks for this pool",))
    for rule in route.rules:
        if rule.use in candidates.pools and matches(rule, signals):
            fallbacks = _fallbacks(rule.use, route, candidates)
            return Decision(
                name, rule.use, fallbacks, "rule", (f"rule: {describe(rule, signals)}",), hold_turns=turns_to_hold(rule)
            )
    if len(candidates.pools) == 1:
        why = "; ".join(candidates.excluded) or "the route has no other pool"
        return Decision(name, candidates.pools[0], (), "only", (f"only this pool can: {why}",))
    return None


def decide_by_score(name: str, route: Route, candidates: Candidates, outcomes: Sequence[Outcome]) -> Decision:
    """From what the classifiers said (in the order asked) to a pool."""
    degraded = any(o.failed for o in outcomes)
    notes = tuple(f"{o.by}: {o.why}" for o in outcomes if o.p is None)
    scored = next((o for o in outcomes if o.p is not None), None)
    if scored is None or scored.p is None:
        pool = nearest_capable(route.default_pool, route, candidates)
        why = f"otherwise: {notes[0]}" if notes else "otherwise: the route has no classifier"
        return Decision(name, pool, _fallbacks(pool, route, candidates), "otherwise", (why, *notes[1:]), degraded=degraded)
    for step in route.choose:
        if step.use in candidates.pools and (step.p_at_least is None or scored.p >= step.p_at_least):
            limit = f" >= {step.p_at_least}" if step.p_at_least is not None else _below(route, candidates, scored.p)
            return Decision(
                name, step.use, _fallbacks(step.use, route, candidates), "score",
                (f"p {_shown(scored.p, route)}{limit} by {scored.by}", *notes),
                scored.p, scored.by, degraded, raw_p=scored.raw_p,
            )  # fmt: skip
    pool = nearest_capable(route.default_pool, route, candidates)
    reason = f"otherwise: p {_shown(scored.p, route)} by {scored.by} reaches no threshold"
    return Decision(
        name, pool, _fallbacks(pool, route, candidates), "otherwise", (reason, *notes), scored.p, scored.by, degraded,
        raw_p=scored.raw_p,
    )  # fmt: skip


def keep_session(decision: Decision, held: str | None, candidates: Candidates) -> Decision:
    """Inside a session the pool only goes up: a switch down would throw away its prefix cache."""
    if held is None or held == decision.pool or held not in candidates.pools or decision.kind not in {"score", "otherwise"}:
        return decision
    if candidates.pools.index(held) < candidates.pools.index(decision.pool):
        return decision
    reasons = (f"the session is on {held} and only goes up", *decision.reasons)
    return replace(decision, pool=held, fallbacks=larger(held, candidates.pools), kind="held", reasons=reasons)


def hold(name: str, route: Route, pool: str, why: str, candidates: Candidates) -> Decision:
    """The decision that the session made before."""
    return Decision(name, pool, _fallbacks(pool, route, candidates), "held", (why,))


def _fallbacks(pool: str, route: Route, candidates: Candidates) -> tuple[str, ...]:
    """The larger pools that can serve the request. Only `choose` says which pool is larger than which."""
    return larger(pool, [step.use for step in route.choose if step.use in candidates.pools])


def larger(pool: str, pools: Sequence[str]) -> tuple[str, ...]:
    """The pools above this one: where a request goes when no replica of its own can be reached. Never a smaller one."""
    return tuple(pools[pools.index(pool) + 1 :]) if pool in pools else ()


def nearest_capable(wanted: str, route: Route, candidates: Candidates) -> str:
    """The wanted pool, else the next larger one that can serve the request, else the largest that can."""
    if wanted in candidates.pools:
        return wanted
    order = route.pools
    after = [p for p in order[order.index(wanted) :] if p in candidates.pools] if wanted in order else []
    return after[0] if after else candidates.pools[-1]


def _below(route: Route, candidates: Candidates, p: float) -> str:
    limits = [s.p_at_least for s in route.choose if s.p_at_least is not None and s.use in candidates.pools and p < s.p_at_least]
    return f" < {min(limits)}" if limits else ""


def _shown(p: float, route: Route) -> str:
    """P with two digits, or as many as it takes to be on the right side of every threshold."""
    limits = [step.p_at_least for step in route.choose if step.p_at_least is not None]
    texts = (f"{p:.{digits}f}" for digits in range(2, 8))
    return next((text for text in texts if all((float(text) >= limit) == (p >= limit) for limit in limits)), str(p))
