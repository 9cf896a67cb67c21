"""Measure prefill and decode of a gateway or an engine, at 1, 4 and 8 requests at once.

  switchyard bench http://127.0.0.1:4000 --model qwen --direct http://10.0.0.1:8000
  switchyard bench http://10.0.0.1:8000 --prompt-tokens 8192 --answer-tokens 256 --json

Figures are llama-benchy's: *total* is a whole batch's tokens over the time it took, *per user* each request's own speed; the
two are different quantities. Prompts are new each time, so prefix caches don't help; tokens are counted by the engine.
With --direct, an engine behind the gateway is measured in the same run, without it in between.

With --tokenizer DIR (of a checkpoint, no network needed) and the extra `bench` installed, llama-benchy itself measures. The
measured figures belong into the cluster file: `speed.measured` of the pool.

Exit code 1 when requests failed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from switchyard.cli.main import COULD_NOT_RUN, GOOD, NOT_GOOD, WRONG_USE, CommandFailed

if TYPE_CHECKING:
    from switchyard.bench.figures import Figure, Row


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("url", metavar="URL", help="a gateway or an engine, like http://127.0.0.1:4000")
    parser.add_argument("--direct", metavar="URL", help="an engine behind it, measured as well")
    parser.add_argument("--model", metavar="NAME", help="to ask for: a pool's name; left out: the first that it lists")
    parser.add_argument("--concurrency", metavar="N,N,...", default="1,4,8", help="requests at once (default: 1,4,8)")
    parser.add_argument("--prompt-tokens", type=int, default=2048, metavar="N", help="default: 2048")
    parser.add_argument("--answer-tokens", type=int, default=128, metavar="N", help="default: 128")
    parser.add_argument("--runs", type=int, default=3, metavar="N", help="batches of each size (default: 3)")
    parser.add_argument("--key-env", metavar="NAME", help="variable with the API key (default: no key is sent)")
    parser.add_argument("--tokenizer", metavar="DIR", help="of the model's checkpoint: measure with llama-benchy")
    parser.add_argument("--json", action="store_true", help="all figures as JSON")


def run(given: argparse.Namespace) -> int:
    """Measure."""
    from switchyard.bench.measure import BenchFailed

    concurrencies = _concurrencies(given.concurrency)
    urls = [given.url.rstrip("/"), *([given.direct.rstrip("/")] if given.direct else [])]
    for url in urls:
        if not url.startswith(("http://", "https://")):
            raise CommandFailed(f"{url} is no URL: http://HOST:PORT is expected", WRONG_USE)
    for name in ("prompt_tokens", "answer_tokens", "runs"):
        if getattr(given, name) < (2 if name == "answer_tokens" else 1):
            raise CommandFailed(f"--{name.replace('_', '-')} {getattr(given, name)} is too small", WRONG_USE)
    key = os.environ.get(given.key_env, "") if given.key_env else ""
    if given.key_env and not key:
        raise CommandFailed(f"--key-env: the variable {given.key_env} is unset or empty", WRONG_USE)
    found = []
    for i, url in enumerate(urls):
        try:
            found.append({"url": url, "direct": bool(i), **_measure(given, url, "" if i else key, concurrencies, bool(i))})
        except BenchFailed as failed:
            raise CommandFailed(f"{url}: {failed}", COULD_NOT_RUN) from None
    if given.json:
        shown = [{**f, "rows": [row.as_dict() for row in f["rows"]]} for f in found]
        print(json.dumps({"runs": given.runs, "measured": shown}, indent=2))
    else:
        print("\n".join(table(found)))
    return NOT_GOOD if any(row.failed for f in found for row in f["rows"]) else GOOD


def _measure(given: argparse.Namespace, url: str, key: str, concurrencies: Sequence[int], direct: bool) -> dict[str, Any]:
    from switchyard.bench.benchy import is_installed, run_benchy
    from switchyard.bench.measure import measure

    model = None if direct else given.model
    if given.tokenizer is not None:
        if not is_installed():
            raise CommandFailed("--tokenizer needs llama-benchy: pip install 'switchyard-gateway[bench]'", WRONG_USE)
        if model is None:
            raise CommandFailed("--tokenizer needs --model, and goes without --direct", WRONG_USE)
        rows = run_benchy(
            url, key, model, given.tokenizer, given.prompt_tokens, given.answer_tokens, concurrencies, given.runs
        )  # fmt: skip
        return {"model": model, "by": "llama-benchy", "rows": rows}
    model, rows = asyncio.run(
        measure(url, key, model, given.prompt_tokens, given.answer_tokens, concurrencies, given.runs, _tell)
    )  # fmt: skip
    _tell("")
    return {"model": model, "by": "switchyard", "rows": rows}


def _concurrencies(text: str) -> list[int]:
    parts = text.split(",")
    if not all(part.isdecimal() and 0 < int(part) <= 1024 for part in parts):
        raise CommandFailed(f"--concurrency {text}: numbers from 1 to 1024 are expected, like 1,4,8", WRONG_USE)
    return [int(part) for part in parts]


def _tell(text: str) -> None:
    if sys.stderr.isatty():
        print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)


def table(found: Sequence[dict[str, Any]]) -> Iterator[str]:
    """The figures for people."""
    for measured in found:
        rows: list[Row] = measured["rows"]
        lengths = next(iter(rows))
        yield (
            f"{measured['url']}{' (direct)' if measured['direct'] else ''}  {measured['model']}  "
            f"{lengths.prompt_tokens:.0f} tokens in, {lengths.answer_tokens:.0f} out, by {measured['by']}"
        )
        yield f"{'':>10}{'prefill tokens/s':>22}{'':>6}{'decode tokens/s':>22}{'':>6}{'first token':>14}"
        yield f"{'at once':>10}{'total':>14}{'per user':>14}{'total':>14}{'per user':>14}{'ms':>14}"
        for row in rows:
            figures = (row.prefill_total, row.prefill_per_user, row.decode_total, row.decode_per_user, row.first_token_ms)
            failed = f"   {row.failed} failed" if row.failed else ""
            yield f"{row.concurrency:>10}" + "".join(f"{_cell(f):>14}" for f in figures) + failed
        yield ""


def _cell(figure: Figure | None) -> str:
    if figure is None:
        return "-"
    digits = 0 if figure.mean >= 1000 else 1
    return f"{figure.mean:,.{digits}f} ±{figure.deviation:.{digits}f}"
