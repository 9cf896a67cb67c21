"""A head of the user's own for the embedded classifier, learned from graded prompts; needs the extra `train`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from importlib.util import find_spec

from switchyard.calibration.labels import Graded
from switchyard.routing.classify.embedded import NAME
from switchyard.routing.classify.reading import Reading
from switchyard.routing.classify.scope import LONGEST, too_few_known
from switchyard.routing.classify.scorer import Scorer, Weights

LEAST_PROMPTS = 500


class CannotLearn(Exception):
    """No head can be learned; the message says what is missing."""


def learn_head(rows: Sequence[Graded], source: str) -> tuple[Weights, list[Graded]]:
    """Learn from all rows that have a text.

    Args:
        rows: graded prompts.
        source: where they come from, for the head of the file.

    Returns:
        The weights, and the rows with the scores that models give which had not seen them (nor prompts that share a passage
        with them), so that a curve over them tells of new prompts. Rows about which the head would be silent have none.

    Raises:
        CannotLearn: a library is missing, or there are too few prompts.
    """
    if missing := [name for name in ("numpy", "scipy", "sklearn") if find_spec(name) is None]:
        raise CannotLearn(f"learning needs {', '.join(missing)}: pip install 'switchyard-gateway[train]'")
    from msgspec import structs

    from switchyard.calibration import recipe

    texts = [(row.text or "").strip()[:LONGEST] for row in rows]
    kept = [i for i, text in enumerate(texts) if text]
    if len(kept) < LEAST_PROMPTS:
        raise CannotLearn(
            f"{len(kept)} of {len(rows)} graded requests have their prompt's text; a head needs at least {LEAST_PROMPTS}. "
            "An eval's run has none, and a decision log only with server.log_prompts"
        )
    examples = [recipe.Row("own", "", texts[i], rows[i].small_ok, rows[i].big_ok) for i in kept]
    if (
        len({row.big_ok and not row.small_ok for row in examples}) < 2
        or len({row.small_ok and not row.big_ok for row in examples}) < 2
    ):
        raise CannotLearn("a head needs prompts that only the big pool answered well, and some that only the small one did")
    groups = recipe.group_prompts([row.prompt for row in examples])
    about = {"what": "a head of one's own for Switchyard's embedded classifier", "data": f"{len(kept)} prompts of {source}"}
    learned = recipe.learn(examples, groups, about=about)
    weights = structs.replace(learned.weights, scope="own")
    scorer = Scorer(weights)
    scored = [replace(row, p=None, by="") for row in rows]
    for i, p in zip(kept, learned.unseen_p, strict=True):
        reading = Reading(texts[i])
        if not too_few_known(reading, scorer.look_up(reading)):
            scored[i] = replace(rows[i], p=p, by=NAME)
    return weights, scored
