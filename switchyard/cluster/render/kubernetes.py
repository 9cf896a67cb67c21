"""Kubernetes manifests of the gateway and its Redis."""

from __future__ import annotations

import re
from typing import Any

from switchyard.cluster.render.source import REDIS_IMAGE, Source

KEYS = "switchyard-keys"
"""The Secret with all keys; it is made by hand, and never written here."""
ETC = "/etc/switchyard"

Manifest = dict[str, Any]


def manifest(version: str, kind: str, name: str, namespace: str | None, **rest: Any) -> Manifest:
    """An object of Kubernetes, without its spec."""
    where = {} if namespace is None else {"namespace": namespace}
    labels = {"app.kubernetes.io/part-of": "switchyard"}
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name, **where, "labels": labels}, **rest}


def literal(text: str) -> str:
    """A text that Kubernetes looks for no variables in: in commands and values it would take out $(NAME), and $ of $$."""
    return re.sub(r"\$(?=[$(])", "$$", text)


def secret_env(variable: str, key: str) -> Manifest:
    """A variable whose value is in the Secret."""
    return {"name": variable, "valueFrom": {"secretKeyRef": {"name": KEYS, "key": key}}}


def gateway_manifests(source: Source, policy: str) -> list[Manifest]:
    """ConfigMap with the policy, Deployment, Service."""
    cluster = source.cluster
    space, port = cluster.kubernetes.namespace, cluster.gateway.port
    config = manifest("v1", "ConfigMap", "switchyard-policy", space)
    config["data"] = {"policy.yaml": policy}
    labels = {"app.kubernetes.io/name": "switchyard-gateway", "app.kubernetes.io/part-of": "switchyard"}
    container: Manifest = {
        "name": "gateway",
        "image": cluster.gateway.image,
        "#pull": "an image that was put onto the node by hand is in no registry",
        "imagePullPolicy": "IfNotPresent",
        "args": ["serve", f"{ETC}/policy.yaml", "--host", "0.0.0.0", "--port", str(port)],
        "ports": [{"name": "http", "containerPort": port}],
    }
    if source.gateway_keys:
        container["env"] = [secret_env(name, name) for name in source.gateway_keys]
    container |= {
        "readinessProbe": {"httpGet": {"path": "/readyz", "port": "http"}, "periodSeconds": 2},
        "#alive": "patient: a gateway that is busy must not be ended, and its streams with it",
        "livenessProbe": {"httpGet": {"path": "/healthz", "port": "http"}, "periodSeconds": 10, "timeoutSeconds": 5},
        "resources": {"requests": {"cpu": "1", "memory": "512Mi"}, "limits": {"memory": "2Gi"}},
        "#log": "a decision log with a relative path lands in /var/lib/switchyard, and goes with the pod",
        "workingDir": "/var/lib/switchyard",
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": 10001,
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [
            {"name": "policy", "mountPath": ETC, "readOnly": True},
            {"name": "log", "mountPath": "/var/lib/switchyard"},
            {"name": "tmp", "mountPath": "/tmp"},
        ],
    }
    deployment = manifest("apps/v1", "Deployment", "switchyard-gateway", space)
    pinned = cluster.gateway.node if cluster.gateway.replicas == 1 else None
    deployment["spec"] = {
        "replicas": cluster.gateway.replicas,
        "selector": {"matchLabels": labels},
        "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}},
        "template": {
            "metadata": {"labels": labels},
            "spec": {
                "#drain": "as long as the policy lets running answers go on, and a little",
                "terminationGracePeriodSeconds": source.stop_s,
                **({"nodeSelector": {"kubernetes.io/hostname": pinned}} if pinned is not None else {}),
                "containers": [container],
                "volumes": [
                    {"name": "policy", "configMap": {"name": "switchyard-policy"}},
                    {"name": "log", "emptyDir": {}},
                    {"name": "tmp", "emptyDir": {}},
                ],
            },
        },
    }
    service = manifest("v1", "Service", "switchyard-gateway", space)
    service["spec"] = {"selector": labels, "ports": [{"name": "http", "port": port, "targetPort": "http"}]}
    return [config, deployment, service]


def redis_manifests(source: Source, name: str) -> list[Manifest]:
    """A Redis without a disk."""
    space, labels = source.cluster.kubernetes.namespace, {"app.kubernetes.io/name": name}
    container = {
        "name": "redis",
        "image": REDIS_IMAGE,
        "args": ["redis-server", "--save", "", "--appendonly", "no"],
        "ports": [{"name": "redis", "containerPort": 6379}],
        "readinessProbe": {"tcpSocket": {"port": "redis"}, "periodSeconds": 5},
        "resources": {"requests": {"cpu": "100m", "memory": "128Mi"}, "limits": {"memory": "512Mi"}},
    }
    deployment = manifest("apps/v1", "Deployment", name, space)
    deployment["spec"] = {
        "replicas": 1,
        "selector": {"matchLabels": labels},
        "template": {"metadata": {"labels": labels}, "spec": {"containers": [container]}},
    }
    service = manifest("v1", "Service", name, space)
    service["spec"] = {"selector": labels, "ports": [{"name": "redis", "port": 6379, "targetPort": "redis"}]}
    return [deployment, service]
