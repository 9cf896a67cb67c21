"""Target `leaderworkerset`: Kubernetes manifests. Each pool is a LeaderWorkerSet, whose groups are its replicas."""

from __future__ import annotations

import shlex
from typing import Any

from switchyard.cluster.launch import MODELS, Launch, engine_flags, node_environment, serve, wide_flags
from switchyard.cluster.place import Replica
from switchyard.cluster.render.kubernetes import (
    ETC,
    KEYS,
    Manifest,
    gateway_manifests,
    literal,
    manifest,
    redis_manifests,
    secret_env,
)
from switchyard.cluster.render.pools import gateway_policy
from switchyard.cluster.render.source import Files, Source, readme
from switchyard.cluster.render.yaml_text import comment, to_yaml
from switchyard.cluster.spec import Pool

API = "leaderworkerset.x-k8s.io/v1"
LWS = "leaderworkerset.sigs.k8s.io"
START_S, PROBE_S = 3600, 10


def leaderworkerset_files(source: Source) -> Files:
    """A file for each pool, one for the gateway, and the labels that tie replicas to nodes."""
    namespace = manifest("v1", "Namespace", source.cluster.kubernetes.namespace, None)
    policy = gateway_policy(source, lambda replica: service_url(source, replica), with_nodes=False)
    files = {
        "namespace.yaml": _documents(source, "Everything is in here.", [namespace]),
        "gateway.yaml": _documents(source, "The gateway.", gateway_manifests(source, policy)),
        "labels.sh": labels_script(source),
        "README.md": _readme(source),
    }
    if source.gateway_keys:
        files["keys.env.example"] = source.keys_example(source.gateway_keys)
    for name in source.cluster.pools:
        if source.layout.of(name):
            files[f"{name}.yaml"] = _documents(source, f"Pool {name}.", pool_manifests(source, name))
    if source.redis_host is not None:
        what = "Redis: state that gateways share. Nothing in it has to outlive a restart."
        files["redis.yaml"] = _documents(source, what, redis_manifests(source, source.redis_host))
    return files


def _documents(source: Source, what: str, manifests: list[Manifest]) -> str:
    return comment(source.header(what)) + "---\n".join(map(to_yaml, manifests))


def service_url(source: Source, replica: Replica) -> str:
    """A leader's own name in the cluster's DNS: group i of LeaderWorkerSet NAME has the leader NAME-i."""
    pool, space = source.cluster.pools[replica.pool], source.cluster.kubernetes.namespace
    index = [r.number for r in source.layout.of(replica.pool)].index(replica.number)
    return f"http://{replica.pool}-{index}.{replica.pool}.{space}.svc.cluster.local:{pool.port}"


def node_label(pool: str) -> str:
    """The label of a pool's nodes. Its value is the replica that they belong to, as long as none has to share them."""
    return f"switchyard/{pool}"


def share_nodes(source: Source, pool: str) -> bool:
    """Whether some node has several replicas of the pool."""
    nodes = [node for replica in source.layout.of(pool) for node in replica.nodes]
    return len(set(nodes)) < len(nodes)


def labels_script(source: Source) -> str:
    """Kubectl commands that label the nodes."""
    lines = ["#!/bin/sh", comment(source.header("Which node belongs to which replica. Run once, and after a change.")).rstrip()]
    lines.append("set -eu")
    for pool in source.cluster.pools:
        used = {node for replica in source.layout.of(pool) for node in replica.nodes}
        if free := [node.name for node in source.cluster.nodes if node.name not in used]:  # moved away, or lent
            lines.append(f"kubectl label node {' '.join(free)} {node_label(pool)}-")
        if share_nodes(source, pool):
            nodes = " ".join(node.name for node in source.cluster.nodes if node.name in used)
            lines.append(f"kubectl label node --overwrite {nodes} {node_label(pool)}=shared")
            continue
        for replica in source.layout.of(pool):
            nodes = " ".join(replica.nodes)
            lines.append(f"kubectl label node --overwrite {nodes} {node_label(pool)}={replica.name}")
    return "\n".join(lines) + "\n"


