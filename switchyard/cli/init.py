"""Write a commented policy, and its schema beside it, for engines that run already.

  switchyard init http://127.0.0.1:8001 http://127.0.0.1:8002
  switchyard init http://10.0.0.{1,3,5,7,8}:8000 --out agents.yaml

Asks each engine what it serves. Engines with the same model become one pool; with several models, the pools are ordered
from small to big by the size in their names (7B, 0.6b), else as given. Then:  switchyard serve policy.yaml
"""

from __future__ import annotations

import argparse
import asyncio
import re
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from switchyard.cli.main import COULD_NOT_RUN, GOOD, WRONG_USE, CommandFailed

ASK_LIMIT_S = 5.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("urls", nargs="+", metavar="URL", help="an engine, like http://10.0.0.1:8000")
    parser.add_argument(
        "--out", default="policy.yaml", metavar="FILE", help="file to write; - for stdout (default: %(default)s)"
    )
    parser.add_argument("--force", action="store_true", help="overwrite the file")


@dataclass
class Found:
    """Engines that serve one model."""

    model: str
    urls: list[str] = field(default_factory=list)
    context_tokens: int | None = None


def run(given: argparse.Namespace) -> int:
    """Ask the engines and write the files."""
    urls = [_checked(url) for url in given.urls]
    answers = asyncio.run(_ask_all(urls))
    silent = [url for url, answer in answers.items() if isinstance(answer, str)]
    for url in silent:
        print(f"switchyard init: {url} did not tell what it serves: {answers[url]}", file=sys.stderr)
    pools = group(answers)
    if not pools:
        raise CommandFailed("no engine answered: start them first, and give the URLs of their HTTP servers", COULD_NOT_RUN)
    target = Path(given.out)
    schema = target.with_name(("policy" if given.out == "-" else target.stem) + ".schema.json")
    text = policy_text(pools, silent, schema.name)
    if given.out == "-":
        print(text, end="")
        return GOOD
    from switchyard.config.schema import schema_text

    if target.exists() and not given.force:
        raise CommandFailed(f"{target} is there already: --force overwrites it, --out writes another file", WRONG_USE)
    try:
        target.write_text(text)
        schema.write_text(schema_text())
    except OSError as error:
        raise CommandFailed(f"can't write {error.filename}: {error.strerror}") from None
    print(f"wrote {target} and {schema}; next: switchyard serve {target}")
    return GOOD


def _checked(url: str) -> str:
    if not re.fullmatch(r"http://[^/@\s]+/?", url):
        raise CommandFailed(f"{url} is no engine's URL: http://HOST:PORT, without a path", WRONG_USE)
    return url.rstrip("/")


async def _ask_all(urls: list[str]) -> dict[str, Any]:
    """For each URL its model list, or why there is none."""
    import httpx

    async def ask(client: httpx.AsyncClient, url: str) -> Any:
        try:
            answer = await client.get(f"{url}/v1/models")
            return answer.json() if answer.is_success else f"/v1/models answers {answer.status_code}"
        except httpx.HTTPError as error:
            return str(error) or type(error).__name__
        except ValueError:
            return "/v1/models answers no JSON"

    async with httpx.AsyncClient(timeout=ASK_LIMIT_S, trust_env=False) as client:
        unique = list(dict.fromkeys(urls))
        return dict(zip(unique, await asyncio.gather(*(ask(client, u) for u in unique)), strict=True))


def group(answers: dict[str, Any]) -> list[Found]:
    """Engines by the first model they list, from small to big."""
    from switchyard.pools.serves import read_context

    found: dict[str, Found] = {}
    for url, answer in answers.items():
        cards = answer.get("data") if isinstance(answer, dict) else None
        model = cards[0].get("id") if isinstance(cards, list) and cards and isinstance(cards[0], dict) else None
        if not isinstance(model, str):
            continue
        entry = found.setdefault(model, Found(model))
        entry.urls.append(url)
        context = read_context(answer, model)
        if context is not None:
            entry.context_tokens = min(context, entry.context_tokens or context)
    order = list(found.values())
    sizes = [size_of(f.model) for f in order]
    if None in sizes:
        return order
    return sorted(order, key=lambda f: size_of(f.model) or 0.0)


def size_of(model: str) -> float | None:
    """Billions of parameters, as the name tells them: 27 for Qwen3.8-27B, 0.135 for SmolLM2-135M."""
    sizes = re.findall(r"(?<![A-Za-z0-9.])(\d+(?:\.\d+)?)\s*([bBmM])(?![A-Za-z0-9])", model)
    return max((float(n) / (1000 if unit in "mM" else 1) for n, unit in sizes), default=None)


def _pool_names(pools: list[Found]) -> list[str]:
    if len(pools) == 1:
        return ["main"]
    return ["small", *(f"medium-{i}" if len(pools) > 3 else "medium" for i in range(1, len(pools) - 1)), "big"]


def policy_text(pools: list[Found], silent: list[str], schema: str) -> str:
    """The policy as YAML, with comments for whoever edits it next."""
    from json import dumps

    names = _pool_names(pools)
    lines = [
        f"# yaml-language-server: $schema=./{schema}",
        "#",
        "# Written by `switchyard init`. Check a change with `switchyard check`, try it with `switchyard explain`.",
        "version: 1",
        "",
        "# server:                                # the defaults: loopback, port 4000, no keys",
        "#   host: 0.0.0.0                        # for other machines; needs keys",
        "#   api_keys_env: SWITCHYARD_API_KEYS    # a variable with comma-separated keys",
        "",
        "pools:",
    ]
    for name, pool in zip(names, pools, strict=True):
        context = f"   # holds {pool.context_tokens} tokens; read from the engine" if pool.context_tokens else ""
        lines += [f"  {name}:", f"    model: {dumps(pool.model)}{context}", "    replicas:"]
        lines += [f"      - {url}" for url in pool.urls]
        lines.append("    # accepts: [tools, structured_output, images]   # say so where the model sees images")
    lines += [f"# did not answer: {url}" for url in silent]
    lines += ["", "routes:", "  auto:                                    # the model name that clients ask for"]
    lines.append("    aliases: [claude-*, gpt-*]             # vendor names that agents insist on mean this route too")
    if len(pools) == 1:
        lines.append("    otherwise: main                        # one pool: everything goes there")
        return "\n".join(lines) + "\n"
    lines += [
        "    rules:",
        f"      - {{when: {{request_class: title}}, use: {names[0]}, why: titles are easy}}",
        f"      - {{when: {{tool_errors_in_a_row: {{at_least: 2}}}}, use: {names[-1]}, why: two tool errors, for: 5 turns}}",
        "    classify: [{type: embedded}]           # p = probability that the small pool's answer is good enough",
        "    choose:                                # from small to big; the first that holds",
    ]
    for i, name in enumerate(names[:-1]):
        lines.append(f"      - {{p_at_least: {0.85 - 0.15 * i / max(1, len(names) - 2):.2f}, use: {name}}}")
    lines += [f"      - {{use: {names[-1]}}}", f"    otherwise: {names[-1]}"]
    return "\n".join(lines) + "\n"
