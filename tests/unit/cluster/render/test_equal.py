"""All targets say the same as the plan, whatever the cluster; no target holds a secret; twice the same is the same."""

import json
import re
import shlex
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from switchyard.cluster.fields import TAKEN
from switchyard.cluster.place import Replica
from switchyard.cluster.render.bundle import MAKERS, render
from switchyard.cluster.render.leaderworkerset import service_url
from switchyard.cluster.render.policy import mgmt_url
from switchyard.cluster.render.source import Source
from switchyard.cluster.render.yaml_text import flow, to_yaml
from switchyard.cluster.spec import Cluster
from switchyard.config.edit import CannotEdit
from switchyard.config.load import parse_policy
from switchyard.config.policy import Policy
from unit.cluster.make import EXAMPLES, SPARKS, clusters
from unit.cluster.render.sources import REDIS, example_source, source_from, source_of


def policies(source: Source) -> dict[str, Policy]:
    """The gateway's policy of every target."""
    found = {}
    for target in MAKERS:
        made = render(target, source)
        texts = [text for path, text in made.items() if path.endswith("policy.yaml")]
        if target == "leaderworkerset":
            texts = [next(yaml.safe_load_all(made["gateway.yaml"]))["data"]["policy.yaml"]]
        (text,) = texts
        found[target] = parse_policy(text.encode(), environment={})
    return found


def assert_equal(source: Source) -> None:
    cluster, layout = source.cluster, source.layout
    for target, policy in policies(source).items():
        for name, pool in cluster.pools.items():
            block, replicas = policy.pools[name], layout.of(name)
            url = mgmt_url(cluster) if target != "leaderworkerset" else lambda r: service_url(source, r)
            assert block.model == pool.model
            assert [(r.name, r.url) for r in block.replicas] == [(r.name, url(r)) for r in replicas]
            assert block.api_key_env == pool.api_key_env
            if target != "leaderworkerset":
                assert [r.nodes for r in block.replicas] == [r.nodes for r in replicas]
    assert_ranks_equal(source)


def assert_ranks_equal(source: Source) -> None:
    """Every rank is in Compose and in systemd on its node, once, with its own command; Kubernetes has as many groups."""
    compose = {p: yaml.safe_load(t) for p, t in render("compose", source).items() if p.endswith("compose.yaml")}
    engines = {
        (path.split("/")[0], name): service
        for path, document in compose.items()
        for name, service in document["services"].items()
        if name not in {"gateway", source.redis_host}
    }
    assert set(engines) == {(source.machine(x.node), x.name) for x in source.launches}
    units = {p for p in render("systemd", source) if p.endswith(".service") and "gateway" not in p and "redis" not in p}
    assert units == {f"{source.machine(x.node)}/units/switchyard-{x.name}.service" for x in source.launches}
    for launch in source.launches:
        service = engines[source.machine(launch.node), launch.name]
        command = [word.replace("$$", "$") for word in service["command"]]
        assert tuple(command if launch.wide else [*service["entrypoint"], *command]) == launch.argv
        assert service["image"] == launch.image
    manifests = render("leaderworkerset", source)
    for name, pool in source.cluster.pools.items():
        running = len(source.layout.of(name))
        assert (f"{name}.yaml" in manifests) == (running > 0)
        if running:
            (lws,) = [d for d in yaml.safe_load_all(manifests[f"{name}.yaml"]) if d["kind"] == "LeaderWorkerSet"]
            assert (lws["spec"]["replicas"], lws["spec"]["leaderWorkerTemplate"]["size"]) == (running, pool.nodes_per_replica)
    listed = yaml.safe_load(render("pools", source)["replicas.yaml"])
    assert {n: [r["name"] for r in found] for n, found in listed.items()} == {
        n: [r.name for r in source.layout.of(n)] for n in source.cluster.pools if source.layout.of(n)
    }


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples(name):
    assert_equal(example_source(name))


