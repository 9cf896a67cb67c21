"""deploy/cluster.yaml as frozen models: one class for each block of the file.

Field docstrings become the descriptions in the JSON Schema and in docs/reference/cluster.md. Whether a cluster makes
sense (does it fit? can these nodes talk?) is `fit.py`; here is only what can be said without arithmetic.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, ValidationInfo, field_validator, model_validator
from pydantic_core import PydanticCustomError

from switchyard.cluster.fields import (
    BYTES_A_PARAMETER,
    VISIBLE_GIB,
    VISIBLE_SHARE,
    Address,
    Directory,
    Flag,
    FlagName,
    Format,
    Gibibytes,
    Image,
    Interface,
    Label,
    Line,
    ModelName,
    Moment,
    NodeState,
    PathText,
    PoolName,
    Port,
    Rate,
    Resource,
)
from switchyard.config.block import Block, Count, Listed, Name, Variable, whole
from switchyard.config.load import Form, Loaded, parse
from switchyard.config.problem import FileError
from switchyard.config.references import Finding, nearest


class Fabric(Block):
    """The fast network between nodes; left out, every replica stays on one node."""

    kind: Literal["none", "direct", "ring", "switch"] = "none"
    """none; direct: nodes are cabled in pairs; ring: each to the next, in the order of `nodes`; switch: all to one switch."""
    collectives: Literal["nccl", "rocenante"] = "nccl"
    """nccl, or rocenante: FlashInfer's RoCE all-reduce, which only patched images call (`pools.NAME.image_has`)."""
    pairs: Listed[Annotated[Listed[Label], Field(min_length=2, max_length=2)]] = ()
    """With kind: direct, which nodes are cabled to each other; left out: first and second, third and fourth, and so on."""
    gid_index: Annotated[int, Field(ge=0, le=255)] = 3
    """NCCL_IB_GID_INDEX, the RoCE v2 entry that `show_gids` lists: 3 as a rule. A ring doesn't use it."""


class Hardware(Block):
    """What a machine is; under `node_defaults` for all of them, under a node for that one."""

    memory_gb: Gibibytes = 128
    """Nominal memory of one GPU; where CPU and GPU share it, of the machine."""
    visible_gib: Gibibytes | None = None
    """GiB that the machine really shows; left out: 121.7 for 128, else 95 % of the nominal size."""
    usable: Annotated[float, Field(gt=0, le=1)] = 0.80
    """Share of the visible memory that engines may take. Machines with shared memory freeze when it runs out."""
    unified: bool = True
    """Whether CPU and GPU share the memory, as on a DGX Spark."""
    gpus: Count = 1
    """GPUs of the machine."""
    arch: Literal["arm64", "amd64"] = "arm64"
    """Instruction set of its CPU: images are built for one or both."""
    image: Image | None = None
    """Image for engines on this machine, in place of the pool's."""
    fabric_ifname: Interface | None = None
    """Network interface that `fabric` is an address of. It may differ between machines: it follows from the port the cable
    is in."""
    hca: Listed[Interface] = ()
    """RDMA devices of that port, as `ibdev2netdev` lists them; a Spark's port has two, and needs both for 200 Gb/s.
    On a ring, those of both ports."""
    models_dir: Directory = "/srv/models"
    """Directory on the machine with the checkpoints; engines see it as /models, read-only, and as their model hub cache."""

    @property
    def shows_gib(self) -> float:
        """GiB that one GPU shows: as measured, else as assumed from the nominal size."""
        if self.visible_gib is not None:
            return self.visible_gib
        return VISIBLE_GIB.get(self.memory_gb, self.memory_gb * 1e9 / 2**30 * VISIBLE_SHARE)

    @property
    def usable_gib(self) -> float:
        """GiB of one GPU that engines may take."""
        return self.usable * self.shows_gib


