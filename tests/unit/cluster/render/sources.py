"""What the tests of renderers render."""

from dataclasses import replace
from importlib.resources import files

from switchyard.cluster.place import lay_out
from switchyard.cluster.render.source import Source
from switchyard.cluster.spec import Cluster
from switchyard.config.load import parse_policy
from unit.cluster.make import cluster_of, example, example_policy

RUN_RANK = (files("switchyard.cli.cluster") / "run_rank.py").read_text("utf-8")


def source_of(cluster: Cluster, policy: str | None = None, file: str = "cluster.yaml") -> Source:
    return Source(cluster, lay_out(cluster), file, policy, None if policy is None else parse_policy(policy.encode()), RUN_RANK)


def source_from(text: str, policy: str | None = None) -> Source:
    return source_of(cluster_of(text), policy)


def example_source(name: str) -> Source:
    cluster = example(name)
    text, policy = example_policy(cluster)
    return replace(source_of(cluster, file=f"{name}.yaml"), policy_source=text, policy=policy)


REDIS = """\
version: 1
server:
  api_keys_env: SWITCHYARD_API_KEYS
  admin_key_env: SWITCHYARD_ADMIN_KEY
  state: redis://redis:6379/0
pools:
  big: {model: m1, replicas: [http://old:1], balance: p2c}
  small: {model: m2, replicas: [http://old:2]}
  elsewhere: {model: m3, replicas: [{url: http://far:1, name: far}], api_key_env: FAR_KEY}
# about the routes
routes:
  auto: {choose: [{p_at_least: 0.5, use: small}, {use: big}]}
"""
"""A policy with everything that rendering looks at."""
