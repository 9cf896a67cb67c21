"""Target `compose`: for each node a directory with compose.yaml and what it needs, to be copied to that node."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from switchyard.cluster.launch import MODELS, Launch
from switchyard.cluster.render.policy import host, mgmt_url
from switchyard.cluster.render.pools import gateway_policy
from switchyard.cluster.render.source import REDIS_IMAGE, Files, Source, readme
from switchyard.cluster.render.yaml_text import comment, to_yaml

RUN_RANK = "/opt/switchyard/run_rank.py"
START_PERIOD = "3600s"


def compose_files(source: Source) -> Files:
    """Directories by the names of nodes, and a README."""
    files: Files = {}
    by_node: dict[str, list[Launch]] = {}
    for launch in source.launches:
        by_node.setdefault(source.machine(launch.node), []).append(launch)
    gateway = source.machine(source.gateway_node)
    for name in dict.fromkeys([*by_node, gateway]):
        ranks = by_node.get(name, [])
        services = {rank.name: engine_service(rank) for rank in ranks}
        volumes: dict[str, Any] = {}
        if name == gateway:
            services |= gateway_services(source)
            volumes = {"gateway-log": {}} if source.log_dir_needed else {}
            files[f"{name}/gateway/policy.yaml"] = gateway_policy(source, mgmt_url(source.cluster))
        document: dict[str, Any] = {"name": "switchyard", "services": services} | ({"volumes": volumes} if volumes else {})
        head = source.header(f"What runs on {name} ({source.cluster.node(name).mgmt}).")
        files[f"{name}/compose.yaml"] = comment(head) + to_yaml(document)
        if any(rank.wide for rank in ranks):
            files[f"{name}/node.env"] = node_env_text(source, ranks[0])
            files[f"{name}/run_rank.py"] = source.run_rank
        keys = [rank.api_key_env for rank in ranks] + (list(source.gateway_keys) if name == gateway else [])
        named = tuple(dict.fromkeys(key for key in keys if key is not None))
        if named:
            files[f"{name}/.env.example"] = source.keys_example(named)
    files["README.md"] = _readme(source, list(dict.fromkeys([*by_node, gateway])))
    return files


def engine_service(launch: Launch) -> dict[str, Any]:
    """The service of one rank."""
    service: dict[str, Any] = {"image": launch.image}
    if launch.wide:
        service |= {
            "#rank": f"rank {launch.rank} of {len(launch.replica.nodes)}; the wrapper ends it when the replica gives no token",
            "entrypoint": ["python3", RUN_RANK, head_url(launch), launch.model],
            "command": [literal(word) for word in launch.argv],
            "#node": "what differs between nodes: interfaces and addresses",
            "env_file": ["node.env"],
        }
    else:
        service |= {"entrypoint": [launch.argv[0]], "command": [literal(word) for word in launch.argv[1:]]}
    environment: dict[str, Any] = {name: literal(value) for name, value in launch.env.items()}
    if launch.api_key_env is not None:
        environment["VLLM_API_KEY"] = from_env_file(launch.api_key_env)
    volumes = [f"{launch.node.models_dir}:{MODELS}:ro"] + ([f"./run_rank.py:{RUN_RANK}:ro"] if launch.wide else [])
    service |= {
        "environment": environment,
        "network_mode": "host",
        "#ipc": "the machine's /dev/shm: at least 10 GB are needed",
        "ipc": "host",
        **_gpus(launch),
        "volumes": volumes,
        "ulimits": {"memlock": -1, "stack": 67108864},
        **({"cap_add": ["IPC_LOCK"], "devices": ["/dev/infiniband:/dev/infiniband"]} if launch.rdma else {}),
        "restart": "unless-stopped",
        "stop_grace_period": "60s",
        "logging": {"driver": "local", "options": {"max-size": "50m", "max-file": "5"}},
    }
    if launch.rank == 0:
        service["healthcheck"] = healthcheck(launch.port, "/health", START_PERIOD)
    return service


def head_url(launch: Launch) -> str:
    """Where the ranks of a replica ask its head."""
    return f"http://{'127.0.0.1' if launch.rank == 0 else host(master_address(launch))}:{launch.port}"


def master_address(launch: Launch) -> str:
    """The head's address, as the command line names it."""
    return launch.argv[launch.argv.index("--master-addr") + 1]