@given(clusters())
@settings(max_examples=40)
def test_any_cluster(cluster: Cluster):
    source = source_of(cluster)
    if source.layout.unplaced or any(n.state != "active" for n in cluster.nodes[:1]):
        return
    assert_equal(source)
    for target in MAKERS:
        assert render(target, source) == render(target, source_of(cluster))


def test_the_rest_of_a_policy_stays_as_it_is():
    source = source_from(SPARKS, REDIS)
    text = render("pools", source)["policy.yaml"]
    before, after = parse_policy(REDIS.encode()), parse_policy(text.encode())
    assert after.server == before.server
    assert after.routes == before.routes
    assert after.pools["elsewhere"] == before.pools["elsewhere"]
    assert (after.pools["big"].balance, after.pools["big"].model) == ("p2c", "org/big")
    assert "# about the routes\nroutes:" in text
    again = render("pools", source_from(SPARKS, text))["policy.yaml"]
    assert again == text  # rendering what was rendered changes nothing


def test_limits_follow_from_the_engine_where_the_policy_says_nothing():
    text = SPARKS.replace("kv_cache_memory_gb: 20", "kv_cache_memory_gb: 20, max_num_seqs: 6")
    policy = parse_policy(render("pools", source_from(text, REDIS))["policy.yaml"].encode())
    assert policy.pools["big"].limits.in_flight == 6
    own = REDIS.replace("balance: p2c", "balance: p2c, limits: {in_flight: 4, queue: 7}")
    policy = parse_policy(render("pools", source_from(text, own))["policy.yaml"].encode())
    assert (policy.pools["big"].limits.in_flight, policy.pools["big"].limits.queue) == (4, 7)


def test_without_a_policy_pools_can_be_asked_for_by_name():
    policy = parse_policy(render("pools", source_from(SPARKS))["policy.yaml"].encode())
    assert policy.routes == {}
    assert policy.server.api_keys_env == "SWITCHYARD_API_KEYS"


def test_replicas_that_are_away_are_not_routed_to():
    text = SPARKS.replace("192.168.0.4}", "192.168.0.4, state: lent, owner: anna, until: '2026-12-01T00:00:00+00:00'}")
    source = source_from(text)
    policy = parse_policy(render("pools", source)["policy.yaml"].encode())
    assert [r.name for r in policy.pools["small"].replicas] == ["small-1"]
    assert not any("s4" in path for path in render("compose", source))


@pytest.mark.parametrize("target", MAKERS)
def test_no_secret_is_ever_written(target, monkeypatch):
    """The values of all variables that are named are in the environment; none of them comes out anywhere."""
    names = ["ENGINE_KEY", "SWITCHYARD_API_KEYS", "SWITCHYARD_ADMIN_KEY", "FAR_KEY"]
    for i, name in enumerate(names):
        monkeypatch.setenv(name, f"sk-secret-{i}")
    text = SPARKS.replace("    replicas: 1\n", "    replicas: 1\n    api_key_env: ENGINE_KEY\n")
    made = render(target, source_from(text, REDIS))
    everything = "\n".join(made.values())
    assert "sk-secret" not in everything
    for path, words in made.items():
        if path.endswith(".example"):
            assert re.fullmatch(r"(#.*\n|[A-Z_]+=\n)+", words), path
    if target not in {"pools", "sparkrun"}:
        assert "ENGINE_KEY" in everything  # named, so that somebody fills it in
        assert "SWITCHYARD_ADMIN_KEY" in everything


def test_engines_that_want_a_key_get_it_from_elsewhere():
    text = SPARKS.replace("    replicas: 1\n", "    replicas: 1\n    api_key_env: ENGINE_KEY\n")
    source = source_from(text, REDIS)
    compose = yaml.safe_load(render("compose", source)["s2/compose.yaml"])
    assert compose["services"]["big-1-rank1"]["environment"]["VLLM_API_KEY"] == "${ENGINE_KEY:?set ENGINE_KEY in .env}"
    units = render("systemd", source)
    assert "--env-file /etc/switchyard/big.env" in units["s1/units/switchyard-big-1-rank0.service"]
    assert "VLLM_API_KEY=\n" in units["s1/etc/big.env.example"]
    (lws,) = [d for d in yaml.safe_load_all(render("leaderworkerset", source)["big.yaml"]) if d["kind"] == "LeaderWorkerSet"]
    env = lws["spec"]["leaderWorkerTemplate"]["leaderTemplate"]["spec"]["containers"][0]["env"]
    assert {"name": "VLLM_API_KEY", "valueFrom": {"secretKeyRef": {"name": "switchyard-keys", "key": "ENGINE_KEY"}}} in env


