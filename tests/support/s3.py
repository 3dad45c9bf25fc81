"""A server of S3's interface in a process of its own (moto's); it counts requests.

`python -m tests.support.s3` serves on a free port and prints it. GET /-/counts: requests by method, since the
last such call. POST /-/fill: puts objects, a JSON object of keys and texts, without a request for each.
"""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from threading import Lock
from typing import Any, Final

import pytest

BUCKET: Final = "plant"


class Server:
    """The address and the keys of a running server."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"

    def counts(self) -> Counter[str]:
        """Requests of each method since the last call."""
        with urllib.request.urlopen(f"{self.url}/-/counts", timeout=60) as answer:
            return Counter(json.loads(answer.read()))

    def fill(self, objects: Mapping[str, bytes]) -> None:
        """Put objects, by their keys."""
        texts = {key: content.decode("latin-1") for key, content in objects.items()}
        request = urllib.request.Request(f"{self.url}/-/fill", json.dumps(texts).encode(), method="POST")
        with urllib.request.urlopen(request, timeout=300):
            pass

    def environment(self) -> dict[str, str]:
        """The environment variables of AWS's clients."""
        return {
            "AWS_ENDPOINT_URL": self.url,
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
        }


def server() -> Iterator[Server]:
    """A server, for a fixture: AWS's clients find it in the environment."""
    with serving() as started, pytest.MonkeyPatch.context() as patch:
        for name, value in started.environment().items():
            patch.setenv(name, value)
        yield started


@contextmanager
def serving() -> Iterator[Server]:
    """A server with an empty bucket."""
    command = [sys.executable, "-P", "-m", "tests.support.s3"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            assert process.stdout is not None
            yield Server(int(process.stdout.readline()))
        finally:
            process.kill()
            process.wait(30)


class _Counted:
    """An application whose requests are counted."""

    def __init__(self, served: Callable[..., Iterable[bytes]]) -> None:
        self.served = served
        self.lock = Lock()
        self.counts: Counter[str] = Counter()

    def __call__(self, environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        path = environ["PATH_INFO"]
        if path == "/-/counts":
            with self.lock:
                body, self.counts = json.dumps(self.counts).encode(), Counter()
            start("200 OK", [("Content-Length", str(len(body)))])
            return [body]
        if path == "/-/fill":
            fill(json.loads(environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"]))))
            start("200 OK", [("Content-Length", "0")])
            return []
        with self.lock:
            self.counts[environ["REQUEST_METHOD"]] += 1
        return self.served(environ, start)


def fill(objects: Mapping[str, str]) -> None:
    from moto.s3.models import s3_backends

    backend = s3_backends["123456789012"]["aws"]
    for key, text in objects.items():
        backend.put_object(BUCKET, key, text.encode("latin-1"))


def main() -> None:
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
    from moto.s3.models import s3_backends
    from werkzeug.serving import WSGIRequestHandler, make_server

    class Quiet(WSGIRequestHandler):
        # As S3: a connection for many requests.
        protocol_version = "HTTP/1.1"

        def log(self, *_: object, **__: object) -> None:
            """Nothing."""

    s3_backends["123456789012"]["aws"].create_bucket(BUCKET, "us-east-1")
    application = _Counted(DomainDispatcherApplication(create_backend_app))
    server = make_server("127.0.0.1", 0, application, threaded=True, request_handler=Quiet)
    print(server.server_port, flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
