"""Reading what commands are given: policies and requests, with one clear line when that fails."""

from __future__ import annotations

import sys
from pathlib import Path

from switchyard.cli.main import COULD_NOT_RUN, NOT_GOOD, CommandFailed
from switchyard.config.load import load_policy
from switchyard.config.policy import Policy
from switchyard.config.problem import PolicyError
from switchyard.config.secrets import Secrets, read_secrets


def read_policy(path: str) -> Policy:
    """The policy in a file; its problems go to stderr, one a line.

    Raises:
        CommandFailed: it can't be read, or is not good.
    """
    try:
        return load_policy(path)
    except PolicyError as error:
        print(error, file=sys.stderr)
        count = len(error.problems)
        raise CommandFailed(f"{path} has {count} problem{'s' if count > 1 else ''}", NOT_GOOD) from None
    except OSError as error:
        raise CommandFailed(f"can't read {path}: {error.strerror}", COULD_NOT_RUN) from None


def read_policy_secrets(policy: Policy, path: str) -> Secrets:
    """The keys that a policy names.

    Raises:
        CommandFailed: a variable is unset or empty.
    """
    try:
        return read_secrets(policy, path)
    except PolicyError as error:
        print(error, file=sys.stderr)
        raise CommandFailed(f"{path} names keys that are not there", NOT_GOOD) from None


def read_bytes(path: str) -> bytes:
    """A file, or standard input for `-`.

    Raises:
        CommandFailed: it can't be read.
    """
    try:
        return sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()
    except OSError as error:
        raise CommandFailed(f"can't read {path}: {error.strerror}", COULD_NOT_RUN) from None