def test_the_gateway_gets_what_its_policy_takes_from_the_environment(monkeypatch):
    """`${NAME}` without a default: without it the gateway would not start. Not what comments or replaced pools name."""
    monkeypatch.setenv("REDIS_PASSWORD", "sk-secret")
    monkeypatch.setenv("OLD_HOST", "old")
    text = REDIS.replace("redis://redis", "redis://:${REDIS_PASSWORD}@redis.example.org").replace("# about", "# ${NOT_THIS}")
    text = text.replace("[http://old:1]", "['http://${OLD_HOST}:1']").replace("version: 1", "version: ${VERSION:-1}")
    source = source_from(SPARKS, text)
    assert "REDIS_PASSWORD" in source.gateway_keys
    assert not {"NOT_THIS", "OLD_HOST", "VERSION"} & set(source.gateway_keys)
    compose = yaml.safe_load(render("compose", source)["s1/compose.yaml"])
    wanted = "${REDIS_PASSWORD:?set REDIS_PASSWORD in .env}"
    assert compose["services"]["gateway"]["environment"]["REDIS_PASSWORD"] == wanted
    assert "REDIS_PASSWORD=\n" in render("systemd", source)["s1/etc/gateway.env.example"]
    assert "REDIS_PASSWORD=\n" in render("leaderworkerset", source)["keys.env.example"]
    assert not any("sk-secret" in words for target in MAKERS for words in render(target, source).values())


@pytest.mark.parametrize("line", ["pools: {\n", "'pools': {  # a comment\n", '"pools" : &p {\n'])
def test_pools_are_replaced_however_they_are_written(line):
    head, pools, rest = re.split(r"(^pools:\n(?:  .*\n)+)", REDIS, flags=re.MULTILINE)
    flow_style = line + ",\n".join(pools.splitlines()[1:]) + "\n}\n"
    source = source_from(SPARKS, head + flow_style + rest)
    assert render("pools", source) == render("pools", source_from(SPARKS, REDIS))


@pytest.mark.parametrize(
    "text", [json.dumps(yaml.safe_load(REDIS)), "".join(f"  {line}" for line in REDIS.splitlines(keepends=True))]
)
def test_a_policy_whose_pools_cannot_be_cut_out_says_so(text):
    with pytest.raises(CannotEdit, match="at the beginnings of lines"):
        render("pools", source_from(SPARKS, text))


def test_replicas_whose_nodes_differ_are_warned_of_where_there_is_one_template():
    source = source_from(SPARKS.replace("mgmt: 10.0.0.3", "mgmt: 10.0.0.3, image: other:1"))
    assert yaml.safe_load(render("sparkrun", source)["small.yaml"])["container"] == "other:1"
    for target in ("sparkrun", "leaderworkerset"):
        assert "Beware: nodes of small differ" in render(target, source)["README.md"]
        assert "Beware" not in render(target, source_from(SPARKS))["README.md"]


# What a cluster file may hold, the odder the better: names, words of flags, values of variables.
NAMES = st.from_regex(r"[a-z]([a-z0-9-]{0,38}[a-z0-9])?", fullmatch=True).filter(lambda name: name not in TAKEN)
WORDS = st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=12) | st.sampled_from(
    ["$(RANK)", "$$(RANK)", "$$", "$RANK ${RANK:-x}", "%n %%", "--a b", "-", "'\"`;&|", "\\", "a\\", "#", "{model}", "*", ".5"]
)


