"""Machines of the tests' own: namespaces of Linux, joined by virtual cables. Root only.

A node has its own network, processes, mounts, shared memory and host name, so that two ranks on two nodes share no more
than ranks on two machines do. Two networks, as in a cluster: `mgmt` leads from each node to where the gateway runs,
`fabric` joins two nodes directly.

Nothing of it has a name in the system, and nothing outlives the test run, however that ends: a node ends when our end
of its pipe closes, its processes end with it, and then its networks are gone too.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

FABRIC = "fabric"
"""The interface to the other nodes, in every node."""
_NAMESPACES = ("--net", "--mount", "--ipc", "--uts")
# Its own /dev/shm: by shared memory vLLM finds out which ranks are on one machine.
_BOOT = 'hostname "$0" && mount -t tmpfs tmpfs /dev/shm && ip link set lo up && echo up && exec cat'
_MISSING = "the command `{}` is not there: apt-get install iproute2 util-linux"


class NoNodes(Exception):
    """This machine lets us make no nodes; the message says why."""


class Node:
    """One machine. A context manager: inside, it is up.

    Args:
        name: its host name.
        number: 1 to 254, for its addresses.
    """

    def __init__(self, name: str, number: int) -> None:
        self.name = name
        self.mgmt = f"198.18.{number}.2"  # 198.18.0.0/15 is for tests of networks; nobody's machine has it
        self.fabric = f"198.19.0.{number}"
        self._gateway_end = f"198.18.{number}.1"
        self._init: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        alone = ["unshare", *_NAMESPACES, "--pid", "--fork", "--kill-child", "--mount-proc"]
        command = [*alone, "--", "sh", "-c", _BOOT, self.name]
        pipe = subprocess.PIPE
        try:
            self._init = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, process_group=0)
        except FileNotFoundError:
            raise NoNodes(_MISSING.format(command[0])) from None
        try:
            assert self._init.stdout is not None
            assert self._init.stderr is not None
            if self._init.stdout.readline() != b"up\n":
                raise NoNodes(f"a node doesn't come up: {self._init.stderr.read().decode(errors='replace').strip()}")
            _ip(f"link add {self.name} type veth peer name mgmt netns {self.pid}")
            _ip(f"addr add {self._gateway_end}/24 dev {self.name}")
            _ip(f"link set {self.name} up")
            self.ip(f"addr add {self.mgmt}/24 dev mgmt")
            self.ip("link set mgmt up")
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    def stop(self) -> None:
        """Switch it off: everything that runs on it is killed."""
        init, self._init = self._init, None
        if init is None:
            return
        init.kill()
        init.communicate()

    @property
    def pid(self) -> int:
        """The process that holds its namespaces; it is up as long as that one lives."""
        assert self._init is not None, f"{self.name} is not up"
        return self._init.pid

    def start(
        self, command: Sequence[str | Path], environment: Mapping[str, str], log: Path, folder: Path
    ) -> subprocess.Popen[bytes]:
        """Start a program on it, in a process group of its own; its output is appended to the log."""
        with log.open("ab") as out:
            return subprocess.Popen(
                [*self._inside(), *map(str, command)],
                stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, env=dict(environment), cwd=folder,
                process_group=0,
            )  # fmt: skip

    def ip(self, arguments: str) -> None:
        """Run iproute2's `ip` on it."""
        _run([*self._inside(), "ip", *arguments.split()])

    def cable_to(self, other: Node) -> None:
        """Join both with a cable of their own, the fabric."""
        _ip(f"link add {FABRIC} netns {self.pid} type veth peer name {FABRIC} netns {other.pid}")
        for node in (self, other):
            node.ip(f"addr add {node.fabric}/24 dev {FABRIC}")
            node.ip(f"link set {FABRIC} up")

    def _inside(self) -> list[str]:
        processes = f"--pid=/proc/{self.pid}/ns/pid_for_children"
        return ["nsenter", "--target", str(self.pid), *_NAMESPACES, processes, "--"]


@contextlib.contextmanager
def nodes(count: int) -> Iterator[list[Node]]:
    """That many nodes, named s1, s2 and so on, each with a cable to this network namespace.

    Raises:
        NoNodes: the system refuses.
    """
    with ExitStack() as stack:
        yield [stack.enter_context(Node(f"s{number}", number)) for number in range(1, count + 1)]


def end(process: subprocess.Popen[bytes], how: int = signal.SIGKILL, within_s: float = 20) -> None:
    """Send a signal to a program's whole group and wait for its end."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, how)
    process.wait(within_s)


def _ip(arguments: str) -> None:
    _run(["ip", *arguments.split()])


def _run(command: list[str]) -> None:
    try:
        subprocess.run(command, check=True, capture_output=True)
    except FileNotFoundError:
        raise NoNodes(_MISSING.format(command[0])) from None
    except subprocess.CalledProcessError as error:
        raise NoNodes(f"{' '.join(command)}: {error.stderr.decode(errors='replace').strip()}") from None