def _gpus(launch: Launch) -> dict[str, Any]:
    devices: Mapping[str, Any] = {"driver": "nvidia", "capabilities": ["gpu"]}
    which = {"count": "all"} if launch.whole_machine else {"device_ids": [str(gpu) for gpu in launch.gpus]}
    return {"deploy": {"resources": {"reservations": {"devices": [{**devices, **which}]}}}}


def healthcheck(port: int, path: str, start_period: str) -> dict[str, Any]:
    """A check that needs nothing but the image's Python."""
    ask = f"import urllib.request as u; u.urlopen('http://127.0.0.1:{port}{path}', timeout=5)"
    return {
        "test": ["CMD", "python3", "-c", ask],
        "interval": "10s",
        "timeout": "10s",
        "retries": 3,
        "start_period": start_period,
    }


def from_env_file(name: str) -> str:
    """A value that compose takes from .env beside compose.yaml, and refuses to start without."""
    return f"${{{name}:?set {name} in .env}}"


def literal(text: str) -> str:
    """A text that compose doesn't look for variables in."""
    return text.replace("$", "$$")


def node_env_text(source: Source, launch: Launch) -> str:
    """The variables of a node, for ranks that talk to other nodes."""
    head = source.header(f"Addresses and cards of {launch.node.name}, for ranks that talk to other nodes.")
    hint = "At the first start add NCCL_DEBUG=INFO and look for NET/IB in the log: NET/Socket means slow TCP.\n"
    return comment(head + "\n" + hint) + env_lines(launch.node_env)


def env_lines(env: Mapping[str, str]) -> str:
    """NAME=value, one a line."""
    return "".join(f"{name}={value}\n" for name, value in env.items())


def gateway_services(source: Source) -> dict[str, Any]:
    """The gateway, and Redis where the policy keeps its state in one of ours."""
    port = source.cluster.gateway.port
    volumes = ["./gateway:/etc/switchyard:ro"] + (["gateway-log:/var/lib/switchyard"] if source.log_dir_needed else [])
    gateway: dict[str, Any] = {
        "image": source.cluster.gateway.image,
        "command": ["serve", "/etc/switchyard/policy.yaml", "--host", "0.0.0.0", "--port", str(port)],
        "ports": [f"{port}:{port}"],
        "environment": {name: from_env_file(name) for name in source.gateway_keys},
        "#volumes": "a directory, not the file: the gateway sees a change only when the file is replaced in it",
        "volumes": volumes,
        **({"working_dir": "/var/lib/switchyard"} if source.log_dir_needed else {}),
        "restart": "unless-stopped",
        "#stop": "as long as the policy lets running answers go on, and a little",
        "stop_grace_period": f"{source.stop_s}s",
        "healthcheck": healthcheck(port, "/healthz", "30s"),
        "logging": {"driver": "local", "options": {"max-size": "50m", "max-file": "5"}},
    }
    services: dict[str, Any] = {"gateway": gateway}
    if source.redis_host is not None:
        gateway["depends_on"] = [source.redis_host]
        services[source.redis_host] = {
            "#redis": "shared state of gateways; nothing in it has to outlive a restart",
            "image": REDIS_IMAGE,
            "command": ["redis-server", "--save", "", "--appendonly", "no"],
            "restart": "unless-stopped",
            "logging": {"driver": "local"},
        }
    return services


def _readme(source: Source, nodes: list[str]) -> str:
    copies = "; ".join(f"`rsync -a {n}/ {host(source.cluster.node(n).mgmt)}:switchyard/`" for n in nodes)
    return readme(
        "Docker Compose, one directory a node",
        source.downloads,
        f"The gateway's image is yours to build, in a clone of Switchyard on {source.machine(source.gateway_node)}: "
        f"`{source.build_gateway}`.",
        f"Copy each directory to its node: {copies}.",
        "Where there is a `.env.example`, copy it to `.env` on the node and fill it in.",
        "On each node: `docker compose up -d`. All ranks of a replica have to be started; the head answers after minutes.",
        f"Ask the gateway: `curl http://{host(source.gateway_node.mgmt)}:{source.cluster.gateway.port}/readyz`.",
    )
