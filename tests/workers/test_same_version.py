"""A worker that ends is back in the version that the broker has loaded, whatever has become of the installed files."""

from __future__ import annotations

import os
import shutil
from contextlib import AsyncExitStack
from pathlib import Path

import canopy_mqtt
from tests.support.daemon import Daemon
from tests.workers.crew import PATIENT, Crew

SETTINGS = """
[workers]
count = 2
[http]
listen = ["http://127.0.0.1:0"]
operator_token_file = "{folder}/secret"
[store]
path = "{folder}/store"
[[authenticator]]
type = "anonymous"
[[authenticator]]
type = "password-file"
path = "{folder}/empty"
[[authenticator]]
type = "jwt"
algorithms = ["HS256"]
secret_file = "{folder}/secret"
audience = ["here"]
[[authenticator]]
type = "http"
url = "http://127.0.0.1:9/"
[[authenticator]]
type = "scram-sha-256"
path = "{folder}/empty"
"""


async def test_a_worker_starts_again_without_the_files_of_the_package(stack: AsyncExitStack, tmp_path: Path) -> None:
    packages = tmp_path / "packages"
    shutil.copytree(Path(canopy_mqtt.__file__).parent, packages / "canopy_mqtt")
    (tmp_path / "secret").write_text("0123456789abcdef" * 8)
    (tmp_path / "empty").write_text("")
    config = tmp_path / "canopy.toml"
    config.write_text(SETTINGS.format(folder=tmp_path))
    path = os.pathsep.join([str(packages), os.environ.get("PYTHONPATH", "")])
    crew = Crew(stack, 2, Daemon("--config", str(config), *PATIENT, environ={"PYTHONPATH": path}, patience=60.0))
    stack.push_async_callback(crew.gone)
    shutil.rmtree(packages)
    await crew.restarted(1)
    await crew.join(next(crew.names(1)))
