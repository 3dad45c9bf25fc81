"""The compose file of `canopy init cluster --compose`: three nodes in containers, and the PostgreSQL that they share.

Each file beside the settings is mounted at its own path: so the settings can be checked outside of the containers, too.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Final
from urllib.parse import quote

HOST: Final = "database"
"""The name of the database's service."""
PASSWORD: Final = "postgresql.password"
"""The file with the password, for PostgreSQL."""
PASSFILE: Final = "postgresql.pgpass"
"""The same for the nodes, as PostgreSQL's clients read it."""
MQTT: Final = 1883
NODES: Final = 8884
"""Ports in the containers: for clients, and for the other nodes."""
PUBLISHED: Final = 1884
"""The port of this machine that leads to the first node; the next ones follow."""

HEAD: Final = """\
# Three nodes of a cluster, and the PostgreSQL that has their sessions, on one machine, to try it: docs/cluster.md.
# Written by `canopy init cluster --compose`, beside the settings of each node. The containers of the nodes run as the
# user who owns these files, with nothing to write to: all that they keep is in the database.
#
#   docker compose -f {file} up --detach
#   docker compose -f {file} exec canopy-{node} canopy ctl cluster
#
# Certificates are files beside this one, and so are the passwords ({password}, {passfile}): who reads
# them can be a node, or read all messages. For three machines, start each node and the database on its own.

services:
  database:
    image: {image}
    restart: unless-stopped
    environment:
      POSTGRES_USER: canopy
      POSTGRES_DB: canopy
      POSTGRES_PASSWORD_FILE: /run/secrets/password
      POSTGRES_INITDB_ARGS: --auth-host=scram-sha-256
    secrets: [password]
    # What the nodes acknowledge is on its disk.
    volumes: [sessions:/var/lib/postgresql/data]
    networks: [nodes]
    stop_grace_period: 60s
    healthcheck:
      # By TCP: while the image makes the database, it serves a socket alone.
      test: [CMD, pg_isready, --host=127.0.0.1, --username=canopy, --dbname=canopy]
      interval: 5s
      timeout: 5s
      retries: 12
"""

NODE: Final = """
  canopy-{node}:
    image: canopy
    init: true
    restart: unless-stopped
    user: "{user}"
    read_only: true
    tmpfs: [/tmp]
    cap_drop: [ALL]
    security_opt: ["no-new-privileges:true"]
    ulimits:
      nofile: 1048576
    # shutdown.flush_timeout, what closing connections takes, and the last commit.
    stop_grace_period: 30s
    command: [serve, --config, {settings}]
    depends_on:
      database:
        condition: service_healthy
    healthcheck:
      test: [CMD, canopy, health, --timeout, "5"]
      interval: 15s
      timeout: 6s
      start_period: 30s
    networks: [nodes, clients]
    # Only this machine. To let others connect, give the nodes users and TLS first.
    ports: ["127.0.0.1:{port}:{mqtt}"]
    volumes:
      - {{type: bind, source: {settings}, target: {settings}, read_only: true}}
      - {{type: bind, source: {authority}, target: {authority}, read_only: true}}
      - {{type: bind, source: {certificate}, target: {certificate}, read_only: true}}
    secrets:
      - {{source: node-{node}, target: {key}}}
      - {{source: pgpass, target: {passfile}}}
"""

NETWORKS: Final = """
networks:
  nodes:
    internal: true
  clients:

volumes:
  sessions:

secrets:
  password:
    file: {password}
  pgpass:
    file: {passfile}
"""


def url(folder: Path) -> str:
    """Return the URL of the database: the nodes read the password from a file in the folder."""
    return f"postgresql://canopy@{HOST}/canopy?passfile={quote(str(folder / PASSFILE))}"


def password_files(folder: Path) -> dict[Path, str]:
    """Return the files with a new password."""
    password = secrets.token_hex(24)
    return {folder / PASSWORD: f"{password}\n", folder / PASSFILE: f"{HOST}:5432:canopy:canopy:{password}\n"}


def text(file: Path, settings: Sequence[Path], nodes: Sequence[str], image: str) -> str:
    """Return the compose file `file` for the nodes, whose settings are in these files; `image`: of PostgreSQL."""
    folder = file.parent

    def here(name: str) -> str:
        return _quoted(folder / name)

    parts = [HEAD.format(file=file.name, node=nodes[0], password=PASSWORD, passfile=PASSFILE, image=image)]
    parts += [
        NODE.format(
            node=node,
            user=f"{os.geteuid()}:{os.getegid()}",
            settings=_quoted(own),
            port=PUBLISHED + number,
            mqtt=MQTT,
            authority=here("cluster-ca.pem"),
            certificate=here(f"node-{node}.pem"),
            key=here(f"node-{node}.key"),
            passfile=here(PASSFILE),
        )
        for number, (node, own) in enumerate(zip(nodes, settings, strict=True))
    ]
    keys = "".join(f"  node-{node}:\n    file: {here(f'node-{node}.key')}\n" for node in nodes)
    return "".join(parts) + NETWORKS.format(password=here(PASSWORD), passfile=here(PASSFILE)) + keys


def _quoted(path: Path) -> str:
    """Return a path as YAML and compose, which takes `$` for a variable, read it."""
    return json.dumps(str(path), ensure_ascii=False).replace("$", "$$")
