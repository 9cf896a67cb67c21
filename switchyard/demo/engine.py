"""One embedded engine: llama.cpp's server from the package `xllamacpp`, in a process of its own.

`EmbeddedEngine` is the parent's side. Run as a program, this module is the child: it loads the model, serves it on the
loopback address and ends when its parent does. Fetching the model belongs to `model`, ending processes to `process`.
"""

import argparse
import contextlib
import ctypes
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from switchyard.demo.process import LOOPBACK, EngineProcess, pick_port, why_taken

EXIT_FAILED = 1
EXIT_MISSING_PACKAGE = 3

_PARENT_POLL_INTERVAL_S = 0.5
_PR_SET_PDEATHSIG = 1
_LOG_ERRORS, _LOG_ALL = 1, 3
# llama.cpp would keep up to 8 GB of old prompts; this holds several whole contexts of a small model.
_PROMPT_CACHE_MB = 256


class EmbeddedEngine(EngineProcess):
    """A small model served by llama.cpp on a loopback port, with its OpenAI and Anthropic endpoints.

    Args:
        model: A GGUF file.
        port: Where to listen; 0 picks a free port, so that `url` is known before the start.
        alias: The model name it answers to and reports.
        context_tokens: Context in all; each slot has an equal share, which limits one request.
        slots: How many requests are generated at the same time; more wait.
        threads: CPU threads for generation.
        template: A Jinja chat template to use in place of the model's own.
        verbose: Log everything, not only errors.
        log_path: Where the log goes; an unnamed temporary file if left out.
    """

    def __init__(
        self,
        model: Path,
        *,
        port: int = 0,
        alias: str = "smollm2",
        context_tokens: int = 8192,
        slots: int = 4,
        threads: int = 1,
        template: Path | None = None,
        verbose: bool = False,
        log_path: Path | None = None,
    ) -> None:
        port = port or pick_port()
        command = [sys.executable, "-m", "switchyard.demo.engine", "--model", str(model), "--port", str(port)]
        command += ["--alias", alias, "--context", str(context_tokens), "--slots", str(slots)]
        command += ["--threads", str(threads), "--parent", str(os.getpid())]
        command += ["--template", str(template)] if template else []
        command += ["--verbose"] if verbose else []
        super().__init__(command, name=f"engine {alias}", port=port, ready_within_s=60.0, log_path=log_path)


def main(argv: Sequence[str] | None = None) -> int:
    """Serve a model until a signal comes or the parent ends."""
    options = _parse(argv)
    # The default action ends the process at once, also while the model loads; there is nothing to put away.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    _follow_parent(options.parent)
    try:
        return _serve(options)
    except _StartFailure as failure:
        print(f"switchyard engine: {failure}", file=sys.stderr, flush=True)
        return failure.status


class _StartFailure(Exception):
    """A reason not to serve, for the user, with the exit status."""

    def __init__(self, reason: str, status: int = EXIT_FAILED) -> None:
        super().__init__(reason)
        self.status = status


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m switchyard.demo.engine", description="Serve a GGUF model.")
    parser.add_argument("--model", type=Path, required=True, help="the GGUF file")
    parser.add_argument("--port", type=int, required=True, help=f"port on {LOOPBACK}; 0 takes a free one")
    parser.add_argument("--alias", required=True, help="the model name it answers to")
    parser.add_argument("--context", type=int, default=8192, help="tokens of context, shared equally by the slots")
    parser.add_argument("--slots", type=int, default=4, help="requests generated at the same time")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads")
    parser.add_argument("--template", type=Path, help="a Jinja chat template in place of the model's own")
    parser.add_argument("--verbose", action="store_true", help="log everything to standard error, not only errors")
    parser.add_argument("--parent", type=int, default=os.getppid(), help="end with this process (the parent)")
    return parser.parse_args(argv)


def _serve(options: argparse.Namespace) -> int:
    """Load the model, serve it, and return when the parent has ended."""
    try:
        import xllamacpp  # an extra, and 100 MB: only the child needs it
    except ImportError as error:
        raise _StartFailure(
            f"the embedded engine needs the package xllamacpp ({error}): pip install 'switchyard-gateway[demo]'",
            EXIT_MISSING_PACKAGE,
        ) from error
    if not options.model.is_file():
        raise _StartFailure(f"there is no model at {options.model}")
    # Told apart here, since llama.cpp's failure is the same for a taken port and for a bad model.
    if reason := why_taken(options.port):
        raise _StartFailure(f"cannot listen on {LOOPBACK}:{options.port}: {reason}; choose another --port")

    params = xllamacpp.CommonParams()
    params.model.path = str(options.model)
    params.model_alias = {options.alias}
    params.hostnames = [LOOPBACK]
    params.port = options.port
    params.n_ctx = options.context
    params.n_parallel = options.slots
    params.cpuparams.n_threads = options.threads
    params.cache_ram_mib = _PROMPT_CACHE_MB
    params.use_jinja = True
    params.endpoint_metrics = True
    params.ui = False
    params.cors_origins = ""  # by default any web page that the user visits may ask the engine
    params.verbosity = _LOG_ALL if options.verbose else _LOG_ERRORS
    if options.template:
        params.chat_template = _read_template(options.template)
    try:
        server = xllamacpp.Server(params)
    except RuntimeError as error:
        hint = "" if options.verbose else "; --verbose shows llama.cpp's log"
        raise _StartFailure(f"llama.cpp cannot serve {options.model} on port {options.port}: {error}{hint}") from error
    print(f"{options.alias} is served at {server.listening_address}", flush=True)
    while os.getppid() == options.parent:
        time.sleep(_PARENT_POLL_INTERVAL_S)
    # Not a plain return: the server's destructor would first finish what it is generating, for nobody.
    os._exit(0)


def _read_template(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise _StartFailure(f"cannot read the chat template {path}: {error}") from error


def _follow_parent(parent: int) -> None:
    """End at once when the parent does, where the kernel can tell us (Linux); `_serve` also polls.

    The kernel counts the *thread* that started us as the parent, and threads end early. So the signal only makes us
    look whether the process is gone too.
    """

    def end_if_orphaned(number: int = 0, frame: FrameType | None = None) -> None:
        if os.getppid() != parent:
            os._exit(0)

    if sys.platform == "linux":
        signal.signal(signal.SIGUSR1, end_if_orphaned)
        with contextlib.suppress(OSError, AttributeError):  # a C library without prctl: polling is enough
            ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGUSR1)
    end_if_orphaned()


if __name__ == "__main__":
    sys.exit(main())
