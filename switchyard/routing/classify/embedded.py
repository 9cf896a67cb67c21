"""The classifier inside the process: a small trained model, and the courage to say nothing.

It was learned from questions with one short answer that two real models were asked (`tools/train_embedded/`), so it speaks
about such questions only. `reading.py` turns a text into words and numbers, `scorer.py` into p, and `scope.py` names the
reason to abstain. How well it does is docs/explanation/routing-quality.md.
"""

from __future__ import annotations

from switchyard.routing.classify.base import scored
from switchyard.routing.classify.reading import Reading, has_choices
from switchyard.routing.classify.scope import (
    CODE,
    LONGEST,
    NO_QUESTION,
    TOO_LONG,
    UNKNOWN_WORDS,
    WORK,
    has_code,
    leans,
    too_few_known,
    trivial,
    why_not,
)
from switchyard.routing.classify.scorer import Scorer
from switchyard.routing.classify.stats import Abstention, AskStats
from switchyard.routing.decision import Outcome
from switchyard.routing.signals import BYTES_PER_TOKEN, Signals

NAME = "embedded"
MOST_CODE = 0.2  # share of lines
MOST_ELSEWHERE = 2_000  # bytes of prompt besides the text, as a short system message has
NO_TEXT = "no text by a human to look at"
TOOLS = "tools are offered; nothing was learned about such turns"
ELSEWHERE = "most of the prompt is not in the last message"
LEANS = "it leans on what was said before"
REASONS: dict[str, Abstention] = {
    NO_TEXT: "no_text", TOOLS: "tools", ELSEWHERE: "long_prompt", TOO_LONG: "long_text", CODE: "code", WORK: "work",
    NO_QUESTION: "no_question", UNKNOWN_WORDS: "unknown_words", LEANS: "leans",
}  # fmt: skip
"""Why it says nothing, as a metric's label."""
TRIVIAL_P = 0.9  # a prior, set by hand and not learned: thanks, greetings and asks of a few words may go small


class EmbeddedClassifier:
    """The trained model where it was shown to hold, a prior for trivial asks, and otherwise nothing.

    A head of the user's own (`switchyard calibrate --train`) was learned from the user's own traffic: it speaks about every
    text whose words it knows, and needs no prior.

    Args:
        scorer: what was learned.
        bias: added to the logit of the score, as calibration found it.
        scale: the logit is multiplied by it before.
    """

    def __init__(self, scorer: Scorer, bias: float = 0.0, scale: float = 1.0) -> None:
        self.scorer = scorer
        self._bias = bias
        self._scale = scale
        self.stats = AskStats()

    async def score(self, signals: Signals) -> Outcome:
        """p, or why there is none."""
        outcome = self._read_own(signals) if self.scorer.weights.scope == "own" else self._read(signals)
        if outcome.p is None:
            self.stats.abstained[REASONS[outcome.why]] += 1
            return outcome
        return scored(NAME, outcome.p, self._bias, self._scale, outcome.why)

    def _read_own(self, signals: Signals) -> Outcome:
        text = signals.last_human_text[:LONGEST]
        if not text:
            return Outcome(NAME, why=NO_TEXT)
        reading = Reading(text)
        sums = self.scorer.look_up(reading)
        if too_few_known(reading, sums):
            return Outcome(NAME, why=UNKNOWN_WORDS)
        return Outcome(NAME, self.scorer.p(reading, sums), "learned from your own prompts")

    def _read(self, signals: Signals) -> Outcome:
        """The reasons to abstain that cost least are looked at first."""
        text = signals.last_human_text
        if not text:
            return Outcome(NAME, why=NO_TEXT)
        if trivial(text):
            return Outcome(NAME, TRIVIAL_P, "a prior for trivial asks")
        if signals.tools:
            return Outcome(NAME, why=TOOLS)
        if len(text) > LONGEST:  # before the next: of a very long text only the beginning is known
            return Outcome(NAME, why=TOO_LONG)
        if signals.prompt_tokens * BYTES_PER_TOKEN > MOST_ELSEWHERE + 2 * len(text):
            return Outcome(NAME, why=ELSEWHERE)
        if not has_choices(text) and has_code(text):
            return Outcome(NAME, why=CODE)
        reading = Reading(text)
        if why := why_not(text, reading):
            return Outcome(NAME, why=why)
        sums = self.scorer.look_up(reading)
        if too_few_known(reading, sums):
            return Outcome(NAME, why=UNKNOWN_WORDS)
        if signals.code_share > MOST_CODE:
            return Outcome(NAME, why=CODE)
        if signals.turns > 1 and leans(reading):
            return Outcome(NAME, why=LEANS)
        return Outcome(NAME, self.scorer.p(reading, sums), "learned from questions with short answers")
