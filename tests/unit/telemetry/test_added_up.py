"""Figures of several processes in one exposition: counters and histograms add up, gauges mean what their names say."""

import os
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from switchyard.telemetry import added_up
from switchyard.telemetry.added_up import WorkerFiles, forget_worker
from switchyard.telemetry.metrics import Metrics

from .records import record_of

OPEN: list[WorkerFiles] = []


@pytest.fixture(autouse=True)
def _close():
    yield
    while OPEN:
        OPEN.pop().close()


class Worker:
    """One worker's metrics and files, under a process id of its own."""

    def __init__(self, folder: Path, pid: int, monkeypatch: pytest.MonkeyPatch, gauges=()) -> None:
        self.gauges = list(gauges)
        self.here = {("p", "r"), ("p", "s"), *record_of().attempts}
        self.metrics = Metrics(lambda: iter(self.gauges), has_replica=lambda *place: place in self.here)
        self._pid, self._monkeypatch = pid, monkeypatch
        self._files = WorkerFiles(folder)
        OPEN.append(self._files)

    def write(self) -> None:
        self._monkeypatch.setattr(os, "getpid", lambda: self._pid)
        self._files.write(list(self.metrics.collect()))

    def samples(self) -> dict[tuple[str, frozenset], float]:
        self._monkeypatch.setattr(os, "getpid", lambda: self._pid)
        text = self._files.text(list(self.metrics.collect())).decode()
        return {(s.name, frozenset(s.labels.items())): s.value for f in text_string_to_metric_families(text) for s in f.samples}


def up(label: str, value: float):
    return "switchyard_replica_up", ("p", label), value


def running(label: str, value: float):
    return "switchyard_in_flight", ("p", label), value


def test_two_workers_say_what_one_would(tmp_path, monkeypatch):
    one = Metrics(list)
    a, b = Worker(tmp_path, 101, monkeypatch), Worker(tmp_path, 102, monkeypatch)
    for n in range(30):
        record = record_of(ended_s=100.0 + n / 3)
        one.note(record)
        (a if n % 3 else b).metrics.note(record)
    a.write()
    found = b.samples()
    wanted = {
        (s.name, frozenset(s.labels.items())): s.value
        for family in text_string_to_metric_families(one.text().decode())
        for s in family.samples
        if s.value
    }
    assert wanted
    # The text form of a bucket's bound may differ (1 and 1.0): compare bounds as numbers.
    assert {_plain(key): value for key, value in found.items() if value} == pytest.approx(
        {_plain(key): value for key, value in wanted.items()}
    )


def _plain(key):
    name, labels = key
    return name, frozenset((k, float(v) if k == "le" else v) for k, v in labels)


def test_gauges(tmp_path, monkeypatch):
    a = Worker(tmp_path, 101, monkeypatch, [up("r", 1), running("r", 3)])
    b = Worker(tmp_path, 102, monkeypatch, [up("r", 0), running("r", 4)])
    a.write()
    found = b.samples()
    place = frozenset({("pool", "p"), ("replica", "r")})
    assert found[("switchyard_in_flight", place)] == 7
    assert found[("switchyard_replica_up", place)] == 0, "up is what all say"


def test_a_replica_that_is_gone_leaves_no_series(tmp_path, monkeypatch):
    a = Worker(tmp_path, 101, monkeypatch, [up("r", 1), up("s", 1)])
    a.metrics.note(record_of(attempts=[("p", "r"), ("p", "s")]))
    a.write()
    a.gauges.pop()
    a.here.discard(("p", "s"))
    a.write()
    for metric in ("switchyard_replica_up", "switchyard_attempts_total"):
        assert [dict(labels).get("replica") for name, labels in a.samples() if name == metric] == ["r"]
    assert sorted(path.suffix for path in tmp_path.iterdir()) == [".db"] * len(list(tmp_path.iterdir()))
    assert sum(v for (name, _), v in a.samples().items() if name == "switchyard_requests_total") == 1


def test_a_worker_that_died_leaves_its_counters_and_takes_its_gauges(tmp_path, monkeypatch):
    gone = Worker(tmp_path, 101, monkeypatch, [running("r", 5)])
    gone.metrics.note(record_of())
    gone.write()
    forget_worker(101, tmp_path)
    b = Worker(tmp_path, 102, monkeypatch, [running("r", 1)])
    b.metrics.note(record_of())
    found = b.samples()
    assert sum(v for (name, _), v in found.items() if name == "switchyard_requests_total") == 2
    assert found[("switchyard_in_flight", frozenset({("pool", "p"), ("replica", "r")}))] == 1


def test_every_gauge_with_a_way_to_be_added_up_exists():
    from switchyard.telemetry.metrics import GAUGES

    assert set(GAUGES) >= added_up._SUMMED | added_up._LOWEST
