"""What a LeaderWorkerSet may contain, as far as we write it: its API's fields (v1), written down by hand.

The pod templates inside are ordinary ones; they are checked with Kubernetes' own schemas.
"""

TEXT = {"type": "string", "minLength": 1}
COUNT = {"type": "integer", "minimum": 0}
NAME = {"type": "string", "pattern": "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", "maxLength": 63}


def block(required: list[str], **properties: object) -> dict[str, object]:
    return {"type": "object", "additionalProperties": False, "required": required, "properties": properties}


LABELS = {"type": "object", "additionalProperties": {"type": "string", "maxLength": 63}}
TEMPLATE = {
    "type": "object",
    "required": ["spec"],
    "properties": {"metadata": block([], labels=LABELS), "spec": {"type": "object"}},
}

LWS = block(
    ["apiVersion", "kind", "metadata", "spec"],
    apiVersion={"const": "leaderworkerset.x-k8s.io/v1"},
    kind={"const": "LeaderWorkerSet"},
    metadata=block(["name", "namespace"], name=NAME, namespace=NAME, labels=LABELS, annotations=LABELS),
    spec=block(
        ["replicas", "leaderWorkerTemplate"],
        replicas=COUNT,
        startupPolicy={"enum": ["LeaderCreated", "LeaderReady"]},
        networkConfig=block(["subdomainPolicy"], subdomainPolicy={"enum": ["Shared", "UniquePerReplica"]}),
        rolloutStrategy=block(
            ["type"],
            type={"const": "RollingUpdate"},
            rollingUpdateConfiguration=block([], maxUnavailable=COUNT, maxSurge=COUNT, partition=COUNT),
        ),
        leaderWorkerTemplate=block(
            ["workerTemplate", "size"],
            size={"type": "integer", "minimum": 1},
            restartPolicy={"enum": ["RecreateGroupOnPodRestart", "RecreateGroupAfterStart", "None"]},
            leaderTemplate=TEMPLATE,
            workerTemplate=TEMPLATE,
        ),
    ),
)
