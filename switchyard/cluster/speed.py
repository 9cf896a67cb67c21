"""How fast an engine is: models fitted to what was published, or a user's own measurements. Pure.

Three formulas, each linear in its parameters, so that least squares over the published rows finds them:

- decode, dense model, one request: `t(n) = A/n + S + K c(n)`: weights read in n parts, what doesn't divide, and K
  all-reduces of (n-1) hops, twice that on a ring;
- prefill: `t(n) = F/n + S' + V 2(n-1)/n / B`: arithmetic in n parts, what doesn't divide, and the volume V over links of
  bandwidth B;
- decode, mixture of experts, c requests: `t(c) = s + d (1 - (1 - k/E)^(4c))`: the share of all experts that a step touches.

"Total" and "per user" tokens a second are different quantities; nothing here turns one into the other.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from switchyard.cluster.fitting import Check, Terms, fit, predict_left_out, value_of
from switchyard.cluster.published import (
    GLM_53_DECODE,
    PROMPT_TOKENS,
    QWEN_27B_DECODE,
    QWEN_27B_PREFILL,
    Concurrent,
    Link,
    SingleStream,
)

Origin = Literal["measured", "fitted", "scaled"]
"""Measured by the user; made by a model fitted to this very engine; or that model scaled to another one."""

PREFILL_FIXED_S = 0.57
"""S' of the prefill formula at 8,192 tokens. Assumed: since (n-1)/n = 1 - 1/n, no table over n can tell it from F and B."""
POSITIONS_A_STEP = 4
"""Positions that a GLM 5.3 request puts into a step; 4 is what the published figures show."""
SAMPLED_REQUESTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)


@dataclass(frozen=True, slots=True)
class Shape:
    """What a dense model's speed depends on.

    Attributes:
        name: for people.
        read_gib: weights that one decode step reads, over all ranks.
        active_b: parameters a token passes through, in billions.
        layers: each has two all-reduces; the output one more.
        hidden: width of what is reduced, in two-byte elements.
    """

    name: str
    read_gib: float
    active_b: float
    layers: int
    hidden: int

    @property
    def all_reduces(self) -> int:
        """In one step."""
        return 2 * self.layers + 1

    @property
    def prefill_gb(self) -> float:
        """What a rank reduces in a prefill of 8,192 tokens, in 1e9 bytes."""
        return self.all_reduces * PROMPT_TOKENS * self.hidden * 2 / 1e9


QWEN_27B = Shape("Qwen3.8-27B NVFP4", read_gib=22.2, active_b=27, layers=64, hidden=5120)
"""The engine that the dense model is fitted to."""


@dataclass(frozen=True, slots=True)
class EngineSpeed:
    """One engine's speed, as planning, emulation and simulation use it.

    Attributes:
        steps: requests running at once, and the seconds of one decode step with so many; rising, at least one.
        prefill_tokens_s: prompt tokens a second.
        origin: where the figures are from.
        note: the same for people, with the error where there is one.
    """

    steps: tuple[tuple[int, float], ...]
    prefill_tokens_s: float
    origin: Origin
    note: str

    def step_s(self, running: int) -> float:
        """Seconds of a step in which each of `running` (at least 1) requests gets a token.

        Straight lines between the known points; beyond the last one its line goes on. Of a single point it is only known
        that a token more costs at most what prefilling one does.
        """
        points = self.steps
        if running <= points[0][0]:
            return points[0][1]
        for (low, low_s), (high, high_s) in itertools.pairwise(points):
            if running <= high:
                return low_s + (high_s - low_s) * (running - low) / (high - low)
        last, last_s = points[-1]
        slope = 1 / self.prefill_tokens_s
        if len(points) > 1:
            slope = max(0.0, (last_s - points[-2][1]) / (last - points[-2][0]))
        return last_s + slope * (running - last)

    def prefill_s(self, tokens: int) -> float:
        """Seconds that `tokens` new prompt tokens take; beside them the step's own time passes."""
        return tokens / self.prefill_tokens_s

    def decode_tokens_s(self, running: int = 1) -> float:
        """Generated tokens a second, of all `running` requests together."""
        return running / self.step_s(running)

    def requests_s(self, running: int, prompt_tokens: float, answer_tokens: float, cached_share: float = 0.0) -> float:
        """Requests a second when `running` places are never empty: what throughput is limited by.

        Args:
            running: places of the engine that work at once.
            prompt_tokens: mean of a request's prompt.
            answer_tokens: mean of its answer.
            cached_share: share (0..1) of prompt tokens that the prefix cache has.
        """
        prefill_s = prompt_tokens * (1 - cached_share) / self.prefill_tokens_s
        return 1 / (prefill_s + (answer_tokens - 1) * self.step_s(running) / running)  # the first token comes with the prefill