class Node(Hardware):
    """A machine."""

    name: Label
    """Name in placements; with Kubernetes, the name of its node."""
    mgmt: Address
    """Address by which the gateway and people reach it."""
    fabric: Address | None = None
    """Address on the fabric, where ranks meet. A cable of a ring reaches the neighbours only: there, the same as `mgmt`."""
    gpu_ids: Listed[Annotated[int, Field(ge=0, le=255)]] = ()
    """Its GPUs as nvidia-smi counts them; left out: all from 0. Nodes with the same `mgmt` are one machine whose GPUs
    differ: each says which are its own."""
    state: NodeState = "active"
    """active; cordoned: nothing is placed on it; lent: somebody else has it until the lease ends."""
    owner: Line | None = None
    """Who has a lent node."""
    until: Moment | None = None
    """End of the lease, quoted, like '2026-12-01T18:00:00+01:00'."""

    @property
    def gpu_numbers(self) -> tuple[int, ...]:
        """Its GPUs as the machine counts them."""
        return self.gpu_ids or tuple(range(self.gpus))

    @model_validator(mode="after")
    def _lease(self) -> Node:
        if self.state == "lent" and (self.owner is None or self.until is None):
            raise PydanticCustomError("lease", "a lent node needs owner and until")
        if self.state != "lent" and (self.owner is not None or self.until is not None):
            raise PydanticCustomError("lease", "owner and until belong to a lent node: state is {s}", {"s": self.state})
        return self


class Checkpoint(Block):
    """The weights, as the checkpoint's files and its config.json say."""

    size_gib: Gibibytes | None = None
    """GiB of its weight files (`du -h`). Better than parameters and format: parts are often kept in a wider format."""
    parameters_b: Rate | None = None
    """Parameters in billions; with `format`, stands in for `size_gib`."""
    format: Format | None = None
    """What the weights are stored in."""
    attention: Literal["gqa", "hybrid", "mla"] = "gqa"
    """gqa: all layers keep keys and values for each KV head; hybrid: only `full_layers` do; mla: a latent for each token."""
    layers: Count | None = None
    """Layers (num_hidden_layers)."""
    full_layers: Count | None = None
    """Of a hybrid model, the layers with full attention."""
    heads: Count | None = None
    """Attention heads (num_attention_heads); the number of ranks must divide them."""
    kv_heads: Count | None = None
    """KV heads (num_key_value_heads)."""
    head_dim: Count | None = None
    """Length of a head (head_dim)."""
    latent_dim: Count = 576
    """With mla, what is kept for a token and layer: kv_lora_rank + qk_rope_head_dim."""
    context_tokens: Count | None = None
    """Longest context of the model (max_position_embeddings)."""
    active_gib: Gibibytes | None = None
    """GiB that are read for one token: of a mixture of experts less than `size_gib`, which it is when left out."""

    @model_validator(mode="after")
    def _consistent(self) -> Checkpoint:
        if (self.parameters_b is None) != (self.format is None):
            raise PydanticCustomError("checkpoint", "parameters_b and format are only of use together")
        if self.attention == "hybrid" and self.layers is not None and self.full_layers is None:
            raise PydanticCustomError("checkpoint", "a hybrid model needs full_layers, too")
        if self.full_layers is not None and self.full_layers > (self.layers or self.full_layers):
            raise PydanticCustomError("checkpoint", "full_layers are more than layers")
        return self

    @property
    def weights_gib(self) -> float | None:
        """GiB of the weights: the real size, else parameters times their width; None where neither is said."""
        if self.size_gib is not None or self.parameters_b is None or self.format is None:
            return self.size_gib
        return self.parameters_b * 1e9 * BYTES_A_PARAMETER[self.format] / 2**30


class Measured(Block):
    """One measurement of an engine, as `switchyard bench` and llama-benchy give it."""

    nodes: Count
    """Nodes of the replica that was measured."""
    concurrency: Count = 1
    """Requests at the same time."""
    prompt_tokens: Count = 8192
    """Length of the prompts."""
    decode_tok_s: Rate | None = None
    """Tokens per second while decoding, all requests together ("total")."""
    prefill_tok_s: Rate | None = None
    """Prompt tokens per second."""


