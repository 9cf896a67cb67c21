"""The command line as a whole: help, exit codes, and how little it takes to start."""

import importlib
import subprocess
import sys

import pytest

from switchyard import __version__
from switchyard.cli import main as cli
from switchyard.cli.main import COMMANDS, CommandFailed, main
from switchyard.config.schema import schema_text


def exit_code(*arguments: str) -> int:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    return caught.value.code


def test_help_names_every_command(capsys):
    assert exit_code("--help") == 0
    out = capsys.readouterr().out
    for name, summary in COMMANDS.items():
        assert f"    {name}" in out
        assert " ".join(summary.split()) in " ".join(out.split())
    assert "Exit codes: 0 good, 1 the thing checked is not good, 2 wrong use, 3 could not run, 4 inconclusive." in " ".join(
        out.split()
    )


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_a_command_explains_it(command, capsys):
    assert exit_code(command, "--help") == 0
    out = capsys.readouterr().out
    documentation = importlib.import_module(f"switchyard.cli.{command}").__doc__
    assert documentation
    assert documentation.splitlines()[0] in out


def test_the_version(capsys):
    assert exit_code("--version") == 0
    assert capsys.readouterr().out == f"switchyard {__version__}\n"


@pytest.mark.parametrize(
    "arguments", [[], ["nonsense"], ["check"], ["check", "a", "b"], ["explain", "a"], ["schema", "x"], ["serve"]]
)
def test_wrong_use(arguments, capsys):
    assert exit_code(*arguments) == 2
    assert "usage: switchyard" in capsys.readouterr().err


def test_schema_prints_the_schema(capsys):
    assert main(["schema"]) == 0
    assert capsys.readouterr().out == schema_text()


class Fails:
    """Stands for a command that raises."""

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def parse_args(self, argv):
        return self

    command = "check"

    def run(self, given):
        raise self.error


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (CommandFailed("no such thing"), 3, "switchyard check: no such thing"),
        (CommandFailed("bad", 1), 1, "switchyard check: bad"),
        (KeyboardInterrupt(), 130, ""),
        (ValueError("odd"), 3, "switchyard check: unexpected ValueError: odd (SWITCHYARD_TRACEBACK=1 shows where)"),
    ],
)
def test_what_a_command_raises_becomes_one_line(monkeypatch, capsys, error, code, line):
    monkeypatch.delenv("SWITCHYARD_TRACEBACK", raising=False)
    monkeypatch.setattr(cli, "make_parser", lambda: Fails(error))
    assert main([]) == code
    assert capsys.readouterr().err.strip() == line


def test_a_traceback_for_those_who_ask(monkeypatch):
    monkeypatch.setenv("SWITCHYARD_TRACEBACK", "1")
    monkeypatch.setattr(cli, "make_parser", lambda: Fails(ValueError("odd")))
    with pytest.raises(ValueError, match="odd"):
        main([])


def imported(code: str) -> set[str]:
    code += "\nimport sys; print(*sys.modules)"
    return set(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split())


def test_import_switchyard_is_instant():
    before, after = imported(""), imported("import switchyard")
    assert after - before == {"switchyard"}


def test_the_command_line_starts_without_what_only_serving_needs():
    heavy = {"fastapi", "httpx", "httptools", "uvicorn", "uvloop", "opentelemetry", "prometheus_client", "xllamacpp"}
    assert not heavy & imported("from switchyard.cli.main import make_parser; make_parser()")


def test_python_m_switchyard():
    done = subprocess.run([sys.executable, "-m", "switchyard", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"switchyard {__version__}\n"


def test_a_closed_pipe_is_no_error():
    done = subprocess.run(
        f"{sys.executable} -m switchyard schema | head -c 10", shell=True, capture_output=True, text=True, check=True
    )
    assert (len(done.stdout), done.stderr) == (10, "")