def pool_manifests(source: Source, name: str) -> list[Manifest]:
    """ConfigMap (where ranks talk to each other), LeaderWorkerSet, and a Service for the heads."""
    pool, space = source.cluster.pools[name], source.cluster.kubernetes.namespace
    launch = next(x for x in source.launches if x.replica.pool == name)
    manifests = [_config_map(source, name, pool)] if launch.wide else []
    template: Manifest = {"size": pool.nodes_per_replica, "restartPolicy": "RecreateGroupOnPodRestart"}
    if launch.wide:
        template["leaderTemplate"] = _pod(source, launch, leader=True)
    template["workerTemplate"] = _pod(source, launch, leader=not launch.wide)
    lws = manifest(API, "LeaderWorkerSet", name, space)
    if not share_nodes(source, name):
        lws["metadata"]["annotations"] = {
            "#topology": "each group gets one value of this label, and has it for itself: the pairs that are cabled together",
            f"{LWS}/exclusive-topology": node_label(name),
        }
    lws["spec"] = {
        "replicas": len(source.layout.of(name)),
        "#startup": "ranks wait for their head anyway",
        "startupPolicy": "LeaderCreated",
        "networkConfig": {"subdomainPolicy": "Shared"},
        "rolloutStrategy": {"type": "RollingUpdate", "rollingUpdateConfiguration": {"maxUnavailable": 1, "maxSurge": 0}},
        "leaderWorkerTemplate": template,
    }
    selector = {f"{LWS}/name": name, f"{LWS}/worker-index": "0"}
    heads = manifest("v1", "Service", f"{name}-heads", space)
    heads["spec"] = {
        "#heads": "all heads under one name, for people; the gateway asks each by its own",
        "clusterIP": "None",
        "selector": selector,
        "ports": [{"name": "http", "port": pool.port}],
    }
    return [*manifests, lws, heads]


def _config_map(source: Source, name: str, pool: Pool) -> Manifest:
    nodes = dict.fromkeys(n for replica in source.layout.of(name) for n in replica.nodes)
    data: dict[str, Any] = {"#data": "what differs between nodes, by the node's name; and the script that ends a dead group"}
    for node in nodes:
        env = node_environment(source.cluster.node(node))
        env = {key: value for key, value in env.items() if key not in pool.env}  # the pool's own word wins
        data[f"{node}.sh"] = "".join(f"export {key}={shlex.quote(value)}\n" for key, value in env.items())
    data["run_rank.py"] = source.run_rank
    return manifest("v1", "ConfigMap", f"{name}-nodes", source.cluster.kubernetes.namespace, data=data)


def _pod(source: Source, launch: Launch, leader: bool) -> Manifest:
    """The template of a head or of another rank."""
    name, pool, wide = launch.replica.pool, source.cluster.pools[launch.replica.pool], launch.wide
    container: Manifest = {"name": "engine", "image": launch.image}
    if wide:
        container |= {"command": ["/bin/sh", "-c"], "args": [literal(_shell(source, launch, pool, leader))]}
    else:
        container["command"] = list(map(literal, launch.argv))
    container["env"] = _engine_env(launch)
    container["resources"] = {"limits": {source.cluster.kubernetes.gpu_resource: pool.gpus_per_node}}
    if launch.rdma:
        container |= {
            "#privileged": "for /dev/infiniband and locked memory; an RDMA device plugin and IPC_LOCK do as well",
            "securityContext": {"privileged": True},
        }
    if leader:
        container |= _engine_probes(pool)
    mounts = [{"name": "models", "mountPath": MODELS, "readOnly": True}, {"name": "shm", "mountPath": "/dev/shm"}]
    volumes: list[Manifest] = [
        {"name": "models", "hostPath": {"path": launch.node.models_dir, "type": "Directory"}},
        {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "16Gi"}},
    ]
    if wide:
        mounts.append({"name": "nodes", "mountPath": ETC})
        volumes.append({"name": "nodes", "configMap": {"name": f"{name}-nodes"}})
    if launch.rdma:
        mounts.append({"name": "infiniband", "mountPath": "/dev/infiniband"})
        volumes.append({"name": "infiniband", "hostPath": {"path": "/dev/infiniband", "type": "Directory"}})
    container["volumeMounts"] = mounts
    term = {"matchExpressions": [{"key": node_label(name), "operator": "Exists"}]}
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}}
    network: Manifest = {
        "#network": "ranks use the node's own cards, so the head's port is the node's, too",
        "hostNetwork": True,
        "dnsPolicy": "ClusterFirstWithHostNet",
    }
    spec: Manifest = {
        **(network if wide else {}),
        "affinity": affinity,
        "terminationGracePeriodSeconds": 60,
        "containers": [container],
        "volumes": volumes,
    }
    return {"metadata": {"labels": {"app.kubernetes.io/part-of": "switchyard", "switchyard/pool": name}}, "spec": spec}