class Speed(Block):
    """How fast the engines are. Measured figures win over shipped ones, shipped ones over estimates."""

    like: Name | None = None
    """Name of shipped figures, like qwen3.8-27b-nvfp4; `switchyard cluster plan --help` lists them."""
    scale: Annotated[float, Field(gt=0, le=1000)] = 1.0
    """So many times as fast as the figures that `like` names."""
    measured: Listed[Measured] = ()
    """Measurements of your own."""
    saturated_requests_s: Rate | None = None
    """Requests per second of one replica at full load, for the traffic that this cluster sees."""


class Pool(Block):
    """Replicas that serve one model and stand in for each other."""

    model: ModelName
    """The name that the engines serve, and that the gateway asks them for."""
    path: PathText | None = None
    """Where the engine finds the checkpoint (inside the container: /models/...); left out: `model`, from the hub's cache."""
    image: Image
    """Container image with vLLM, the same on every rank. Name it with a digest, so that it stays the same."""
    image_has: Listed[Literal["rocenante"]] = ()
    """What the image has that stock vLLM has not."""
    replicas: Count
    """Copies of the model."""
    nodes_per_replica: Count = 1
    """Nodes that one copy is spread over, tensor-parallel."""
    gpus_per_node: Count = 1
    """GPUs that one copy takes on each of its nodes. Tensor parallelism is nodes times GPUs."""
    min_replicas: Annotated[int, Field(ge=0)] = 1
    """So many replicas stay when nodes are lent."""
    port: Port = 8000
    """HTTP port of the engine, on the head (the first node) of each replica. Where several heads of the pool are on one
    machine, the second has the next port, and so on."""
    master_port: Port = 29501
    """Port on the head for the ranks to find each other."""
    placement: Listed[Annotated[Listed[Label], Field(min_length=1)]] | None = None
    """Nodes of each replica, the head first; left out: solved."""
    api_key_env: Variable | None = None
    """Environment variable with the key that the engines want and the gateway sends."""
    engine: dict[FlagName, Flag | Listed[Flag] | dict[str, Flag]] = {}
    """Flags of `vllm serve` with _ for -, like max_model_len: 131072; true is --flag, false is --no-flag. One is ours:
    kv_cache_memory_gb, the KV cache of each rank in GiB (--kv-cache-memory-bytes)."""
    env: dict[Variable, Line] = {}
    """More environment variables for the engines. No secrets."""
    checkpoint: Checkpoint = Checkpoint()
    """The weights: what the memory arithmetic needs."""
    speed: Speed = Speed()
    """How fast the engines are: what predictions need."""

    @property
    def tensor_parallel(self) -> int:
        """Ranks of one replica."""
        return self.nodes_per_replica * self.gpus_per_node


class Gateway(Block):
    """Where Switchyard itself runs, and with which policy."""

    policy: PathText | None = None
    """Policy file, from the directory of this file. Its pools get `model` and `replicas` from here; all else in it stays.
    Left out: a policy with the pools alone, which clients ask for by name."""
    node: Label | None = None
    """Node that it runs on; left out: the first that is active (with Kubernetes: any, as with several). It needs no GPU."""
    image: Image = "switchyard-gateway:latest"
    """Its container image."""
    port: Port = 4000
    """Port that clients use."""
    replicas: Count = 1
    """Gateways, with Kubernetes. More than one share pins through Redis: `server.state` of the policy."""


class Kubernetes(Block):
    """What manifests need to know."""

    namespace: Label = "switchyard"
    """Namespace of everything."""
    gpu_resource: Resource = "nvidia.com/gpu"
    """Name of the GPUs in requests and limits."""