def measured_speed(decode_tokens_s: Mapping[int, float], prefill_tokens_s: float) -> EngineSpeed:
    """A user's own figures.

    Args:
        decode_tokens_s: *total* generated tokens a second, by the requests that ran at once; at least one entry.
        prefill_tokens_s: prompt tokens a second.
    """
    steps = tuple((c, c / tokens_s) for c, tokens_s in sorted(decode_tokens_s.items()))
    return EngineSpeed(steps, prefill_tokens_s, "measured", "measured by you")


class DenseModel:
    """The decode and prefill formulas with parameters found from measured rows.

    Args:
        shape: of the measured model.
        decode: measured rows.
        prefill: measured rows, of 8,192 tokens.
    """

    def __init__(
        self,
        shape: Shape = QWEN_27B,
        decode: Sequence[SingleStream] = QWEN_27B_DECODE,
        prefill: Sequence[SingleStream] = QWEN_27B_PREFILL,
    ) -> None:
        self.shape = shape
        self._decode_rows, self._prefill_rows = decode, prefill
        self.decode = fit([_decode_terms(shape, r.nodes, r.link) for r in decode], [1 / r.tokens_s for r in decode])
        self.prefill = fit([_prefill_terms(shape, r.nodes, r.link) for r in prefill], self._prefill_times())

    def _prefill_times(self) -> list[float]:
        return [PROMPT_TOKENS / r.tokens_s - PREFILL_FIXED_S for r in self._prefill_rows]

    def decode_tokens_s(self, nodes: int, link: Link) -> float:
        """Of one request alone.

        Raises:
            Undetermined: nothing measured tells about this link.
        """
        return 1 / value_of(_decode_terms(self.shape, nodes, link), self.decode)

    def prefill_tokens_s(self, nodes: int, link: Link) -> float:
        """Of one prompt of 8,192 tokens.

        Raises:
            Undetermined: nothing measured tells about this link.
        """
        return PROMPT_TOKENS / (value_of(_prefill_terms(self.shape, nodes, link), self.prefill) + PREFILL_FIXED_S)

    def speed(self, nodes: int, link: Link, shape: Shape | None = None) -> EngineSpeed:
        """An engine of the measured model, or of another one by scaling: bytes read, arithmetic, layers, width.

        A request more in a step adds what prefilling one token costs.

        Raises:
            Undetermined: nothing measured tells about this link.
        """
        of = shape or self.shape
        layers = of.layers / self.shape.layers
        decode = dict(self.decode)
        decode["weights"] *= of.read_gib / self.shape.read_gib
        decode["fixed"] *= layers
        prefill = {**self.prefill, "arithmetic": self.prefill["arithmetic"] * of.active_b / self.shape.active_b}
        first_s = value_of(_decode_terms(of, nodes, link), decode)
        prompt_s = value_of(_prefill_terms(of, nodes, link), prefill) + PREFILL_FIXED_S * layers
        rate = PROMPT_TOKENS / prompt_s
        worst = max(abs(c.error) for c in self.check_decode())
        if of == self.shape:
            return EngineSpeed(
                ((1, first_s),), rate, "fitted", f"fitted to published figures of this model (within {worst:.1%})"
            )
        note = f"scaled from {self.shape.name} by bytes, parameters and layers: no measurement of this model, measure yours"
        return EngineSpeed(((1, first_s),), rate, "scaled", note)

    def check_decode(self) -> list[Check]:
        """Each measured row beside the model, in tokens a second."""
        terms = [_decode_terms(self.shape, r.nodes, r.link) for r in self._decode_rows]
        times = [1 / r.tokens_s for r in self._decode_rows]
        left_out = predict_left_out(terms, times)
        return [
            Check(r.tokens_s, self.decode_tokens_s(r.nodes, r.link), None if t is None else 1 / t)
            for r, t in zip(self._decode_rows, left_out, strict=True)
        ]

    def check_prefill(self) -> list[Check]:
        """Each measured row beside the model, in tokens a second."""
        terms = [_prefill_terms(self.shape, r.nodes, r.link) for r in self._prefill_rows]
        left_out = predict_left_out(terms, self._prefill_times())
        return [
            Check(
                r.tokens_s,
                self.prefill_tokens_s(r.nodes, r.link),
                None if t is None else PROMPT_TOKENS / (t + PREFILL_FIXED_S),
            )
            for r, t in zip(self._prefill_rows, left_out, strict=True)
        ]


