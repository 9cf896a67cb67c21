"""Write the reference pages from the code, so that they can't differ from it.

  python docs/generate.py            writes docs/reference/*.md
  python docs/generate.py --check    writes nothing; names stale pages and exits 1 when there are any

Each page has a module in docs/pages/. What is read: the signal catalogue, the errors, the metric tables, the JSON Schemas
of policies and clusters, the command line's parsers, the endpoint tables, the control plane's routes, and the arms, states
and files of evals. Prose that explains rather than lists belongs on hand-written pages.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from pages.commands import cli_page
from pages.endpoints import endpoints_page
from pages.errors import errors_page
from pages.evals import evals_page
from pages.keys import cluster_page, policy_page
from pages.metrics import metrics_page
from pages.signals import signals_page

HERE = Path(__file__).resolve().parent
PAGES = HERE / "reference"


def all_pages() -> dict[str, str]:
    """Name and text of every page."""
    return {
        "signals.md": signals_page(),
        "errors.md": errors_page(),
        "metrics.md": metrics_page(),
        "policy.md": policy_page(),
        "cluster.md": cluster_page(),
        "cli.md": cli_page(),
        "endpoints.md": endpoints_page(),
        "evals.md": evals_page(),
    }


def read(path: Path) -> str:
    """The text of a page; empty when it is not there."""
    return path.read_text("utf-8") if path.exists() else ""


def main(argv: Sequence[str] | None = None) -> int:
    """Write the pages, or say which are stale."""
    parser = argparse.ArgumentParser(description="Write docs/reference from the code.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 when a page is stale")
    check = parser.parse_args(argv).check
    pages = all_pages()
    stale = [name for name, text in pages.items() if read(PAGES / name) != text]
    extra = sorted(p.name for p in PAGES.glob("*.md") if p.name not in pages)
    for name in extra:
        print(f"docs/reference/{name} is written by nobody: remove it", file=sys.stderr)
    if check:
        for name in stale:
            print(f"docs/reference/{name} is stale: run `make docs`", file=sys.stderr)
        return 1 if stale or extra else 0
    PAGES.mkdir(exist_ok=True)
    for name in stale:
        (PAGES / name).write_text(pages[name], "utf-8")
        print(f"wrote docs/reference/{name}")
    return 1 if extra else 0


if __name__ == "__main__":
    sys.exit(main())