class Cluster(Block):
    """The whole file."""

    version: Annotated[Literal[1], BeforeValidator(whole)]
    """Version of this format; 1."""
    fabric: Fabric = Fabric()
    """The fast network between nodes."""
    node_defaults: Hardware = Hardware()
    """What holds for each node that doesn't say otherwise."""
    nodes: Annotated[Listed[Node], Field(min_length=1)]
    """The machines. Read, each has the defaults filled in."""
    pools: Annotated[dict[PoolName, Pool], Field(min_length=1)]
    """What runs on them. The gateway's pools get the same names."""
    gateway: Gateway = Gateway()
    """Where Switchyard itself runs."""
    kubernetes: Kubernetes = Kubernetes()
    """What manifests need to know."""

    @field_validator("nodes", mode="after")
    @classmethod
    def _filled(cls, nodes: tuple[Node, ...], info: ValidationInfo) -> tuple[Node, ...]:
        defaults = info.data.get("node_defaults")
        if defaults is None:  # wrong itself, and reported
            return nodes
        missing = [defaults.model_dump(include=defaults.model_fields_set - n.model_fields_set) for n in nodes]
        return tuple(n.model_copy(update=update) for n, update in zip(nodes, missing, strict=True))

    def node(self, name: str) -> Node:
        """The node of this name.

        Raises:
            KeyError: there is none.
        """
        for node in self.nodes:
            if node.name == name:
                return node
        raise KeyError(name)


class ClusterError(FileError):
    """A file that is no valid cluster."""


def find_dangling(document: dict[str, Any]) -> Iterator[Finding]:
    """Yield nodes that are named and not there, names, addresses and GPUs given twice; works on the plain data."""
    entries = [e if isinstance(e, dict) else {} for e in _list(document.get("nodes"))]
    names = [e["name"] for e in entries if isinstance(e.get("name"), str)]
    for key in ("name", "mgmt", "fabric"):
        seen: dict[str, int] = {}
        for i, entry in enumerate(entries):
            value = entry.get(key)
            if not isinstance(value, str) or seen.setdefault(value, i) == i:
                continue
            hint = "each node has its own"
            if key != "name":
                mine, theirs = ({str(gpu) for gpu in _list(e.get("gpu_ids"))} for e in (entry, entries[seen[value]]))
                if mine and theirs and not mine & theirs:
                    continue  # one machine, whose GPUs differ
                hint += "; of one machine with several kinds of GPUs, each says which are its own: gpu_ids"
            yield ("nodes", i, key), f"nodes[{seen[value]}] has {value} already", hint
    everywhere = _dict(document.get("node_defaults")).get("gpus", 1)
    for i, entry in enumerate(entries):
        ids, gpus = _list(entry.get("gpu_ids")), entry.get("gpus", everywhere)
        if len(set(map(str, ids))) < len(ids):
            yield ("nodes", i, "gpu_ids"), "a GPU is named twice", ""
        elif ids and isinstance(gpus, int) and len(ids) != gpus:
            yield ("nodes", i, "gpu_ids"), f"{entry.get('name')} has {gpus} GPUs, and gpu_ids names {len(ids)}", "all of them"
    for pool, block in _dict(document.get("pools")).items():
        for i, group in enumerate(_list(_dict(block).get("placement"))):
            for j, name in enumerate(_list(group)):
                if isinstance(name, str) and name not in names:
                    yield ("pools", pool, "placement", i, j), f"there is no node {name}", nearest(name, names)
    for i, pair in enumerate(_list(_dict(document.get("fabric")).get("pairs"))):
        for j, name in enumerate(_list(pair)):
            if isinstance(name, str) and name not in names:
                yield ("fabric", "pairs", i, j), f"there is no node {name}", nearest(name, names)
    home = _dict(document.get("gateway")).get("node")
    if isinstance(home, str) and home not in names:
        yield ("gateway", "node"), f"there is no node {home}", nearest(home, names)


def _dict(value: Any) -> dict[Any, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


_FORM = Form(
    model=Cluster,
    find_across=find_dangling,
    error=ClusterError,
    top="version, nodes and pools",
    start="start from an example in deploy/",
)


def parse_cluster(raw: bytes, file: str = "cluster.yaml", environment: Mapping[str, str] = os.environ) -> Loaded[Cluster]:
    """Check the bytes of a file; `.value` is the cluster, `.problem()` says more about a place in it.

    Raises:
        ClusterError: with all problems that were found.
    """
    return parse(raw, file, _FORM, environment)


def cluster_schema_text() -> str:
    """JSON Schema (draft 2020-12) of a cluster file, as `schemas/cluster.schema.json` holds it."""
    schema = Cluster.model_json_schema(by_alias=True)
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    schema["title"] = "Switchyard cluster"
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"
