"""The suite `tool-use`: the scenarios of tool-eval-bench, each a conversation with mock tools and a deterministic grader.

The package (extra `eval`, pinned: scores are comparable within one version only) makes the requests and grades; here its
client is replaced by the conversation's, so that requests are labelled and kept. It leaves failures of the infrastructure out
of its score; here they are failures.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from switchyard.evals.conversation import Conversation
from switchyard.evals.suite import BadSuite, Case, Graded

if TYPE_CHECKING:
    from tool_eval_bench.domain.scenarios import ScenarioDefinition, ScenarioResult

PUBLISHED = 92
"""TC-01 to TC-92: what published results were made with; the package has gained more since."""

MAX_TURNS = 8  # the package's own default, which published scores were made with


class ToolUse:
    """See the module.

    Raises:
        BadSuite: the package is missing.
    """

    name = "tool-use"

    def __init__(self) -> None:
        if importlib.util.find_spec("tool_eval_bench") is None:
            raise BadSuite("tool-eval-bench is missing: pip install 'switchyard-gateway[eval]'")
        from tool_eval_bench import __version__
        from tool_eval_bench.domain.scenarios import CATEGORY_LABELS
        from tool_eval_bench.evals.scenarios import ALL_SCENARIOS_WITH_HARDMODE

        self.version = f"tool-eval-bench {__version__}"
        self._scenarios: dict[str, ScenarioDefinition] = {s.id: s for s in ALL_SCENARIOS_WITH_HARDMODE}
        self.cases: Sequence[Case] = [
            Case(s.id, f"{s.category.value} {CATEGORY_LABELS[s.category]}") for s in self._scenarios.values()
        ]
        self.default: Sequence[Case] = self.cases[:PUBLISHED]

    async def attempt(self, case: Case, conversation: Conversation) -> Graded:
        """Hold the scenario's conversation and grade it."""
        from tool_eval_bench.adapters.openai_compat import OpenAICompatibleAdapter
        from tool_eval_bench.runner.orchestrator import run_scenario

        class Adapter(OpenAICompatibleAdapter):
            def _get_client(self) -> Any:
                return conversation.http

        settings = dict(conversation.settings)
        result = await run_scenario(
            Adapter(),
            model=conversation.model,
            base_url=conversation.base_url,
            api_key=None,  # the conversation shows the key
            scenario=self._scenarios[case.id],
            max_turns=MAX_TURNS,
            timeout_seconds=conversation.timeout_s,
            temperature=settings.pop("temperature", 0.0),
            seed=settings.pop("seed", None),
            extra_params=settings or None,
        )
        return grade(result)


def grade(result: ScenarioResult) -> Graded:
    """What the package says about a scenario, in our states."""
    from tool_eval_bench.domain.scenarios import INFRASTRUCTURE_FAILURE_KINDS, FailureKind

    detail = result.summary if not result.note else f"{result.summary} {result.note}"
    more = {
        "failure_kind": result.failure_kind, "points": result.points, "turns": result.turn_count,
        "tool_calls": result.tool_calls_made, "safety_violation": result.safety_violation, "log": result.raw_log,
    }  # fmt: skip
    if result.failure_kind in INFRASTRUCTURE_FAILURE_KINDS:
        return Graded("error", 0.0, detail, more)
    if result.failure_kind == FailureKind.EVALUATOR_ERROR:
        return Graded("unscored", 0.0, detail, more)
    return Graded(result.status.value, result.points / 2, detail, more)
