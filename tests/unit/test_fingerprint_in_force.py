"""The hashes of the policy in force are about the heads that are asked, not about what their files hold by now."""

import asyncio

from msgspec.structs import replace

from switchyard.app import Gateway
from switchyard.config.reload import PolicyFile
from switchyard.config.secrets import Secrets
from switchyard.routing.classify.scorer import WEIGHTS, digest_weights, encode_weights, read_weights

from .build import MINIMAL, policy_of


def test_the_head_that_is_asked(tmp_path) -> None:
    head, file = tmp_path / "head.json", tmp_path / "policy.yaml"
    head.write_bytes(WEIGHTS.read_bytes())
    text = f"{MINIMAL}routes:\n  auto: {{classify: [{{type: embedded, weights: {head}}}], choose: [{{use: big}}]}}\n"
    file.write_text(text)

    async def run() -> None:
        gateway = Gateway(policy_of(text), Secrets(), source=PolicyFile(file))
        before = await gateway.fingerprints()
        weights = read_weights()
        head.write_bytes(encode_weights(replace(weights, slope=2 * weights.slope)))
        assert await gateway.fingerprints() == before
        await gateway.replace_policy()
        assert (await gateway.fingerprints())["auto"]["classifier"] != before["auto"]["classifier"]
        assert gateway._classifiers.scorers[str(head)].digest == digest_weights(str(head))

    asyncio.run(run())
