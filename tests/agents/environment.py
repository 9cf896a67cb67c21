"""Install the agents, each as its registry has it, once, in the user's cache.

`python tests/agents/environment.py` installs what is missing and prints where it is: 2 GB, about a minute. What is
installed, and in which versions, stands in `pins/`; a change there makes a new folder. Running agents is `stage`'s business.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

if __name__ == "__main__":  # run from a checkout, where the package need not be installed
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from switchyard.demo.model import cache_root

PINS = Path(__file__).resolve().parent / "pins"
PARTS = ("npm", "aider", "python-sdks")
STEP_LIMIT_S = 900
Say = Callable[[str], None]


class InstallFailed(Exception):
    """A part can't be installed; the message says why, and what helps or where the log is."""


def ensure(part: str, say: Say = print) -> Path:
    """The folder that has a part's programs, installed first where it is missing or half done.

    Args:
        part: `npm` for Claude Code, Codex and opencode, `aider`, or `python-sdks`.
        say: is told of progress.

    Raises:
        InstallFailed: it can't be had.
    """
    root = cache_root() / f"agents-{_recipe()}" / part
    if not _complete(root):
        root.parent.mkdir(parents=True, exist_ok=True)
        with _lock(root.with_name(f".{part}.lock"), say):
            if not _complete(root):
                _install(part, root, say)
    return programs(root)


def programs(root: Path) -> Path:
    """Where a part's commands are."""
    return root / ("node_modules/.bin" if root.name == "npm" else "bin")


def _install(part: str, root: Path, say: Say) -> None:
    """Make a part anew; the marker comes last, so that an install cut short is seen as none."""
    started = time.monotonic()
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir()
    log = root.with_name(f"{part}.log")
    log.unlink(missing_ok=True)
    say(f"installing {part} in {root}")
    if part == "npm":
        _need_node()
        shutil.copy(PINS / "package.json", root)
        # No lock file: what is pinned has no dependencies but its binaries, and pins those itself.
        options = ["--no-package-lock", "--no-audit", "--no-fund", "--no-update-notifier"]
        _run(["npm", "install", *options, "--prefix", root], log)
        for name in ("claude", "codex", "opencode"):
            _run([programs(root) / name, "--version"], log)  # a binary that is missing or doesn't start
    else:
        _run([sys.executable, "-m", "venv", root], log)
        pip: list[str | Path] = [
            programs(root) / "python",
            "-m",
            "pip",
            "install",
            "--quiet",
            "--no-input",
            "--disable-pip-version-check",
        ]
        _run([*pip, "--requirement", PINS / f"{part}.txt"], log)
    _marker(root).touch()
    say(f"installed {part} in {time.monotonic() - started:.0f} s")


def _need_node() -> None:
    missing = [name for name in ("node", "npm") if shutil.which(name) is None]
    if missing:
        raise InstallFailed(
            f"{' and '.join(missing)} not found: Claude Code, Codex and opencode come from npm and need Node.js 16 or later. "
            "On Debian: apt-get install nodejs npm"
        )


def _run(command: list[str | Path], log: Path) -> None:
    # PYTHONPATH could put another project's packages before the environment's own.
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    with log.open("ab") as out:
        out.write(f"$ {' '.join(map(str, command))}\n".encode())
        out.flush()
        try:
            step = subprocess.run(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=environ, check=False, timeout=STEP_LIMIT_S,
                close_fds=False,  # a step that outlives a killed install keeps the lock
            )  # fmt: skip
        except (OSError, subprocess.TimeoutExpired) as error:
            raise InstallFailed(f"{error} (log: {log})") from None
    if step.returncode != 0:
        last = "\n".join(log.read_text(errors="replace").splitlines()[-8:])
        raise InstallFailed(f"'{Path(command[0]).name} ...' ended with status {step.returncode} (all of it: {log}):\n{last}")


def _complete(root: Path) -> bool:
    return _marker(root).exists()


def _marker(root: Path) -> Path:
    return root / "complete"


def _recipe() -> str:
    """A digest of all pins."""
    digest = hashlib.sha256(sys.version[:4].encode())
    for file in sorted(PINS.iterdir()):
        digest.update(file.read_bytes())
    return digest.hexdigest()[:12]


@contextlib.contextmanager
def _lock(path: Path, say: Say) -> Iterator[None]:
    """Let one process install at a time; the system lets go of the lock if this process and its step die."""
    with path.open("w") as file:
        os.set_inheritable(file.fileno(), True)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("another process is installing it; waiting")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def main() -> int:
    """Install all parts; one that fails does not keep the others away."""
    failed = False
    for part in PARTS:
        try:
            # Progress apart from the answer, so that a script can take the paths from standard output.
            print(ensure(part, say=lambda text: print(text, file=sys.stderr, flush=True)))
        except InstallFailed as error:
            print(f"{part}: {error}", file=sys.stderr)
            failed = True
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