def _shell(source: Source, launch: Launch, pool: Pool, leader: bool) -> str:
    """The command of a rank; its node and its place are known only when it runs."""
    late = {"MASTER": '"$LWS_LEADER_ADDRESS"', "RANK": "0" if leader else '"$LWS_WORKER_INDEX"'}
    place = [late.get(word, word) for word in wide_flags(pool, "MASTER", "RANK", headless=not leader)]
    line = " ".join([shlex.join(serve(pool)), *place, shlex.join(engine_flags(pool, launch.node))])
    watch = f"python3 {ETC}/run_rank.py http://127.0.0.1:{pool.port} {shlex.quote(pool.model)} " if leader else ""
    return f'. {ETC}/"$NODE_NAME".sh && exec {watch}{line}'


def _engine_env(launch: Launch) -> list[Manifest]:
    env: list[Manifest] = [{"name": name, "value": literal(value)} for name, value in launch.env.items()]
    if launch.wide:
        env.append({"name": "NODE_NAME", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}})
    if launch.api_key_env is not None:
        env.append(secret_env("VLLM_API_KEY", launch.api_key_env))
    return env


def _engine_probes(pool: Pool) -> Manifest:
    """Patient ones: a start takes minutes. Whether it really answers is asked by run_rank.py and by the gateway."""
    ask = {"httpGet": {"path": "/health", "port": pool.port}}
    return {
        "ports": [{"name": "http", "containerPort": pool.port}],
        "startupProbe": {**ask, "periodSeconds": PROBE_S, "failureThreshold": START_S // PROBE_S},
        "readinessProbe": {**ask, "periodSeconds": PROBE_S, "timeoutSeconds": 5},
        "livenessProbe": {**ask, "periodSeconds": 30, "timeoutSeconds": 20, "failureThreshold": 5},
    }


def _readme(source: Source) -> str:
    space = source.cluster.kubernetes.namespace
    order = ["redis.yaml"] if source.redis_host is not None else []
    order += [f"{name}.yaml" for name in source.cluster.pools if source.layout.of(name)] + ["gateway.yaml"]
    steps = [
        "Install LeaderWorkerSet (https://github.com/kubernetes-sigs/lws) and NVIDIA's device plugin. Names of nodes here are "
        "names of nodes there.",
        source.downloads,
        f"The gateway's image is yours to build, in a clone of Switchyard: `{source.build_gateway}`. Push it to a registry "
        "that `gateway.image` names, or put it onto the gateway's node: `docker save IMAGE | ctr -n k8s.io images import -`.",
        "`sh labels.sh` ties replicas to the nodes that are cabled together.",
        "`kubectl apply -f namespace.yaml`",
    ]
    if source.gateway_keys:
        secret = f"kubectl -n {space} create secret generic {KEYS} --from-env-file=keys.env"
        steps.append(f"Copy `keys.env.example` to `keys.env`, fill it in, `{secret}`, and remove it.")
    steps.append("`kubectl apply -f " + " -f ".join(order) + "`")
    steps.append(f"`kubectl -n {space} port-forward svc/switchyard-gateway {source.cluster.gateway.port}`, and ask it.")
    shared = [n.name for n in source.cluster.nodes if len({t.replica for t in source.layout.taken[n.name]}) > n.gpus]
    if shared:
        steps.append(f"Beware: replicas share a GPU on {', '.join(shared)}. Kubernetes does that only with GPU time-slicing.")
    heads = [r.name for r in source.layout.replicas if r.running and r.shift and len(r.nodes) > 1]
    if heads:
        steps.append(f"Beware: {', '.join(heads)} want the same port as another replica on their node, and won't start there.")
    if uneven := source.uneven():
        steps.append(f"Beware: nodes of {', '.join(uneven)} differ, and a pool has one template: all start as its first rank.")
    split = [n.name for n in source.cluster.nodes if n.gpu_ids]
    if split:
        steps.append(f"Beware: {', '.join(split)} are parts of one machine; Kubernetes picks GPUs itself and knows one node.")
    return readme("Kubernetes manifests", *steps)
