"""`switchyard whatif`: a recorded day under another policy, as text and JSON, with bad lines and odd files."""

import io
import json
import os
import sys
import threading

import pytest

from switchyard.cli import main as cli
from switchyard.cli.main import main
from switchyard.cli.whatif import LONGEST_LINE

from ..build import MINIMAL
from ..routing.test_replay import line

POLICY = MINIMAL + "routes: {auto: {classify: [{type: embedded}], choose: [{p_at_least: 0.4, use: small}, {use: big}]}}\n"
LOG = [
    line("a", p=0.9, pool="small", session="1"),
    line("b", p=0.5, session="2", at_s=60, reasons=("p 0.50 < 0.6 by embedded",)),
    line("c", p=0.1, session="3", at_s=120, signals={"client": "codex"}),
    line("d", kind="rule", session="4", at_s=180),
    line("e", model="gone", session="5", at_s=240),
    line("f", decision={}, error="model_not_found", session="6", at_s=300),
]


@pytest.fixture(autouse=True)
def _command(monkeypatch):
    monkeypatch.setitem(cli.COMMANDS, "whatif", "decide recorded traffic anew under another policy")


@pytest.fixture
def whatif(tmp_path, capsys):
    """Run the command on logs; gives exit code, standard output and standard error."""

    def run(*logs: bytes | str, policy: str = POLICY, arguments: tuple[str, ...] = ()) -> tuple[int, str, str]:
        path = tmp_path / "new.yaml"
        path.write_text(policy)
        files = []
        for n, log in enumerate(logs):
            if isinstance(log, bytes):
                (tmp_path / f"{n}.jsonl").write_bytes(log)
                files.append(str(tmp_path / f"{n}.jsonl"))
            else:
                files.append(log)
        code = main(["whatif", str(path), *files, *arguments])
        return code, *capsys.readouterr()

    return run


def test_a_day_as_text(whatif):
    code, out, err = whatif(b"\n".join(LOG) + b"\n")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0].startswith("6 requests of 5 min under ")
    assert lines[1:6] == [
        "          2   33.3%  stay where they were",
        "          1   16.7%  move",
        "          1   16.7%  can't be decided anew",
        "          1   16.7%  would be refused",
        "          1   16.7%  were never decided (refused before)",
    ]
    assert "big -> small: 1" in lines
    assert "  b  p 0.50 >= 0.4 by embedded   (was: p 0.50 < 0.6 by embedded)" in lines
    assert "          1  needs a score by embedded, which was not asked   (d)" in lines
    assert "          1  the new policy has no model gone   (e)" in lines
    assert "          1  model_not_found   (f)" in lines
    shares = {
        row.split()[0] + row.split()[1]: row.split()[-6:] for row in lines if " -> " in row and "%" in row and "  all" in row
    }
    assert list(shares.values()) == [["66.7%", "->", "33.3%", "33.3%", "->", "66.7%"]]
    assert any(row.startswith("  big: 48 places   mean ") for row in lines)
    assert "note: contexts of small, big are not known here and taken as unlimited" in out


def test_a_day_as_json(whatif):
    code, out, _ = whatif(b"\n".join(LOG[:3]), b"\n".join(LOG[3:]), arguments=("--json", "--examples", "0"))
    report = json.loads(out)
    assert code == 0
    assert report["requests"] == {"all": 6, "same": 2, "moved": 1, "unknown": 1, "refused": 1, "undecided": 1}
    assert report["moves"] == [{"from": "big", "to": "small", "count": 1, "examples": []}]
    assert report["bad_lines"] == {"count": 0, "first": []}
    assert {entry["pool"] for entry in report["load"]} == {"small", "big"}
    assert set(report) == {
        "requests", "span_s", "moves", "unknown", "refused", "undecided", "shares", "by_request_class", "by_client", "load",
        "bad_lines", "notes",
    }  # fmt: skip


def test_bad_lines_are_named_and_do_no_harm(whatif):
    log = b"\n".join([LOG[0], b"", b"not json", b'{"id": 3}', LOG[1], LOG[2][:-20]])
    code, out, _ = whatif(log)
    assert code == 0
    assert out.startswith("2 requests of ")
    assert "3 bad lines were left out:" in out
    numbers = [row.split(".jsonl:")[1].split(":")[0] for row in out.splitlines() if ".jsonl:" in row]
    assert numbers == ["3", "4", "6"]


