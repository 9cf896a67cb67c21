"""Write everything that starts a cluster: the gateway's pools, Compose files, systemd units, manifests, recipes.

  switchyard cluster render deploy/cluster.yaml --target compose --out out/
  switchyard cluster render deploy/cluster.yaml --target pools --out . --check

The same file gives the same bytes every time; only files that change are written, and each run says which. Keys are never
written: files name the variables, and a README says where their values go. A cluster with errors is not rendered.

--check writes nothing: 0 when the directory holds exactly these files, 1 when not.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from importlib.resources import files as resource_files
from pathlib import Path

from switchyard.cli.cluster.files import add_file, now, read_cluster, read_named_policy
from switchyard.cli.main import COULD_NOT_RUN, GOOD, NOT_GOOD, CommandFailed

TARGETS = ("pools", "compose", "systemd", "leaderworkerset", "sparkrun")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add_file(parser)
    parser.add_argument("--target", required=True, choices=TARGETS, metavar="TARGET", help=f"one of {', '.join(TARGETS)}")
    parser.add_argument("--out", required=True, metavar="DIR", help="directory to write to; made where it is missing")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 when files are missing or differ")


def run(given: argparse.Namespace) -> int:
    """Render a file."""
    from switchyard.cluster.check import check
    from switchyard.cluster.render.bundle import render
    from switchyard.cluster.render.source import Source
    from switchyard.config.edit import CannotEdit

    loaded = read_cluster(given.cluster)
    text, policy = read_named_policy(given.cluster, loaded.value)
    report = check(loaded.value, now(), policy)
    if report.errors:
        for finding in report.errors:
            print(loaded.problem(finding.path, finding.message, finding.hint), file=sys.stderr)
        raise CommandFailed(f"{given.cluster} has errors: nothing was rendered", NOT_GOOD)
    script = (resource_files("switchyard.cli.cluster") / "run_rank.py").read_text("utf-8")
    source = Source(loaded.value, report.layout, Path(given.cluster).name, text, policy, script)
    try:
        made = render(given.target, source)
    except CannotEdit as error:
        raise CommandFailed(f"{loaded.value.gateway.policy}: {error}", NOT_GOOD) from None
    return compare(made, Path(given.out)) if given.check else write(made, Path(given.out))


def write(made: Mapping[str, str], out: Path) -> int:
    """Write what differs, and say so."""
    changed = [name for name, text in made.items() if _read(out / name) != text]
    try:
        for name in changed:
            (out / name).parent.mkdir(parents=True, exist_ok=True)
            (out / name).write_text(made[name], "utf-8")
    except OSError as error:
        raise CommandFailed(f"can't write {error.filename}: {error.strerror}", COULD_NOT_RUN) from None
    for name in changed:
        print(f"wrote {out / name}")
    for name in _strangers(made, out):
        print(f"{out / name} is not from this render: remove it if it is left from an earlier one", file=sys.stderr)
    print(f"{len(made)} files, {len(changed)} changed; next: {out / 'README.md'}")
    return GOOD


def compare(made: Mapping[str, str], out: Path) -> int:
    """Say what a render would change."""
    stale = [name for name, text in made.items() if _read(out / name) != text]
    strangers = _strangers(made, out)
    for name in stale:
        print(f"{out / name} is {'stale' if (out / name).exists() else 'missing'}")
    for name in strangers:
        print(f"{out / name} is not from this render")
    return NOT_GOOD if stale or strangers else GOOD


def _strangers(made: Mapping[str, str], out: Path) -> list[str]:
    """Files in the directories that a render fills, which this one didn't make; secrets that people put there are none."""
    dirs = {Path(name).parent for name in made}
    found = [p.relative_to(out) for d in sorted(dirs) for p in sorted((out / d).glob("*")) if p.is_file()]
    return [str(p) for p in found if str(p) not in made and f"{p}.example" not in made]


def _read(path: Path) -> str | None:
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError):
        return None
