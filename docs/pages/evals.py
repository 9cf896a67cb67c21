"""What `switchyard eval` runs, keeps and reports."""

from __future__ import annotations

import re

from pages.markdown import codes, doc, fill, item, page
from switchyard.evals.arms import ARMS
from switchyard.evals.folder import FORMAT, Finished
from switchyard.evals.suites import SUITES
from switchyard.evals.verdict import STATES


def evals_page() -> str:
    """What `switchyard eval` runs, keeps and reports."""
    fields = re.findall(r"^ {4}(\w+): (.+(?:\n {8}.+)*)", doc(Finished).partition("Attributes:")[2], re.MULTILINE)
    if [name for name, _ in fields] != list(Finished.__struct_fields__):
        raise ValueError("the docstring of Finished doesn't describe its fields")
    return page(
        "Evals",
        fill(
            "What `switchyard eval` runs, keeps and reports. Its flags are in [the command line](cli.md#eval); a walk "
            "through is [Prove that quality held](../how-to/prove-quality.md). Suites: "
            f"{codes(list(SUITES))}; their formats and graders are in [evals/](../../evals/README.md)."
        ),
        "## Arms",
        "\n".join(item(f"**`{name}`** - {what}.") for name, what in ARMS.items()),
        fill(
            "They run in this order, each with `--concurrency` cases at a time. `random` needs `routed`, `big-again` needs "
            "`big`; the verdict needs `big` and `routed`. `random` sends as many trials to the big pool as come nearest to "
            "the routed arm's share, drawn by `--seed`."
        ),
        "## States of a trial",
        "\n".join(item(f"**`{name}`** - {meaning}.") for name, meaning in STATES.items()),
        fill("When the gateway itself goes away, the run ends with exit code 3; trials that were under way are not kept."),
        "## The run's folder",
        "\n".join(
            [
                item("`run.json` - what is run: `suite` and its `version`, `cases`, `arms`, `trials`, `margin` (a "
                     "proportion), `names` (route, big, small), `policy` and `policy_hash` (SHA-256 of the file), "
                     "`fingerprint` (of the route, as in `evaluated`), `chosen_on_suite` (whether `calibrate` found the "
                     "thresholds on this suite), `settings`, `seed`, `weights`, `concurrency`, `gateway`, `started`, `run_id`, "
                     f"`switchyard`, and `format`, now {FORMAT}."),
                item("`cases.jsonl` - a line for each finished trial."),
                item("`raw/ARM/CASE.TRIAL.json.gz` - its requests and answers, and what the grader kept. Prompts and answers "
                     "stand there in full; keys don't."),
                item("`report.html`, `report.md`, `report.json` - the report."),
                item("`gateway.yaml`, `gateway.log`, `decisions.jsonl` - with `--policy`: what was served, and the gateway's "
                     "own logs."),
            ]
        ),
        fill("A line of `cases.jsonl`:"),
        "\n".join(item(f"**`{name}`** - {meaning}") for name, meaning in fields),
        fill(
            "Each request has an id of its own (`x-request-id`), which its [decision "
            "record](../how-to/read-decisions.md#a-record) repeats as `client_request_id`. A trial is kept only with a record "
            "for every request that the gateway took; when one is missing, the run ends with exit code 3."
        ),
        "## report.json",
        fill(
            "`verdict` (`word`, `margin_points`, `why`; `settled_by` and `settled_as_seen` in cases), `comparison` (routed "
            "against big), `noise_floor`, `small`, `against_random`, `advantage` (over chance at the same share), `arms`, "
            "`categories`, `curve`, `cautions`, `problems`, `complete`. Rates, shares and scores are proportions; what ends in "
            "`_points` is in percentage points; intervals are two-sided, 90 %. An entry is null where its arms did not run."
        ),
    )  # fmt: skip
