"""Where a pool's replicas come from when the policy doesn't list them: a DNS name, or a file that lists them by pool.

    qwen: [http://10.0.0.1:8000, {url: http://10.0.0.3:8000, name: qwen-2, nodes: [s3, s4]}]
    minicpm: [http://10.0.0.7:8000]

One such file serves all pools; the entries are those of a policy. It is read as strictly as a policy. Who asks a name
server, and when, is `pools/discovery.py`.
"""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

from pydantic import ValidationError

from switchyard.config.load import read_strictly
from switchyard.config.pool import Replica
from switchyard.config.problem import Problem


class BadSource(Exception):
    """The source says nothing that can be used; the message says what is wrong with it."""


def file_path(source: str, folder: Path) -> Path:
    """The path that a `file://` source means; relative ones begin at the policy's folder."""
    return folder / source.removeprefix("file://")


def host_and_port(source: str) -> tuple[str, int]:
    """What a `dns://` source asks for."""
    parts = urlsplit(source)
    return parts.hostname or "", parts.port or 80


def read_replica_file(raw: bytes, file: str, pool: str) -> tuple[Replica, ...]:
    """A pool's replicas in the bytes of a file.

    Raises:
        BadSource: it can't be read, doesn't have the pool, or lists something that is no replica.
    """
    data, places, problems = read_strictly(raw, file)
    if problems:
        raise BadSource("; ".join(map(str, problems)))
    if pool not in data:
        raise BadSource(f"{file} has no pool {pool}; it has: {', '.join(map(str, data)) or 'none'}")
    entries = data[pool]
    if not isinstance(entries, list) or not entries:
        raise BadSource(f"{file}: {pool}: a list of at least one replica is expected")
    found: dict[str, Replica] = {}
    for i, entry in enumerate(entries):
        line, column = places.get((pool, i), (1, 1))
        try:
            replica = Replica.model_validate(entry)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            key = ".".join([f"{pool}[{i}]", *map(str, first["loc"])])
            raise BadSource(str(Problem(file, line, column, key, first["msg"]))) from None
        if replica.label in found:
            raise BadSource(str(Problem(file, line, column, f"{pool}[{i}]", f"{replica.label} is listed twice")))
        found[replica.label] = replica
    return tuple(found.values())
