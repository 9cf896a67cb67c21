"""The policy as frozen models: one class for each block of the YAML file.

Each block of the top has a module: `server.py`, `pool.py`, `route.py` with its `rule.py` and `classifier.py`. Field
docstrings become the descriptions in the JSON Schema. What a value means across blocks (does this pool exist?) is
checked in `references.py`; reading files is `load.py`.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from switchyard.config.block import Block, Name, whole
from switchyard.config.pool import Pool
from switchyard.config.route import Route
from switchyard.config.server import Server


class Policy(Block):
    """The whole file."""

    version: Annotated[Literal[1], BeforeValidator(whole)]
    """Version of this format; 1."""
    server: Server = Server()
    """The gateway process itself."""
    pools: Annotated[dict[Name, Pool], Field(min_length=1)]
    """Groups of engines that serve one model each. A pool can be asked for by its name."""
    routes: dict[Name, Route] = {}
    """Model names that clients ask for."""
