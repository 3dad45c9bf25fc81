"""The authenticator of password files: what is hashed, what is not, and what a new file changes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from canopy_mqtt.core.codec import reason_codes
from canopy_mqtt.core.principal import Principal
from canopy_mqtt.security.authenticator import Attempt, Refusal, Verdict
from canopy_mqtt.security.passwords.hashes import make
from canopy_mqtt.security.passwords.hashing_pool import HashingPool
from canopy_mqtt.security.passwords.password_authenticator import PasswordAuthenticator
from canopy_mqtt.security.passwords.verified_credentials import VerifiedCredentials
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
    busy = Refusal(reason_codes.SERVER_BUSY, "too many passwords wait to be hashed")
    assert await users.authenticate(attempt("bob")) == busy
    assert await users.pretend(attempt("mallory")) == busy
    assert [known_as(verdict) for verdict in await asyncio.gather(*tasks)] == ["alice", "alice"]
    await pool.close()
