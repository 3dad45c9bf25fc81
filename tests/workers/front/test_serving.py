"""HTTP of a supervisor with real workers: what each of them knows, in one answer."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.e2e import wire
from tests.support.daemon import COMMAND, Daemon, environment
from tests.workers.live.test_serving import pids, serving, until

CLIENTS = 12

pytestmark = pytest.mark.long


class Api:
    """The HTTP of a daemon."""

    def __init__(self, daemon: Daemon, file: Path) -> None:
        self._url = daemon.started["http"][0]
        self._file = file
        self._token = file.read_text().strip()

    def call(self, method: str, path: str, body: Any = None, token: str | None = None) -> tuple[int, str]:
        """Status and body."""
        headers = {"Authorization": f"Bearer {self._token if token is None else token}"}
        data = None
        if body is not None:
            data, headers["Content-Type"] = json.dumps(body).encode(), "application/json"
        request = urllib.request.Request(self._url + path, data, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=30.0) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def ctl(self, *command: str) -> tuple[int, list[str]]:
        """The exit code of a command of `canopy ctl`, and the first word of each line below the first."""
        arguments = [*COMMAND, "ctl", "--url", self._url, "--token-file", str(self._file), *command]
        ended = subprocess.run(arguments, capture_output=True, text=True, timeout=60.0, env=environment())
        assert ended.stderr == ""
        return ended.returncode, [line.split()[0] for line in ended.stdout.splitlines()[1:]]

    def get(self, path: str) -> Any:
        """What is answered, as plain values."""
        status, body = self.call("GET", f"/api/v5{path}")
        assert status == 200, body
        return json.loads(body)


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Daemon, Api, list[socket.socket]]]:
    token = tmp_path_factory.mktemp("tokens") / "operators"
    token.write_text("0123456789abcdef\n")
    token.chmod(0o600)
    http = ("http.listen=http://127.0.0.1:0", f"http.operator_token_file={token}", "workers.drain_timeout=1")
    with serving(*(part for each in http for part in ("--set", each))) as daemon, ExitStack() as stack:
        clients = [stack.enter_context(daemon.connect(wire.connect(f"client-{at:02}"))) for at in range(CLIENTS)]
        for client in clients:
            client.sendall(wire.subscribe(1, [("a", 0), ("b", 0)]))
            assert client.recv(7, socket.MSG_WAITALL) == b"\x90\x05\x00\x01\x00\x00\x00"
        yield daemon, Api(daemon, token), clients


Running = tuple[Daemon, Api, list[socket.socket]]


def walked(api: Api, path: str, limit: int) -> list[dict[str, Any]]:
    """All entries of a list, page after page."""
    found: list[dict[str, Any]] = []
    cursor = ""
    while True:
        page = api.get(f"{path}?limit={limit}&cursor={cursor}")
        assert len(page["data"]) <= limit
        found += page["data"]
        if not page["meta"]["hasnext"]:
            return found
        cursor = page["meta"]["cursor"]


def test_lists_have_the_clients_of_all_workers_in_order(running: Running) -> None:
    _, api, _ = running
    names = [f"client-{at:02}" for at in range(CLIENTS)]
    for limit in (1, 5, 100):
        assert [each["clientid"] for each in walked(api, "/clients", limit)] == names
    subscriptions = [(each["clientid"], each["topic"]) for each in walked(api, "/subscriptions", 5)]
    assert subscriptions == [(name, topic) for name in names for topic in ("a", "b")]
    # And not all of one worker.
    shares = [len(api.get(f"/clients?worker={worker}")["data"]) for worker in ("w0", "w1")]
    assert sum(shares) == CLIENTS
    assert min(shares) > 0


def test_a_client_is_found_and_disconnected_wherever_it_is(running: Running) -> None:
    _, api, clients = running
    for at in range(4):
        name = f"client-{at:02}"
        assert api.get(f"/clients/{name}")["clientid"] == name
        assert [each["topic"] for each in api.get(f"/clients/{name}/subscriptions")["data"]] == ["a", "b"]
    assert api.call("DELETE", "/api/v5/clients/client-11")[0] == 204
    clients[11].settimeout(30.0)
    while clients[11].recv(4_096):
        pass
    assert api.call("GET", "/api/v5/clients/client-11")[0] == 404
    with pytest.raises(AssertionError, match="CLIENTID_NOT_FOUND"):
        api.get("/clients/nobody")


def test_figures_are_sums_or_named_by_worker(running: Running) -> None:
    _, api, _ = running
    connected = api.get("/stats")["clients.connected"]
    assert connected >= CLIENTS - 1
    status, text = api.call("GET", "/metrics")
    assert status == 200
    shares = [line.rpartition(" ")[2] for line in text.splitlines() if line.startswith("canopy_clients_connected{")]
    assert sum(map(float, shares)) == connected
    assert len(shares) == 2


def test_status_readiness_and_the_workers(running: Running) -> None:
    daemon, api, _ = running
    told = api.get("/status")
    assert told["listening"] == daemon.urls
    assert told["ready"]
    assert api.call("GET", "/readyz", token="")[0] == 200
    assert api.call("GET", "/healthz", token="") == (200, "ok\n")
    assert [(each["name"], each["restarts"]) for each in api.get("/workers")["data"]] == [("w0", 0), ("w1", 0)]


def test_topic_filters_of_all_workers_add_up(running: Running) -> None:
    _, api, _ = running
    found = [(each["level"], each["subscriptions"]) for each in api.get("/filters")["data"]]
    # Some clients have gone.
    there = sum(1 for each in api.get("/subscriptions?limit=1000")["data"] if each["topic"] == "a")
    assert there > 1
    assert found == [("a", there), ("b", there)]


def test_who_may_do_what_is_asked_by_the_supervisor(running: Running) -> None:
    _, api, _ = running
    assert api.call("GET", "/api/v5/clients", token="wrong")[0] == 401
    assert api.call("DELETE", "/api/v5/clients/client-00?worker=w0", token="wrong")[0] == 401
    assert api.get("/clients/client-00")["connected"]


def test_what_cannot_be_told_of_all_is_told_of_one(running: Running) -> None:
    _, api, _ = running
    status, body = api.call("GET", "/api/v5/top")
    assert status == 501
    assert "?worker=w0" in json.loads(body)["message"]
    assert api.call("GET", "/api/v5/top?worker=w1")[0] == 200
    assert api.ctl("--worker", "w1", "top")[0] == 0
    assert api.ctl("--worker", "w1", "api", "GET", "/clients?limit=1")[0] == 0
    assert api.call("GET", "/api/v5/top?worker=w7")[0] == 404


def test_the_page_is_that_of_one_worker(running: Running) -> None:
    """Its files come from the supervisor; its document has what this worker can be asked."""
    daemon, api, _ = running
    with urllib.request.urlopen(f"{daemon.started['http'][0]}/", timeout=30.0) as answer:
        assert answer.url.endswith("/?worker=w0")
        assert b"<html" in answer.read()
        assert "script-src 'self'" in answer.headers["Content-Security-Policy"]
    assert api.call("GET", "/page/api.js")[0] == 200
    assert "/api/v5/top" in api.get("/openapi.json?worker=w1")["paths"]
    assert "/api/v5/top" not in api.get("/openapi.json")["paths"]


def test_what_all_have_to_do_all_do(running: Running) -> None:
    daemon, api, _ = running
    assert api.call("PUT", "/api/v5/log-level", {"level": "debug", "seconds": 1.0})[0] == 200
    told = [daemon.until("log level changed by an operator")[-1]["worker"] for _ in range(2)]
    assert sorted(told) == ["w0", "w1"]
    assert api.call("PUT", "/api/v5/log-level", {"level": "shouting"})[0] == 400
    status, body = api.call("POST", "/api/v5/reload")
    assert (status, json.loads(body)) == (200, {"restart": []})


def test_the_document_has_what_is_served_and_no_more(running: Running) -> None:
    _, api, _ = running
    paths = api.get("/openapi.json")["paths"]
    assert {"/api/v5/clients", "/api/v5/workers", "/api/v5/restart"} <= set(paths)
    assert "/api/v5/top" not in paths


def test_without_a_worker_clients_can_still_come_and_it_is_told_of(running: Running) -> None:
    daemon, api, _ = running
    os.kill(pids(daemon)["w1"], signal.SIGKILL)
    daemon.until("worker ended")
    status, text = api.call("GET", "/readyz")
    assert (status, text) == (200, "worker w1 is not there\n")
    assert 'canopy_worker_up{worker="w1"} 0.0' in api.call("GET", "/metrics")[1]
    daemon.until("worker serves again")
    assert api.get("/workers")["data"][1]["restarts"] == 1
    assert api.ctl("workers") == (0, ["w0", "w1"])
    assert api.ctl("restart") == (0, [])
    assert api.call("POST", "/api/v5/restart")[0] == 409
    daemon.until("rolling restart done")
    until(lambda: api.call("GET", "/readyz") == (200, "ok\n"))
