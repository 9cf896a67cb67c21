"""Something that is wrong with a cluster, or odd about it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from switchyard.cluster.spec import Cluster
from switchyard.config.problem import KeyPath

Severity = Literal["error", "warning"]


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is wrong (error) or odd (warning), and the key in the file that it is about."""

    path: KeyPath
    severity: Severity
    message: str
    hint: str = ""


def error(path: KeyPath, message: str, hint: str = "") -> Finding:
    """Something that keeps the cluster from running."""
    return Finding(path, "error", message, hint)


def warning(path: KeyPath, message: str, hint: str = "") -> Finding:
    """Something that runs, but may not do what its author thinks."""
    return Finding(path, "warning", message, hint)


def place_of(cluster: Cluster, node: str) -> KeyPath:
    """The path of a node in the file."""
    return ("nodes", next(i for i, n in enumerate(cluster.nodes) if n.name == node))