@given(st.lists(NAMES, min_size=4, max_size=4, unique=True), st.lists(NAMES, min_size=2, max_size=2, unique=True), WORDS, WORDS)
@settings(max_examples=25)
def test_odd_names_and_words_come_out_as_they_are(nodes: list[str], pools: list[str], word: str, value: str):
    data = yaml.safe_load(SPARKS)
    names = dict(zip(("s1", "s2", "s3", "s4"), nodes, strict=True))
    for node in data["nodes"]:
        node["name"] = names[node["name"]]
    for pool in data["pools"].values():
        pool["placement"] = [[names[n] for n in group] for group in pool["placement"]]
        pool["engine"]["chat_template"] = word
        pool["env"] = {"ODD": value}
    data["pools"] = dict(zip(pools, data["pools"].values(), strict=True))
    source = source_of(Cluster.model_validate(data))
    assert_ranks_equal(source)
    manifests, recipes = render("leaderworkerset", source), render("sparkrun", source)
    assert len(manifests) == len({"namespace", "gateway", "labels", "README", "keys", *range(2)})
    assert len(recipes) == len({"policy", "README", *range(2)})
    big, small = (
        next(d for d in yaml.load_all(manifests[f"{name}.yaml"], yaml.CSafeLoader) if d["kind"] == "LeaderWorkerSet")
        for name in pools
    )
    for lws, wide in ((big, True), (small, False)):
        template = lws["spec"]["leaderWorkerTemplate"]["leaderTemplate" if wide else "workerTemplate"]
        (container,) = template["spec"]["containers"]
        argv = shlex.split(expanded(container["args"][0])) if wide else list(map(expanded, container["command"]))
        assert argv[argv.index("--chat-template") + 1] == word
        assert expanded(next(e["value"] for e in container["env"] if e["name"] == "ODD")) == value
    recipe = yaml.safe_load(recipes[f"{pools[0]}.yaml"])
    argv = shlex.split(recipe["command"].replace("\\\n", ""))
    assert argv[argv.index("--chat-template") + 1] == word
    assert recipe["env"]["ODD"] == value


def expanded(text: str) -> str:
    """What Kubernetes makes of a command or a value whose variables are all unknown to us: here each becomes a cross."""
    return re.sub(r"\$(\$|\(([^)]*)\))", lambda found: "$" if found[1] == "$" else "✗", text)


def test_compose_takes_no_variable_out_of_a_flag():
    text = SPARKS.replace("max_model_len: 65536", "chat_template: 'a $HOME $$ {x}'")
    compose = yaml.safe_load(render("compose", source_from(text))["s1/compose.yaml"])
    assert "a $$HOME $$$$ {x}" in compose["services"]["big-1-rank0"]["command"]


def test_kubernetes_ranks_find_their_place_when_they_run():
    source = source_from(SPARKS.replace("model: org/big", "model: org/big\n    path: /models/RANK-MASTER"))
    (lws,) = [d for d in yaml.safe_load_all(render("leaderworkerset", source)["big.yaml"]) if d["kind"] == "LeaderWorkerSet"]
    template = lws["spec"]["leaderWorkerTemplate"]
    leader, worker = (template[k]["spec"]["containers"][0]["args"][0] for k in ("leaderTemplate", "workerTemplate"))
    assert "vllm serve /models/RANK-MASTER --served-model-name org/big" in leader
    assert '--node-rank 0 --master-addr "$LWS_LEADER_ADDRESS" --master-port 29501 --max' in leader
    assert '--node-rank "$LWS_WORKER_INDEX" --master-addr "$LWS_LEADER_ADDRESS" --master-port 29501 --headless' in worker
    watch = "exec python3 /etc/switchyard/run_rank.py http://127.0.0.1:8000 org/big "
    assert leader.startswith(f'. /etc/switchyard/"$NODE_NAME".sh && {watch}')
    assert lws["metadata"]["annotations"]["leaderworkerset.sigs.k8s.io/exclusive-topology"] == "switchyard/big"
    labels = render("leaderworkerset", source)["labels.sh"].splitlines()
    assert labels.index("kubectl label node --overwrite s1 s2 switchyard/big=big-1") > 0
    assert "kubectl label node s3 s4 switchyard/big-" in labels  # what an earlier placement left: no rank may land there


