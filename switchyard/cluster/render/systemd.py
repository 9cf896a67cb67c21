"""Target `systemd`: a service for each rank and a target for each replica, which starts the containers with Docker."""

from __future__ import annotations

import re

from switchyard.cluster.launch import MODELS, Launch
from switchyard.cluster.render.compose import RUN_RANK, head_url, node_env_text
from switchyard.cluster.render.policy import host, mgmt_url
from switchyard.cluster.render.pools import gateway_policy
from switchyard.cluster.render.source import REDIS_IMAGE, Files, Source, readme
from switchyard.cluster.render.yaml_text import comment

ETC = "/etc/switchyard"
DOCKER = "/usr/bin/docker"
SWITCHYARD = "/opt/switchyard/bin/switchyard"
TOGETHER = "# when a rank ends, those on other nodes see that no token comes (run_rank.py) and end, too: all start anew"


def systemd_files(source: Source) -> Files:
    """For each node its units, and what belongs into /etc/switchyard."""
    files: Files = {}
    for launch in source.launches:
        at = source.machine(launch.node)
        files[f"{at}/units/{unit_name(launch)}"] = rank_unit(source, launch)
        files[f"{at}/units/{target_name(launch)}"] = group_target(source, launch)
        if launch.wide:
            files[f"{at}/etc/node.env"] = node_env_text(source, launch)
            files[f"{at}/etc/run_rank.py"] = source.run_rank
        if launch.api_key_env is not None:
            files[f"{at}/etc/{launch.replica.pool}.env.example"] = source.keys_example(("VLLM_API_KEY",))
    home = source.machine(source.gateway_node)
    files[f"{home}/units/switchyard-gateway.service"] = gateway_unit(source)
    files[f"{home}/etc/policy.yaml"] = gateway_policy(source, mgmt_url(source.cluster))
    if source.gateway_keys:
        files[f"{home}/etc/gateway.env.example"] = source.keys_example(source.gateway_keys)
    if source.redis_host is not None:
        files[f"{home}/units/switchyard-redis.service"] = redis_unit(source)
    files["README.md"] = _readme(source)
    return files


def unit_name(launch: Launch) -> str:
    """`switchyard-qwen-1-rank0.service`."""
    return f"switchyard-{launch.name}.service"


def target_name(launch: Launch) -> str:
    """`switchyard-qwen-1.target`; where one node is all, its service has the same name."""
    return f"switchyard-{launch.replica.name}.target"


def rank_unit(source: Source, launch: Launch) -> str:
    """The service of one rank."""
    container = f"switchyard-{launch.name}"
    what = f"rank {launch.rank} of {len(launch.replica.nodes)}" if launch.wide else "on one node"
    return comment(source.header(f"{launch.replica.name}, {what}: {launch.model} on {launch.node.name}.")) + _sections(
        {
            "Unit": [
                f"Description=Switchyard engine {launch.name} ({launch.model})",
                "Wants=network-online.target docker.service",
                "After=network-online.target docker.service",
                f"PartOf={target_name(launch)}",
            ],
            "Service": [
                *_container(container, docker_run(launch, container), stop_s=60),
                *([TOGETHER] if launch.wide else []),
                "Restart=always",
                "RestartSec=10",
                "TimeoutStartSec=0",
                "TimeoutStopSec=90",
            ],
        }
    )


def _container(name: str, run: list[str], stop_s: int) -> list[str]:
    """How a unit starts and stops a container."""
    return [
        "# a container of that name may be left over from a crash of the machine",
        f"ExecStartPre=-{DOCKER} rm --force {name}",
        f"ExecStart={_command(run)}",
        f"ExecStop=-{DOCKER} stop --time {stop_s} {name}",
    ]


def docker_run(launch: Launch, container: str) -> list[str]:
    """The `docker run` of a rank."""
    wide, node = launch.wide, launch.node
    gpus = "all" if launch.whole_machine else f'"device={",".join(map(str, launch.gpus))}"'
    argv = [DOCKER, "run", "--rm", "--name", container, "--network", "host", "--ipc", "host", "--gpus", gpus]
    argv += ["--log-driver", "local", "--ulimit", "memlock=-1", "--ulimit", "stack=67108864"]
    argv += ["--cap-add", "IPC_LOCK", "--device", "/dev/infiniband"] if launch.rdma else []
    argv += ["--env-file", f"{ETC}/node.env"] if wide else []
    argv += ["--env-file", f"{ETC}/{launch.replica.pool}.env"] if launch.api_key_env is not None else []
    for name, value in launch.env.items():
        argv += ["--env", f"{name}={value}"]
    argv += ["--volume", f"{node.models_dir}:{MODELS}:ro"]
    if not wide:
        return [*argv, "--entrypoint", launch.argv[0], launch.image, *launch.argv[1:]]
    argv += ["--volume", f"{ETC}/run_rank.py:{RUN_RANK}:ro", "--entrypoint", "python3", launch.image]
    return [*argv, RUN_RANK, head_url(launch), launch.model, *launch.argv]


