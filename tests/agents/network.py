"""A network that has nothing but loopback, for the time of a `with`: what an agent sends home goes nowhere.

Linux only, and root. The calling thread moves; what it starts meanwhile, threads and processes, begins there. Sockets
that were opened before stay where they were.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import subprocess
from collections.abc import Iterator

CLONE_NEWNET = 0x40000000  # linux/sched.h
OWN = "/proc/thread-self/ns/net"


class NoNetwork(Exception):
    """This machine lets us make no network namespace; the message says why and what helps."""


@contextlib.contextmanager
def loopback_only() -> Iterator[None]:
    """Move this thread into a new network namespace with `lo` up, and back at the end.

    Raises:
        NoNetwork: the system refuses.
    """
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        home = os.open(OWN, os.O_RDONLY | os.O_CLOEXEC)
    except (OSError, TypeError) as error:
        raise NoNetwork(f"network namespaces are a feature of Linux: {error}") from None
    try:
        if libc.unshare(CLONE_NEWNET):
            raise NoNetwork(f"unshare(CLONE_NEWNET): {os.strerror(ctypes.get_errno())}; that needs root")
        try:
            _raise_loopback()
            yield
        finally:
            if libc.setns(home, CLONE_NEWNET):
                raise OSError(ctypes.get_errno(), "can't return to the machine's own network")
    finally:
        os.close(home)


def _raise_loopback() -> None:
    try:
        subprocess.run(["ip", "link", "set", "lo", "up"], check=True, capture_output=True)
    except FileNotFoundError:
        raise NoNetwork("the command `ip` is not there: apt-get install iproute2") from None
    except subprocess.CalledProcessError as error:
        raise NoNetwork(f"ip link set lo up: {error.stderr.decode(errors='replace').strip()}") from None