def test_kubernetes_puts_two_replicas_of_a_pool_on_a_node_that_has_two_gpus():
    """A node has one value of a label, and one of each port."""
    two = SPARKS.replace("{name: s3, mgmt: 10.0.0.3,", "{name: s3, gpus: 2, mgmt: 10.0.0.3,").replace(
        "[[s3], [s4]]", "[[s3], [s3]]"
    )
    files = render("leaderworkerset", source_from(two))
    assert "kubectl label node --overwrite s3 switchyard/small=shared" in files["labels.sh"].splitlines()
    assert files["labels.sh"].count("s3 switchyard/small") == 1
    (lws,) = [d for d in yaml.safe_load_all(files["small.yaml"]) if d["kind"] == "LeaderWorkerSet"]
    assert "annotations" not in lws["metadata"], "no group has the label for itself"
    assert "hostNetwork" not in lws["spec"]["leaderWorkerTemplate"]["workerTemplate"]["spec"]
    assert "same port" not in files["README.md"]


def test_a_pool_s_own_variables_win_on_every_target():
    source = source_from(SPARKS.replace("model: org/big", "model: org/big\n    env: {NCCL_NET: Socket}"))
    compose = yaml.safe_load(render("compose", source)["s1/compose.yaml"])
    assert compose["services"]["big-1-rank0"]["environment"]["NCCL_NET"] == "Socket"  # wins over env_file
    assert "--env NCCL_NET=Socket" in render("systemd", source)["s1/units/switchyard-big-1-rank0.service"]  # over --env-file
    nodes = next(yaml.safe_load_all(render("leaderworkerset", source)["big.yaml"]))["data"]
    assert "NCCL_NET" not in nodes["s1.sh"]  # which is read after the container's own variables are set


@pytest.mark.parametrize("target", ["compose", "systemd", "leaderworkerset"])
def test_rdma_devices_only_where_there_are_some(target):
    with_devices, without = SPARKS, SPARKS.replace(", hca: [a, b]", "")
    assert "/dev/infiniband" in "".join(render(target, source_from(with_devices)).values())
    assert "/dev/infiniband" not in "".join(render(target, source_from(without)).values())


def test_ipv6_heads():
    source = source_from(SPARKS.replace("10.0.0.3", "'fd00::3'"))
    policy = parse_policy(render("pools", source)["policy.yaml"].encode())
    assert policy.pools["small"].replicas[0].url == "http://[fd00::3]:8000"


PLAIN = st.characters(exclude_categories=["Cs"])
TEXTS = st.text(PLAIN, max_size=20) | st.sampled_from(
    [".5", "-.5", ".5e1", "1e3", "a\nb\n", " a\nb\n", "a \nb\n", "\n", "a\n", "a\n\n", "a\nb"]
)
KEYS = st.text(PLAIN, min_size=1, max_size=8).filter(lambda key: not key.startswith("#"))
NUMBERS = st.integers(-(10**9), 10**9) | st.floats(allow_nan=False, allow_infinity=False)
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=12,
)


@given(st.dictionaries(KEYS, VALUES, min_size=1, max_size=4))
@settings(max_examples=200)
def test_the_yaml_that_is_written_is_read_back_as_it_was(value: dict[str, Any]):
    assert close(yaml.safe_load(to_yaml(value)), value)
    assert close(yaml.safe_load(flow(value)), value)


def close(one: Any, other: Any) -> bool:
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(close(one[k], other[k]) for k in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(close, one, other))
    if isinstance(other, float):
        return bool(one == pytest.approx(other, rel=1e-15, abs=0))
    return type(one) is type(other) and bool(one == other)


def test_replicas_have_names_that_stay():
    assert Replica("qwen", 2, ("s3", "s4"), ((0,), (0,))).name == "qwen-2"
