"""The decision log: one JSON line for each request, none lost while the disk refuses."""

import json
import logging
import os

import pytest

from switchyard.telemetry.logs import DecisionLog

from .records import record_of


def ids(path) -> list[str]:
    return [json.loads(line)["id"] for line in path.read_text().splitlines()]


def test_lines_are_gathered_and_written_by_flush_and_close(tmp_path):
    path = tmp_path / "deep" / "decisions.jsonl"
    log = DecisionLog(str(path))
    log.note(record_of(id="a"))
    log.note(record_of(id="b"))
    assert path.read_text() == ""
    log.flush()
    log.flush()
    assert ids(path) == ["a", "b"]
    log.note(record_of(id="c"))
    log.close()
    assert ids(path) == ["a", "b", "c"]


def test_an_existing_file_goes_on(tmp_path):
    path = tmp_path / "decisions.jsonl"
    for id_ in ("a", "b"):
        log = DecisionLog(str(path))
        log.note(record_of(id=id_))
        log.close()
    assert ids(path) == ["a", "b"]


class Disk:
    """A file whose writes fail or stop half way, as told."""

    def __init__(self) -> None:
        self.data = b""
        self.accepts: int | None = None

    def write(self, data: bytes) -> int:
        if self.accepts == 0:
            raise OSError(28, "No space left on device")
        taken = data[: self.accepts]
        self.data += taken
        return len(taken)

    def close(self) -> None:
        pass


def log_on(tmp_path) -> tuple[DecisionLog, Disk]:
    log, disk = DecisionLog(str(tmp_path / "decisions.jsonl")), Disk()
    log._file.close()
    log._file = disk
    return log, disk


def test_while_the_disk_refuses_lines_wait_in_their_order_and_the_log_says_so_once(tmp_path, caplog):
    log, disk = log_on(tmp_path)
    disk.accepts = 0
    with caplog.at_level(logging.ERROR, logger="switchyard.decisions"):
        for id_ in "abc":
            log.note(record_of(id=id_))
            log.flush()
    assert len(caplog.records) == 1
    assert "No space left" in caplog.text
    disk.accepts = None
    log.note(record_of(id="d"))
    log.close()
    assert [json.loads(line)["id"] for line in disk.data.splitlines()] == ["a", "b", "c", "d"]


@pytest.mark.parametrize("accepts", [1, 7, 100, 5000])
def test_a_write_that_stops_half_way_goes_on_where_it_stopped(tmp_path, accepts):
    log, disk = log_on(tmp_path)
    for id_ in "abcde":
        log.note(record_of(id=id_))
    disk.accepts = accepts
    for _ in range(3):
        log.flush()
    disk.accepts = None
    log.note(record_of(id="f"))
    log.close()
    assert [json.loads(line)["id"] for line in disk.data.splitlines()] == list("abcdef")


def test_memory_is_bounded_and_the_oldest_lines_are_kept(tmp_path, monkeypatch, caplog):
    log, disk = log_on(tmp_path)
    disk.accepts = 0
    monkeypatch.setattr(DecisionLog, "MAX_WAITING_BYTES", 4000)
    for n in range(200):
        log.note(record_of(id=str(n)))
    disk.accepts = None
    log.close()
    kept = [json.loads(line)["id"] for line in disk.data.splitlines()]
    assert 0 < len(disk.data) <= 4000
    assert kept == [str(n) for n in range(len(kept))]
    assert "new records are dropped" in caplog.text


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_a_full_disk_is_no_error_for_anybody(caplog):
    log = DecisionLog("/dev/full")
    for n in range(300):
        log.note(record_of(id=str(n)))
        log.flush()
    log.close()
    assert caplog.text.count("can't be written") == 1
