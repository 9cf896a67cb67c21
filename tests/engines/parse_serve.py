"""Read command lines with vLLM's own parser, and say what it made of them. Run by Python inside vLLM's environment.

Standard input is a JSON list of command lines; the answer on standard output is a list with one object for each.
"""

import contextlib
import io
import json
import sys

from vllm.entrypoints.launchers.cli_args import make_arg_parser, validate_parsed_serve_args
from vllm.utils.argparse_utils import FlexibleArgumentParser

KEYS = (
    "model_tag", "served_model_name", "host", "port", "tensor_parallel_size", "nnodes", "node_rank", "master_addr",
    "master_port", "headless", "max_model_len", "max_num_seqs", "kv_cache_memory_bytes", "kv_cache_dtype",
    "tool_call_parser", "reasoning_parser", "enable_auto_tool_choice",
)  # fmt: skip


def read(argv: list[str]) -> dict[str, object]:
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            found = make_arg_parser(FlexibleArgumentParser(prog="vllm serve")).parse_args(argv)
            validate_parsed_serve_args(found)
    except SystemExit:
        return {"error": said.getvalue().strip().splitlines()[-1]}
    except (TypeError, ValueError) as error:
        return {"error": str(error)}
    return {key: getattr(found, key, None) for key in KEYS}


json.dump([read(argv) for argv in json.load(sys.stdin)], sys.stdout)
