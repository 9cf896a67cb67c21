"""Reads what `switchyard cluster render` wrote, as Docker and systemd would: which program runs, with what around it."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import yaml

ETC = "/etc/switchyard"
"""Where the units look for what the README tells to copy there."""


@dataclass(frozen=True)
class Container:
    """One engine's container.

    Attributes:
        argv: its program and arguments.
        environment: what is set for it besides what the image sets.
        volumes: paths of this machine, by where the container sees them.
    """

    argv: tuple[str, ...]
    environment: Mapping[str, str]
    volumes: Mapping[str, str] = field(compare=False)

    def without_container(self) -> tuple[list[str], dict[str, str]]:
        """Command and environment for a run without Docker: paths as this machine has them."""
        return [self._outside(word) for word in self.argv], {k: self._outside(v) for k, v in self.environment.items()}

    def _outside(self, word: str) -> str:
        for inside, outside in self.volumes.items():
            if word == inside or word.startswith(inside + "/"):
                return outside + word.removeprefix(inside)
        return word


def read_compose(folder: Path) -> dict[str, Container]:
    """The engines in a node's directory of target `compose`, by name."""
    services = yaml.safe_load((folder / "compose.yaml").read_text())["services"]
    found = {}
    for name, service in services.items():
        if name != "gateway":
            argv = [word.replace("$$", "$") for word in (*service["entrypoint"], *service["command"])]
            environment: dict[str, str] = {}
            for file in service.get("env_file", []):
                environment |= read_env(folder / file)
            environment |= {key: value.replace("$$", "$") for key, value in service["environment"].items()}
            found[name] = Container(tuple(argv), environment, _volumes(service["volumes"], "./", f"{folder}/"))
    return found


def read_units(folder: Path) -> dict[str, Container]:
    """The engines in a node's directory of target `systemd`, by name."""
    found = {}
    for file in sorted(folder.glob("units/*.service")):
        text = file.read_text().replace("\\\n", " ")
        (command,) = [line.removeprefix("ExecStart=") for line in text.splitlines() if line.startswith("ExecStart=")]
        words = [word.replace("%%", "%").replace("$$", "$") for word in shlex.split(command)]
        if words[1:2] == ["run"]:
            run = _docker_run().parse_args(words[2:])
            environment: dict[str, str] = {}
            for path in run.env_file:
                environment |= read_env(folder / "etc" / Path(path).relative_to(ETC))
            environment |= dict(setting.split("=", 1) for setting in run.env)
            volumes = _volumes(run.volume, f"{ETC}/", f"{folder}/etc/")
            found[run.name.removeprefix("switchyard-")] = Container((run.entrypoint, *run.words), environment, volumes)
    return found


def read_env(file: Path) -> dict[str, str]:
    """An environment file: NAME=value, one a line."""
    lines = [line for line in file.read_text().splitlines() if line and not line.startswith("#")]
    return dict(line.split("=", 1) for line in lines)


def _volumes(entries: list[str], prefix: str, replacement: str) -> dict[str, str]:
    """By the path inside; sources that begin with the prefix are in the rendered directory."""
    pairs = [entry.split(":")[:2] for entry in entries]
    return {
        inside: replacement + source.removeprefix(prefix) if source.startswith(prefix) else source for source, inside in pairs
    }


def _docker_run() -> argparse.ArgumentParser:
    """The options of `docker run` that are written; another one is an error."""
    parser = argparse.ArgumentParser(allow_abbrev=False, exit_on_error=False)
    for name in ("name", "network", "ipc", "gpus", "log-driver", "entrypoint"):
        parser.add_argument(f"--{name}", required=True)
    for name in ("ulimit", "cap-add", "device", "env-file", "env", "volume"):
        parser.add_argument(f"--{name}", action="append", default=[])
    parser.add_argument("--rm", action="store_true")
    parser.add_argument("image")
    parser.add_argument("words", nargs=argparse.REMAINDER)
    return parser
