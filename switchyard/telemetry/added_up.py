"""Metrics of several worker processes, added up by prometheus_client's multiprocess mode.

Each worker writes its figures into files of that mode's form, once a second and when it is asked; whoever is asked reads
the files of all. So a request costs no more than in one process, and figures of other workers are a second old at most.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.mmap_dict import MmapedDict, mmap_key
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead

WRITE_S = 1.0
_SUMMED = frozenset({"switchyard_in_flight", "switchyard_tokens_in_flight", "switchyard_queued", "switchyard_sessions"})
_LOWEST = frozenset({"switchyard_replica_up", "switchyard_discovery_up", "switchyard_state_up"})
"""Gauges that only count when all workers say so. Of any other the highest is shown."""

Figures = dict[str, dict[str, float]]


class WorkerFiles:
    """The files of one worker, and the sum of all.

    Args:
        folder: where all workers of a `serve` have theirs.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files: dict[str, MmapedDict] = {}
        self._written: dict[str, set[str]] = {}
        self._lock = threading.Lock()
        self._registry = CollectorRegistry(auto_describe=False)
        MultiProcessCollector(self._registry, str(folder))  # type: ignore[no-untyped-call]

    def write(self, families: Iterable[Metric]) -> None:
        """Put this worker's figures into its files. Blocks for a moment."""
        with self._lock:
            for kind, figures in _by_file(families).items():
                gone = self._written.get(kind, set()) - figures.keys()  # a replica has left: its series go, too
                if kind not in self._files or gone:
                    self._begin_anew(kind, figures)
                else:
                    _fill(self._files[kind], figures)
                self._written[kind] = set(figures)

    def text(self, families: Iterable[Metric]) -> bytes:
        """The Prometheus exposition of all workers; these are this one's newest figures."""
        self.write(families)
        return generate_latest(self._registry)

    def close(self) -> None:
        """Close the files; what they hold stays for the others."""
        with self._lock:
            while self._files:
                self._files.popitem()[1].close()  # type: ignore[no-untyped-call]

    def _begin_anew(self, kind: str, figures: Mapping[str, float]) -> None:
        """Another file in place of the old one, which whoever reads meanwhile sees whole."""
        if (old := self._files.pop(kind, None)) is not None:
            old.close()  # type: ignore[no-untyped-call]
        path = self._path(kind)
        draft = path.with_suffix(".new")
        draft.unlink(missing_ok=True)
        file = self._files[kind] = MmapedDict(str(draft))  # type: ignore[no-untyped-call]
        _fill(file, figures)
        draft.replace(path)

    def _path(self, kind: str) -> Path:
        return self._folder / f"{kind}_{os.getpid()}.db"


def _fill(file: MmapedDict, figures: Mapping[str, float]) -> None:
    for key, value in figures.items():
        file.write_value(key, value, 0.0)  # type: ignore[no-untyped-call]


def forget_worker(pid: int, folder: Path) -> None:
    """A worker has died: what it counted stays, what it said about this moment goes."""
    mark_process_dead(pid, str(folder))  # type: ignore[no-untyped-call]


def _by_file(families: Iterable[Metric]) -> Figures:
    """Keys and values as the multiprocess mode keeps them, by the first part of the file's name."""
    figures: Figures = {}
    for family in families:
        kind: str = family.type
        if kind == "gauge":
            mode = "livesum" if family.name in _SUMMED else "livemin" if family.name in _LOWEST else "livemax"
            kind = f"gauge_{mode}"
        found = figures.setdefault(kind, {})
        for name, labels, value in _samples(family):
            key: str = mmap_key(family.name, name, list(labels), list(labels.values()), family.documentation)
            found[key] = value
    return figures


def _samples(family: Metric) -> Iterator[tuple[str, dict[str, str], float]]:
    """Samples; buckets of a histogram with what is in each alone, and without the count, which is added up from them."""
    below = 0.0
    for sample in family.samples:
        if sample.name.endswith("_bucket"):
            yield sample.name, sample.labels, sample.value - below
            below = 0.0 if sample.labels["le"] == "+Inf" else sample.value
        elif not (family.type == "histogram" and sample.name.endswith("_count")):
            yield sample.name, sample.labels, sample.value
