"""What is rendered, and what several targets need to know about it."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from switchyard.cluster.checks.network import gateway_node
from switchyard.cluster.launch import Launch, engine_flags, launches
from switchyard.cluster.place import Layout
from switchyard.cluster.render.policy import API_KEYS_ENV, policy_text
from switchyard.cluster.render.yaml_text import comment
from switchyard.cluster.spec import Cluster, Node
from switchyard.config.load import required_variables
from switchyard.config.policy import Policy

Files = dict[str, str]
"""Paths from the output directory, and their texts."""

REDIS_IMAGE = "redis:8-alpine"


@dataclass(frozen=True)
class Source:
    """What is rendered.

    Attributes:
        cluster: the cluster.
        layout: where its replicas run.
        file: name of its file, for comments.
        policy_source: text of the policy that `gateway.policy` names, if it does.
        policy: the same, read.
        run_rank: text of the script that ends a rank when its replica is dead.
    """

    cluster: Cluster
    layout: Layout
    file: str
    policy_source: str | None
    policy: Policy | None
    run_rank: str

    @property
    def launches(self) -> tuple[Launch, ...]:
        """Every rank that is started."""
        return launches(self.cluster, self.layout)

    def machine(self, node: Node) -> str:
        """The name under which a machine's files stand: that of its first node."""
        return next(n.name for n in self.cluster.nodes if n.mgmt == node.mgmt)

    @property
    def gateway_node(self) -> Node:
        """Where the gateway runs.

        Raises:
            ValueError: no node is active.
        """
        node = gateway_node(self.cluster)
        if node is None:
            raise ValueError("no node is active")
        return node

    @property
    def state(self) -> str:
        """The policy's `server.state`."""
        return self.policy.server.state if self.policy is not None else "memory"

    @property
    def redis_host(self) -> str | None:
        """Name of a Redis that has to be started: without dots, and asked for as ours answers. Any other is somebody's."""
        found = re.match(r"redis://([A-Za-z][A-Za-z0-9-]*)(?::6379)?(?=/|$)", self.state)
        return found[1] if found is not None and found[1] != "localhost" else None

    @property
    def gateway_keys(self) -> tuple[str, ...]:
        """Variables that the gateway needs: keys of clients, admins and engines, and what its policy takes as ${NAME}."""
        server = self.policy.server if self.policy is not None else None
        named = [API_KEYS_ENV] if server is None else [server.api_keys_env, server.admin_key_env]
        named += [p.api_key_env for p in self.cluster.pools.values()]
        named += [p.api_key_env for n, p in self.policy.pools.items() if n not in self.cluster.pools] if self.policy else []
        if self.policy_source is not None:
            named += required_variables(policy_text({}, self.policy_source, self.cluster.gateway.port).encode())
        return tuple(dict.fromkeys(name for name in named if name is not None))

    @property
    def stop_s(self) -> int:
        """Whole seconds that the gateway has for stopping: as long as the policy lets running answers go on, and a little."""
        server = self.policy.server if self.policy is not None else None
        return math.ceil((server.drain_delay_s + server.drain_s if server is not None else 30) + 10)

    @property
    def build_gateway(self) -> str:
        """What makes the gateway's image."""
        return f"docker build -f deploy/Dockerfile -t {self.cluster.gateway.image} ."

    @property
    def downloads(self) -> str:
        """What puts the checkpoints where engines look for them."""
        steps = []
        for name, pool in self.cluster.pools.items():
            nodes = list(dict.fromkeys(n for replica in self.layout.of(name) for n in replica.nodes))
            if not nodes:
                continue
            if pool.path is not None:
                steps.append(f"{pool.model} as `{pool.path}` inside the container on {', '.join(nodes)}")
                continue
            places: dict[str, list[str]] = {}
            for node in nodes:
                places.setdefault(self.cluster.node(node).models_dir, []).append(node)
            for folder, there in places.items():
                steps.append(f"`HF_HUB_CACHE={folder}/hub hf download {pool.model}` on {', '.join(there)}")
        return (
            "Put the checkpoints into each node's models directory: "
            + "; ".join(steps)
            + ". Engines are offline, so that all ranks run the same files."
        )

    def uneven(self) -> list[str]:
        """Pools whose replicas are not all started alike, since their nodes differ: one template doesn't fit all."""
        found = []
        for name, pool in self.cluster.pools.items():
            ways = {(x.image, x.node.models_dir, engine_flags(pool, x.node)) for x in self.launches if x.replica.pool == name}
            if len(ways) > 1:
                found.append(name)
        return found

    @property
    def log_dir_needed(self) -> bool:
        """Whether the policy writes a decision log, whose path is relative to where the gateway runs."""
        return self.policy is not None and self.policy.server.decision_log is not None

    def header(self, what: str) -> str:
        """The first lines of a file."""
        return f"{what}\n\nWritten by `switchyard cluster render` from {self.file}: change that, and render again.\n"

    def keys_example(self, names: tuple[str, ...]) -> str:
        """A file with the names of secrets, to be copied and filled in."""
        head = "Copy without .example, fill in, and keep it to yourself (chmod 600).\n"
        return comment(self.header(head.rstrip())) + "".join(f"{name}=\n" for name in names)


def readme(title: str, *steps: str) -> str:
    """A page on what to do with the files."""
    return f"# {title}\n\n" + "\n".join(f"{i}. {step}" for i, step in enumerate(steps, 1)) + "\n"
