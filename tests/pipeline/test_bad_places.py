"""A full disk, a credential that is denied, a bucket that is not there: one line with the remedy, and exit code 1."""

from __future__ import annotations

import errno
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from typer.testing import CliRunner

from canopy_mqtt.command.record_files import app as record_app
from canopy_pipeline.cli import app
from canopy_pipeline.errors import DENIED, FULL, NO_BUCKET, in_a_line, with_remedy
from tests.pipeline.tables.fleet import SAMPLE, story
from tests.support.runs import for_each

CODES = {"AccessDenied": 403, "InvalidAccessKeyId": 403, "SignatureDoesNotMatch": 403, "NoSuchBucket": 404}
REMEDIES = {code: NO_BUCKET if code == "NoSuchBucket" else DENIED for code in CODES}


@pytest.fixture(params=CODES)
def code(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """An object store that answers every request by an error of S3."""
    name = str(request.param)
    body = f'<?xml version="1.0"?><Error><Code>{name}</Code><Message>No.</Message></Error>'.encode()

    class Refusing(BaseHTTPRequestHandler):
        def answer(self) -> None:
            self.rfile.read(int(self.headers.get("content-length") or 0))
            self.send_response(CODES[name])
            self.send_header("content-type", "application/xml")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = answer  # noqa: N815

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Refusing) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        for key, value in {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{server.server_port}",
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "very secret",
            "AWS_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
        }.items():
            monkeypatch.setenv(key, value)
        yield name
        server.shutdown()


def test_a_store_that_refuses_is_a_line_with_the_remedy(tmp_path: Path, code: str) -> None:
    here, there, out = str(tmp_path / "record"), "s3://plant/record", str(tmp_path / "out")
    story().write(tmp_path / "record")
    mapping = ["--mapping", str(SAMPLE / "tables.toml")]
    for words in (
        ["upload", "--input", here, "--output", there],
        ["tables", "--input", here, "--output", "s3://plant/out", *mapping],
        ["tables", "--input", there, "--output", out, *mapping],
        ["rollup", "--input", there, "--output", out, "--engine", "duckdb"],
        ["compact", "--input", there],
        ["retention", "--input", there, "--keep", "7d"],
    ):
        done = CliRunner().invoke(app, words)
        [line] = [each for each in done.stderr.splitlines() if "engine:" not in each]
        if code == "NoSuchBucket" and there == words[2]:
            # What is asked for has no name in the answer: it may as well be a folder that is not there.
            assert done.exit_code == 2
            assert line.startswith(f"canopy: --input {there}: no such f")
            continue
        assert done.exit_code == 1, (words, line)
        assert line.endswith(REMEDIES[code]), (words, line)
        assert "plant" in line
        assert "secret" not in line.replace("AWS_SECRET_ACCESS_KEY", "")
    done = CliRunner().invoke(record_app, ["files", there])
    if code != "NoSuchBucket":
        assert (done.exit_code, DENIED in done.stderr) == (1, True)


@for_each(
    ("text", "line"),
    [
        ("Error writing bytes to file. Detail: [errno 28] No space left on device", FULL),
        (
            r'IO Error: {"exception_message":"Could not write file \"/data/p-0.parquet\": No space left on device"}',
            f"/data/p-0.parquet: {FULL}",
        ),
        (
            "Generic LocalFileSystem error\n  Unable to copy data to file: No space left on device (os error 28)",
            FULL,
        ),
        ("Connection refused", ""),
    ],
)
def test_a_full_disk_is_told_with_the_remedy_whoever_finds_it(text: str, line: str) -> None:
    """In the words of pyarrow, DuckDB and Delta Lake's writer."""
    assert with_remedy(text) == line


def test_a_full_disk_is_told_with_the_file_that_python_names() -> None:
    assert in_a_line(OSError(errno.ENOSPC, "No space left on device", "/data/out/x")) == f"/data/out/x: {FULL}"
    assert in_a_line(OSError(errno.EACCES, "Permission denied", "/data/out/x")) == "/data/out/x: permission denied"