def test_only_so_many_bad_lines_are_named(whatif):
    code, out, _ = whatif(b"?\n" * 1000)
    assert code == 3, "a file of another kind is no log, and says nothing about a policy"
    assert "no decision records, only 1000 lines of something else" in out
    assert out.count(".jsonl:") == 11


@pytest.mark.parametrize("log", [b"", b"\n\n  \n"])
def test_an_empty_log_says_so(whatif, log):
    code, out, err = whatif(log)
    assert (code, err) == (0, "")
    assert out.endswith("0.jsonl: no lines: nothing to decide\n")
    code, out, _ = whatif(log, arguments=("--json",))
    assert json.loads(out)["requests"]["all"] == 0
    assert code == 0


def test_an_endless_line_is_one_bad_line(whatif):
    code, out, _ = whatif(b"x" * (2 * LONGEST_LINE + 5) + b"\n" + LOG[0] + b"\n")
    assert code == 0
    assert out.startswith("1 requests")
    assert ".jsonl:1: " in out


def test_standard_input(whatif, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"\n".join(LOG))))
    code, out, _ = whatif("-")
    assert code == 0
    assert out.startswith("6 requests")


def test_a_log_that_is_not_there(whatif):
    code, out, err = whatif("/nowhere/decisions.jsonl")
    assert (code, out) == (3, "")
    assert err == "switchyard whatif: can't read /nowhere/decisions.jsonl: No such file or directory\n"


def test_a_policy_with_problems_is_not_tried(whatif):
    code, out, err = whatif(LOG[0], policy=POLICY + "sever: 1\n")
    assert (code, out) == (1, "")
    assert "unknown key sever" in err


@pytest.mark.parametrize("context", ["small", "small=", "small=many", "small=0", "tiny=100"])
def test_a_context_that_makes_no_sense(whatif, context):
    code, _, err = whatif(LOG[0], arguments=("--context", context))
    assert code == 2
    assert "POOL=TOKENS is expected, with one of small, big" in err


def test_a_context_keeps_a_pool_out(whatif):
    _, out, _ = whatif(LOG[1], arguments=("--context", "small=120", "--json"))
    report = json.loads(out)
    assert report["requests"]["same"] == 1
    assert report["notes"] == ["contexts of big are not known here and taken as unlimited; --context POOL=TOKENS says them"]


def test_share_comes_with_a_note(whatif):
    policy = MINIMAL + (
        "routes: {auto: {classify: [{type: embedded}], choose: [{p_at_least: 0.4, use: small}, {use: big}],"
        " share: {pool: big, at_most: 0.5}}}\n"
    )
    _, out, _ = whatif(LOG[0], policy=policy)
    assert "note: share and pressure are replayed in the order of the log" in out


def test_progress_is_for_terminals(whatif, monkeypatch, capsys):
    monkeypatch.setattr("switchyard.cli.whatif.PROGRESS_EVERY_S", 0.0)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    _, out, err = whatif(b"\n".join(LOG))
    assert "0.jsonl: 3 lines, " in err
    assert err.endswith("\r\x1b[K")
    assert "lines, " not in out


def test_no_text_of_prompts_is_needed_or_shown(whatif):
    _, out, _ = whatif(json.dumps({**json.loads(LOG[1]), "prompt": "my secret plan"}).encode())
    assert "secret" not in out


def test_a_log_that_is_a_pipe(whatif, tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_bytes, args=(b"\n".join(LOG),))
    writer.start()
    code, out, _ = whatif(str(pipe))
    writer.join()
    assert code == 0
    assert out.startswith("6 requests")


def test_scores_are_held_against_thresholds_on_the_new_policy_s_scale(whatif):
    """0.3 before scale and bias, 0.35 under the old ones; with a bias of 0.5 it is 0.41, over the threshold of 0.4."""
    recorded = line("a", pool="big", p=0.35, raw_p=0.3)
    for bias, said in ((0.2, "stay where they were"), (0.5, "move")):
        _, out, _ = whatif(recorded, policy=POLICY.replace("{type: embedded}", f"{{type: embedded, bias: {bias}}}"))
        assert f"          1  100.0%  {said}" in out.splitlines()
