"""What is written about one request: complete, and without a word of its prompt unless asked for."""

import json
from datetime import datetime

import msgspec
import pytest

from switchyard.telemetry.record import KEPT, Record, Recorder

from .records import DECISION, record_of


def line_of(record: Record) -> dict:
    return json.loads(msgspec.json.encode(record.as_line()))


def test_a_line_says_where_it_went_why_and_how_long_it_took():
    line = line_of(record_of())
    assert (line["id"], line["model"], line["route"], line["pool"], line["replica"]) == (
        "req-1",
        "auto",
        "auto",
        "small",
        "small-1",
    )
    assert line["decision"] == {**DECISION, "fallbacks": ["big"], "reasons": ["p 0.70 >= 0.6 by embedded"]}
    assert line["ms"] == {"decide": 2.0, "queue": 498.0, "first_byte": 399.0, "first_token": 499.0, "total": 3000.0}
    assert line["tokens"] == {"input": 40, "output": 12, "cached": 30}
    assert line["attempts"] == ["small/small-1"]
    assert line["bytes"] == {"request": 500, "answer": 900}
    datetime.strptime(line["time"], "%Y-%m-%dT%H:%M:%S.%f%z")


def test_what_never_happened_is_null_and_not_zero():
    line = line_of(Record("req-2", "/v1/messages", "messages", 100.0, status=404, outcome="refused", error="model_not_found"))
    assert line["ms"] == {"decide": None, "queue": None, "first_byte": None, "first_token": None, "total": None}
    assert line["tokens"] == {"input": None, "output": None, "cached": None}
    assert (line["status"], line["outcome"], line["error"]) == (404, "refused", "model_not_found")


def test_no_text_of_a_prompt_unless_asked():
    assert "prompt" not in line_of(record_of())
    assert line_of(record_of(prompt="hush"))["prompt"] == "hush"


@pytest.mark.parametrize(("field", "key"), [("case", "case"), ("client_id", "client_request_id")])
def test_labels_of_the_client_are_repeated_when_there_are_some(field, key):
    assert key not in line_of(record_of())
    assert line_of(record_of(**{field: "x"}))[key] == "x"


class Listener:
    def __init__(self) -> None:
        self.noted: list[Record] = []

    def note(self, record: Record) -> None:
        self.noted.append(record)


def test_a_recorder_tells_everybody_once_and_keeps_the_latest():
    listeners = [Listener(), Listener()]
    recorder = Recorder(listeners)
    records = [Record(str(n), "/v1/x", "chat", 1.0) for n in range(KEPT + 5)]
    for record in records:
        recorder.close(record, 7.5)
    assert all(listener.noted == records for listener in listeners)
    assert {record.ended_s for record in records} == {7.5}
    assert [r.id for r in recorder.latest] == [r.id for r in records[5:]]
