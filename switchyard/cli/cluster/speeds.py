"""Show the published speeds that predictions rest on, beside what the models make of them.

  switchyard cluster speeds
  switchyard cluster speeds --json

"Measured" is published, by others; "fitted" is the model's with that row among those it was fitted to; "left out" is the
error of the model fitted to all the other rows, which is how wrong it may be about an engine that nobody measured. A row
that alone knows something about its link can't be predicted from the others.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from typing import Any

from switchyard.cli.main import GOOD
from switchyard.cluster.fitting import Check
from switchyard.cluster.published import GLM_53_DECODE, QWEN_27B_DECODE, QWEN_27B_PREFILL, Concurrent, SingleStream
from switchyard.cluster.speed import QWEN_27B, DenseModel, ExpertModel, describe_checks

Table = tuple[str, Sequence[SingleStream | Concurrent], list[Check]]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("--json", action="store_true", help="tables and parameters as JSON")


def run(given: argparse.Namespace) -> int:
    """Show them."""
    dense, experts = DenseModel(), ExpertModel()
    tables: list[Table] = [
        (f"{QWEN_27B.name}: decode, one request, 8,192 tokens in, 256 out", QWEN_27B_DECODE, dense.check_decode()),
        (f"{QWEN_27B.name}: prefill of 8,192 tokens", QWEN_27B_PREFILL, dense.check_prefill()),
        ("GLM 5.3 NVFP4 on eight nodes: decode, total of all requests", GLM_53_DECODE, experts.check()),
    ]
    if given.json:
        parameters = {"decode_s": dense.decode, "prefill_s": dense.prefill, "experts_s": experts.parameters}
        print(json.dumps({"tables": [_as_dict(*table) for table in tables], "parameters": parameters}, indent=2))
        return GOOD
    for title, rows, checks in tables:
        print(title)
        print("\n".join(describe_checks(rows, checks)), end="\n\n")
    return GOOD


def _as_dict(title: str, rows: Sequence[SingleStream | Concurrent], checks: list[Check]) -> dict[str, Any]:
    def keys(row: SingleStream | Concurrent) -> dict[str, Any]:
        return {"requests": row.requests} if isinstance(row, Concurrent) else {"nodes": row.nodes, "link": row.link}

    found = [
        {
            **keys(row), "measured_tokens_s": check.measured, "fitted_tokens_s": round(check.fitted, 3),
            "error": round(check.error, 5),
            "left_out_error": None if check.left_out_error is None else round(check.left_out_error, 5),
        }
        for row, check in zip(rows, checks, strict=True)
    ]  # fmt: skip
    return {"title": title, "rows": found}
