"""All the files of a target."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal

from switchyard.cluster.render.compose import compose_files
from switchyard.cluster.render.leaderworkerset import leaderworkerset_files
from switchyard.cluster.render.pools import pools_files
from switchyard.cluster.render.source import Files, Source
from switchyard.cluster.render.sparkrun import sparkrun_files
from switchyard.cluster.render.systemd import systemd_files

Target = Literal["pools", "compose", "systemd", "leaderworkerset", "sparkrun"]

MAKERS: Mapping[Target, Callable[[Source], Files]] = {
    "pools": pools_files,
    "compose": compose_files,
    "systemd": systemd_files,
    "leaderworkerset": leaderworkerset_files,
    "sparkrun": sparkrun_files,
}


def render(target: Target, source: Source) -> Files:
    """The files of a target, in the order of their paths."""
    return dict(sorted(MAKERS[target](source).items()))
