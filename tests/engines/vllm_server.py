"""Run vLLM itself, on the CPU, as a server for tests.

Building the environment it runs in belongs to `vllm_env`. Run as a program, this module is the process between a test
and vLLM that takes vLLM along when the test run dies without a chance to stop it.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

if __name__ == "__main__":  # run from a checkout, where the package need not be installed
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from vllm_env import VllmEnv

from switchyard.demo.process import LOOPBACK, EngineProcess, pick_port

KV_CACHE_GB = 1
POLL_INTERVAL_S = 0.5


class VllmServer(EngineProcess):
    """A vLLM server on a loopback port; ready after about half a minute, with 4 GB of memory.

    Args:
        env: From `vllm_env.ensure`.
        port: Where to listen; 0 picks a free port.
        served_name: The model name it answers to and reports.
        tool_parser: How tool calls are read from the model's text; None turns tools off.
        max_model_len: The longest prompt plus answer, in tokens.
        max_num_seqs: How many requests are generated at the same time; more wait.
        tensor_parallel: Over how many processes, one core each, the model is split: 1 or 2.
        extra: More options for `vllm serve`.
        log_path: Where the log goes; an unnamed temporary file if left out.
    """

    def __init__(
        self,
        env: VllmEnv,
        port: int = 0,
        *,
        served_name: str = "smollm2",
        tool_parser: str | None = "hermes",
        max_model_len: int = 2048,
        max_num_seqs: int = 16,
        tensor_parallel: int = 1,
        extra: Sequence[str] = (),
        log_path: Path | None = None,
    ) -> None:
        port = port or pick_port()
        model = env.model_dir if tensor_parallel == 1 else env.model_tp_dir
        serve = serve_command(env, model, LOOPBACK, port, served_name, max_model_len, max_num_seqs)
        serve += ["--enable-request-id-headers", "--enable-server-load-tracking"]
        if tool_parser is not None:
            serve += ["--enable-auto-tool-choice", "--tool-call-parser", tool_parser]
        if tensor_parallel > 1:
            serve += ["--tensor-parallel-size", str(tensor_parallel)]
        super().__init__(
            [sys.executable, str(Path(__file__).resolve()), str(os.getpid()), *serve, *extra],
            name=f"vLLM {served_name}",
            port=port,
            ready_within_s=300.0,
            environ=environment(env, tensor_parallel),
            log_path=log_path,
            stop_within_s=20.0,
        )


def serve_command(
    env: VllmEnv, model: Path, host: str, port: int, served_name: str, max_model_len: int, max_num_seqs: int
) -> list[str]:
    """What every server of the tests is started with, on one node or on several."""
    return [
        str(env.vllm), "serve", str(model), "--served-model-name", served_name, "--host", host, "--port", str(port),
        "--max-model-len", str(max_model_len), "--max-num-seqs", str(max_num_seqs), "--chat-template", str(env.chat_template),
        # bfloat16 is several times slower on a CPU without instructions for it, and compiling pays only in long runs.
        "--dtype", "float32", "--enforce-eager",
    ]  # fmt: skip


def environment(env: VllmEnv, tensor_parallel: int = 1) -> dict[str, str]:
    """This process's environment, with vLLM kept offline, small and inside its own directory."""
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environ |= {
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_CPU_KVCACHE_SPACE": str(KV_CACHE_GB),
        "VLLM_CACHE_ROOT": str(env.root / "cache"),
        # --enforce-eager leaves small functions that are compiled, with g++, when the first request needs them: 10 s.
        "TORCH_COMPILE_DISABLE": "1",
    }
    if tensor_parallel > 1:
        cores = sorted(os.sched_getaffinity(0))[:tensor_parallel]
        environ["VLLM_CPU_OMP_THREADS_BIND"] = "|".join(map(str, cores))
    return environ


def run_while_parent_lives(parent: int, command: Sequence[str]) -> int:
    """Run a command and return its status; if the parent dies first, kill the whole process group, this one too."""
    # The group gets the signal, so the command ends by itself; we stay to see it end and to report its status.
    signal.signal(signal.SIGTERM, lambda number, frame: None)
    child = subprocess.Popen(command)
    while (status := child.poll()) is None:
        if os.getppid() != parent:
            os.killpg(os.getpgrp(), signal.SIGKILL)
        time.sleep(POLL_INTERVAL_S)
    return status if status >= 0 else 128 - status


if __name__ == "__main__":
    sys.exit(run_while_parent_lives(int(sys.argv[1]), sys.argv[2:]))
