"""A certificate for listeners that are measured or attacked: made for this process, and gone with it."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from functools import cache
from pathlib import Path

import trustme


@cache
def certificate() -> tuple[str, str]:
    """A certificate (ECDSA, P-256) and its key, as PEM files."""
    folder = tempfile.mkdtemp(prefix="canopy-certificate-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    made = trustme.CA().issue_cert("localhost")
    files = Path(folder, "server.pem"), Path(folder, "server.key")
    made.cert_chain_pems[0].write_to_path(files[0])
    made.private_key_pem.write_to_path(files[1])
    return str(files[0]), str(files[1])
