"""The authenticator of password files: what is hashed, what is not, and what a new file changes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from broker.core.codec import reasons
from broker.core.principal import Principal
from broker.security.authenticator import ASK, Attempt, Refusal, Verdict
from broker.security.errors import SecurityError
from broker.security.passwords.authenticator import PasswordAuthenticator
from broker.security.passwords.hashes import make
from broker.security.passwords.hashing import HashingPool
from broker.security.passwords.password_file import edit
from broker.security.passwords.verified import VerifiedCredentials
from tests.security.scripted import connect, origin


@pytest.fixture
def file(tmp_path: Path) -> Path:
    made = tmp_path / "passwd"
    made.write_text("".join(f"{user}:{make(b'secret', 'pbkdf2-sha512', 1)}\n" for user in ("alice", "bob")))
    return made


@pytest.fixture
async def pool() -> AsyncIterator[HashingPool]:
    made = HashingPool(1, 10)
    yield made
    await made.close()


@pytest.fixture
async def users(file: Path, pool: HashingPool) -> PasswordAuthenticator:
    return await PasswordAuthenticator.read("users", file, pool, VerifiedCredentials(10), lambda: 16)


def attempt(user: str | None, password: bytes | None = b"secret") -> Attempt:
    return Attempt(connect(user, password), origin())


def known_as(verdict: Verdict) -> str | None:
    assert isinstance(verdict, Principal)
    return verdict.user_name


async def test_the_hash_of_an_empty_password_is_good_for_nothing(
    users: PasswordAuthenticator, file: Path, pool: HashingPool
) -> None:
    """As in mosquitto, which takes an empty password for none."""
    await asyncio.to_thread(file.write_text, f"alice:{make(b'', 'pbkdf2-sha512', 1)}\n")
    renewed = await users.renewed()
    for password in (b"", None):
        assert await renewed.authenticate(attempt("alice", password)) == Refusal(text="no password")
        assert await renewed.pretend(attempt("eve", password)) is None
    assert pool.done == 0


async def test_a_good_password_is_hashed_once(users: PasswordAuthenticator, pool: HashingPool) -> None:
    assert users.at_once(attempt("alice")) == ASK
    assert known_as(await users.authenticate(attempt("alice"))) == "alice"
    assert pool.done == 1
    verdict = users.at_once(attempt("alice"))
    assert verdict != ASK
    assert known_as(verdict) == "alice"
    assert known_as(await users.authenticate(attempt("alice"))) == "alice"
    assert pool.done == 1


async def test_a_wrong_one_is_hashed_each_time(users: PasswordAuthenticator, pool: HashingPool) -> None:
    for _ in range(2):
        assert await users.authenticate(attempt("alice", b"wrong")) == Refusal(text="wrong password")
    assert pool.done == 2


async def test_unknown_users_cost_as_much(users: PasswordAuthenticator, pool: HashingPool) -> None:
    assert await users.authenticate(attempt("mallory")) is None
    assert pool.done == 0
    assert await users.pretend(attempt("mallory")) is None
    assert pool.done == 1


async def test_what_is_not_hashed(users: PasswordAuthenticator, pool: HashingPool) -> None:
    assert await users.authenticate(attempt(None)) is None
    assert await users.authenticate(attempt("alice", None)) == Refusal(text="no password")
    long = await users.authenticate(attempt("alice", b"x" * 17))
    assert long == Refusal(text="the password is longer than security.max_password_length")
    for other in (attempt(None), attempt("mallory", None), attempt("mallory", b"x" * 17)):
        assert await users.pretend(other) is None
    assert pool.done == 0


async def test_too_many_at_a_time(file: Path) -> None:
    """Known and unknown users hear the same."""
    pool = HashingPool(1, 1)
    users = await PasswordAuthenticator.read("users", file, pool, VerifiedCredentials(10), lambda: 16)
    tasks = [asyncio.ensure_future(users.authenticate(attempt("alice"))) for _ in range(2)]
    await asyncio.sleep(0)
    busy = Refusal(reasons.SERVER_BUSY, "too many passwords wait to be hashed")
    assert await users.authenticate(attempt("bob")) == busy
    assert await users.pretend(attempt("mallory")) == busy
    assert [known_as(verdict) for verdict in await asyncio.gather(*tasks)] == ["alice", "alice"]
    await pool.close()


async def test_a_changed_file(users: PasswordAuthenticator, file: Path, pool: HashingPool) -> None:
    for user in ("alice", "bob"):
        await users.authenticate(attempt(user))
    await asyncio.to_thread(edit, file, "alice", make(b"another", "sha512"))
    new = await users.renewed()
    # What was read stays as it was, until it is replaced.
    assert known_as(await users.authenticate(attempt("alice"))) == "alice"
    assert await new.authenticate(attempt("alice")) == Refusal(text="wrong password")
    assert known_as(await new.authenticate(attempt("alice", b"another"))) == "alice"
    # Nobody else is hashed again.
    before = pool.done
    assert known_as(await new.authenticate(attempt("bob"))) == "bob"
    assert pool.done == before
    await asyncio.to_thread(edit, file, "bob", None)
    newest = await new.renewed()
    assert await newest.authenticate(attempt("bob")) is None
    assert not newest.still_knows(Principal("bob"))
    assert newest.still_knows(Principal("alice"))
    assert newest.files() == (file,)


async def test_a_bad_file_changes_nothing(users: PasswordAuthenticator, file: Path) -> None:
    await asyncio.to_thread(file.write_text, "alice\n")
    with pytest.raises(SecurityError, match="line 1"):
        await users.renewed()
    assert known_as(await users.authenticate(attempt("alice"))) == "alice"


async def test_no_secret_is_shown(users: PasswordAuthenticator, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    tried = attempt("alice", b"hunter2")
    verdict = await users.authenticate(tried)
    assert "hunter2" not in f"{tried!r} {tried} {verdict} {caplog.text}"