def group_target(source: Source, launch: Launch) -> str:
    """What starts and stops this node's part of a replica."""
    names = ", ".join(launch.replica.nodes)
    return comment(source.header(f"This node's part of {launch.replica.name} ({names}).")) + _sections(
        {
            "Unit": [
                f"Description=Switchyard replica {launch.replica.name} of pool {launch.replica.pool}",
                f"Wants={unit_name(launch)}",
            ],
            "Install": ["WantedBy=multi-user.target"],
        }
    )


def gateway_unit(source: Source) -> str:
    """The gateway as a service, without a container."""
    port = source.cluster.gateway.port
    redis = " switchyard-redis.service" if source.redis_host is not None else ""
    return comment(source.header("The gateway. It needs no GPU.")) + _sections(
        {
            "Unit": [
                "Description=Switchyard gateway",
                f"Wants=network-online.target{redis}",
                f"After=network-online.target{redis}",
            ],
            "Service": [
                *([f"EnvironmentFile={ETC}/gateway.env"] if source.gateway_keys else []),
                f"ExecStart={SWITCHYARD} serve {ETC}/policy.yaml --host 0.0.0.0 --port {port}",
                "# decision logs with a relative path land in /var/lib/switchyard",
                "DynamicUser=yes",
                "StateDirectory=switchyard",
                "WorkingDirectory=/var/lib/switchyard",
                "Restart=always",
                "RestartSec=2",
                "# as long as the policy lets running answers go on, and a little",
                f"TimeoutStopSec={source.stop_s}",
                "LimitNOFILE=65536",
                "NoNewPrivileges=yes",
                "ProtectSystem=strict",
                "ProtectHome=yes",
                "PrivateTmp=yes",
            ],
            "Install": ["WantedBy=multi-user.target"],
        }
    )


def redis_unit(source: Source) -> str:
    """Redis for the state that gateways share."""
    container = "switchyard-redis"
    run = [DOCKER, "run", "--rm", "--name", container, "--log-driver", "local", "--publish", "127.0.0.1:6379:6379", REDIS_IMAGE]
    run += ["redis-server", "--save", "", "--appendonly", "no"]
    name = source.redis_host
    return comment(source.header(f"Redis, reached as {name}: add `127.0.0.1 {name}` to /etc/hosts.")) + _sections(
        {
            "Unit": ["Description=Redis of Switchyard", "Wants=docker.service", "After=docker.service"],
            "Service": [*_container(container, run, stop_s=10), "Restart=always", "RestartSec=2"],
            "Install": ["WantedBy=multi-user.target"],
        }
    )


def _sections(sections: dict[str, list[str]]) -> str:
    return "\n" + "\n".join(f"[{name}]\n" + "".join(f"{line}\n" for line in lines) for name, lines in sections.items())


def _command(argv: list[str]) -> str:
    """A command line as systemd reads it, an option with its value on a line."""
    lines: list[str] = []
    for word in argv:
        starts_line = not lines or word.startswith("--") or not lines[-1].startswith("--") or " " in lines[-1]
        if starts_line and lines:
            lines.append(_quoted(word))
        elif lines:
            lines[-1] += f" {_quoted(word)}"
        else:
            lines = [_quoted(word)]
    return " \\\n    ".join(lines)


def _quoted(word: str) -> str:
    """Systemd's own quoting: % and $ are special to it everywhere."""
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return escaped if re.fullmatch(r"[A-Za-z0-9_./:=,@+%$-]+", escaped) else f'"{escaped}"'


def _readme(source: Source) -> str:
    targets: dict[str, list[str]] = {}
    for launch in source.launches:
        targets.setdefault(source.machine(launch.node), []).append(target_name(launch))
    home = source.gateway_node
    extra = " switchyard-redis.service" if source.redis_host is not None else ""
    starts = "; ".join(f"on {name} `{' '.join(names)}`" for name, names in targets.items())
    return readme(
        "systemd units, one directory a node",
        source.downloads,
        f"Copy to each node: `units/` to `/etc/systemd/system/`, `etc/` to `{ETC}/`.",
        f"Copy each `*.env.example` in `{ETC}` without `.example`, fill it in, `chmod 600`.",
        f"On {source.machine(home)}, in a clone of Switchyard: `python3 -m venv /opt/switchyard` and "
        f"`/opt/switchyard/bin/pip install --constraint requirements.lock .`, so that {SWITCHYARD} is there.",
        f"`systemctl daemon-reload`, then `systemctl enable --now` {starts}.",
        f"On {source.machine(home)}: `systemctl enable --now{extra} switchyard-gateway.service`, "
        f"then `curl http://{host(home.mgmt)}:{source.cluster.gateway.port}/readyz`.",
    )