def describe_checks(rows: Sequence[SingleStream | Concurrent], checks: Sequence[Check]) -> Iterator[str]:
    """A table for people: what was measured, what the model says, and what it says without having seen the row."""
    yield f"{'tokens/s':<28} {'measured':>9} {'fitted':>9} {'error':>7} {'left out':>9}"
    for row, check in zip(rows, checks, strict=True):
        if isinstance(row, Concurrent):
            label = f"{row.requests} request{'s' if row.requests > 1 else ''}, in all"
        else:
            label = f"{row.nodes} node{'s' if row.nodes > 1 else ''}" + (f", {row.link}" if row.nodes > 1 else "")
        unseen = "-" if check.left_out_error is None else f"{check.left_out_error:+.1%}"
        yield f"{label:<28} {check.measured:>9,.2f} {check.fitted:>9,.2f} {check.error:>+7.1%} {unseen:>9}"


class ExpertModel:
    """The decode formula of a mixture of experts with parameters found from measured rows.

    Args:
        experts: in a layer.
        chosen: experts that a token uses.
        rows: measured, on one and the same engine.
    """

    def __init__(self, experts: int = 256, chosen: int = 8, rows: Sequence[Concurrent] = GLM_53_DECODE) -> None:
        self._idle_share = 1 - chosen / experts
        self._rows = rows
        self.parameters = fit([self._terms(r.requests) for r in rows], [r.requests / r.total_tokens_s for r in rows])

    def _terms(self, requests: int) -> Terms:
        return {"fixed": 1.0, "experts": 1 - self._idle_share ** (POSITIONS_A_STEP * requests)}

    def step_s(self, requests: int) -> float:
        """Seconds in which each of the requests gets one token."""
        return value_of(self._terms(requests), self.parameters)

    def total_tokens_s(self, requests: int) -> float:
        """Generated tokens a second, of all requests together."""
        return requests / self.step_s(requests)

    def speed(self, prefill_tokens_s: float) -> EngineSpeed:
        """The measured engine; its prefill was not published, so it must be given."""
        worst = max(abs(c.error) for c in self.check())
        steps = tuple((c, self.step_s(c)) for c in SAMPLED_REQUESTS)
        return EngineSpeed(steps, prefill_tokens_s, "fitted", f"fitted to published figures of this model (within {worst:.1%})")

    def check(self) -> list[Check]:
        """Each measured row beside the model, in tokens a second of all requests together."""
        left_out = predict_left_out(
            [self._terms(r.requests) for r in self._rows], [r.requests / r.total_tokens_s for r in self._rows]
        )
        return [
            Check(r.total_tokens_s, self.total_tokens_s(r.requests), None if t is None else r.requests / t)
            for r, t in zip(self._rows, left_out, strict=True)
        ]


def _decode_terms(shape: Shape, nodes: int, link: Link) -> Terms:
    terms = {"weights": 1 / nodes, "fixed": 1.0}
    if nodes > 1:
        kind = "ring" if link == "direct" else link  # a cable between two is the smallest ring
        ways = 1 if link == "switch+rocenante" else 2
        terms[f"hop, {kind}"] = float(shape.all_reduces * ways * (nodes - 1))
    return terms


def _prefill_terms(shape: Shape, nodes: int, link: Link) -> Terms:
    terms = {"arithmetic": 1 / nodes}
    if nodes > 1:
        # RoCEnante takes small messages only. Two nodes reached less of their link than more nodes did, whatever joins them.
        kind = "direct" if nodes == 2 else link.removesuffix("+rocenante")
        terms[f"seconds a GB, {kind}"] = shape.prefill_gb * 2 * (nodes - 1) / nodes
    return terms
