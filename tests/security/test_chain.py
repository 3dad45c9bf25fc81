"""The chain of authenticators: who is asked, what is answered and when, and what nobody else notices."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from canopy_mqtt.core.codec import reason_codes
from canopy_mqtt.core.hooks import LATER, PeerCertificate
from canopy_mqtt.core.principal import Principal
from canopy_mqtt.security.authenticator import Attempt, Authenticator, Refusal, Verdict
from canopy_mqtt.security.chain import MAX_LINES, MAX_REASON_CODES, Chain, ListenerAuth
from canopy_mqtt.security.plain_authenticators import (
    AnonymousAuthenticator,
    CertificateAuthenticator,
    RejectAuthenticator,
    TrustAuthenticator,
)
from canopy_mqtt.settings import Security
from tests.security.scripted import Asked, Log, Reporter, Scripted, connect, origin
from tests.support.waiting import until


class Chains:
    """Makes chains, and closes them."""

    def __init__(self) -> None:
        self.made: list[Chain] = []
        self.reporter = Reporter()
        self.log = Log()

    def __call__(
        self,
        *authenticators: Authenticator,
        anonymous: bool | None = None,
        by_listener: dict[str, ListenerAuth] | None = None,
        **settings: Any,
    ) -> Chain:
        section = Security(**{"failure_delay": 0.0, **settings})
        chain = Chain(section, ListenerAuth(authenticators, anonymous), by_listener or {}, self.reporter, self.log)
        self.made.append(chain)
        return chain


@pytest.fixture
async def chains() -> AsyncIterator[Chains]:
    made = Chains()
    yield made
    for chain in made.made:
        await chain.close()
        assert chain.under_way == 0


async def answer(chain: Chain, ticket: Asked, *args: Any, **kwargs: Any) -> int:
    """The verdict, whenever it comes."""
    host = kwargs.pop("host", "10.0.0.1")
    listener = kwargs.pop("listener", "")
    certificate = kwargs.pop("certificate", None)
    code = chain.admit(connect(*args, **kwargs), origin(host, listener, certificate), ticket.ticket)
    if code == LATER:
        await until(lambda: ticket.answers)
        (code,) = ticket.answers
    return code


async def test_the_first_that_knows_the_client_decides(chains: Chains) -> None:
    first, second = Scripted("first", {"alice": b"1"}), Scripted("second", {"alice": b"2", "bob": b"2"})
    chain = chains(first, second)
    ticket = Asked()
    assert await answer(chain, ticket, "alice", b"1") == reason_codes.SUCCESS
    assert ticket.principal is not None
    assert (ticket.principal.user_name, ticket.principal.authenticator) == ("alice", "first")
    # What the second would say does not matter.
    ticket = Asked()
    assert await answer(chain, ticket, "alice", b"2") == reason_codes.BAD_USER_NAME_OR_PASSWORD
    assert (ticket.principal, ticket.detail) == (None, "first: wrong password")
    ticket = Asked()
    assert await answer(chain, ticket, "bob", b"2") == reason_codes.SUCCESS
    assert ticket.principal is not None
    assert ticket.principal.authenticator == "second"
    assert second.asked == ["bob"]
    assert (chain.admitted, chain.refused) == (2, 1)


class Dated(Authenticator):
    """Admits everybody, until a time."""

    name = "dated"

    def __init__(self, expires_at: float) -> None:
        self._expires_at = expires_at

    async def authenticate(self, attempt: Attempt) -> Verdict:
        return Principal(attempt.user_name, expires_at=self._expires_at)


async def test_what_has_expired_lets_nobody_in(chains: Chains) -> None:
    """Also where it is left to the broker to look at the time."""
    ticket = Asked()
    assert await answer(chains(Dated(time.time() - 1.0)), ticket, "alice") == reason_codes.NOT_AUTHORIZED
    assert ticket.detail == "what the client logs in with has expired"
    for ends in (0.0, time.time() + 60.0):
        assert await answer(chains(Dated(ends)), Asked(), "alice") == reason_codes.SUCCESS


async def test_verdicts_that_need_no_waiting_cost_no_task(chains: Chains) -> None:
    chain = chains(Scripted("first", {"alice": b"1"}, at_once=True), Scripted("second", {"bob": b"2"}))
    assert chain.admit(connect("alice", b"1"), origin(), Asked().ticket) == reason_codes.SUCCESS
    assert chain.admit(connect("alice", b"x"), origin(), Asked().ticket) == reason_codes.BAD_USER_NAME_OR_PASSWORD
    assert chain.under_way == 0
    assert chain.admit(connect("bob", b"2"), origin(), Asked().ticket) == LATER
    assert chain.under_way == 1


async def test_trust_takes_any_name_and_none(chains: Chains) -> None:
    """Where the one before it decides, it does."""
    chain = chains(Scripted("users", {"alice": b"1"}), TrustAuthenticator("trust"))
    for user, password in (("eve", b"x"), ("eve", None), (None, None), ("alice", b"1")):
        ticket = Asked()
        assert await answer(chain, ticket, user, password) == reason_codes.SUCCESS
        assert ticket.principal is not None
        assert (ticket.principal.user_name, ticket.principal.authenticator) == (
            user,
            "users" if user == "alice" else "trust",
        )
    assert await answer(chain, Asked(), "alice", b"wrong") == reason_codes.BAD_USER_NAME_OR_PASSWORD


async def test_reject_lets_nobody_in(chains: Chains) -> None:
    chain = chains(Scripted("users", {"alice": b"1"}), RejectAuthenticator("reject"))
    for user, password in (("eve", b"x"), (None, None)):
        assert await answer(chain, Asked(), user, password, certificate=CERTIFICATE) == reason_codes.NOT_AUTHORIZED
    assert await answer(chain, Asked(), "alice", b"1") == reason_codes.SUCCESS


async def test_trust_opens_no_listener_to_clients_without_a_name(chains: Chains) -> None:
    shut = ListenerAuth([TrustAuthenticator("trust")], anonymous=False)
    chain = chains(TrustAuthenticator("trust"), by_listener={"l": shut})
    assert await answer(chain, Asked(), listener="l") == reason_codes.NOT_AUTHORIZED


async def test_whom_nobody_knows(chains: Chains) -> None:
    one = Scripted("one", {"alice": b"1"}, at_once=True)
    chain = chains(one)
    ticket = Asked()
    assert await answer(chain, ticket, "mallory", b"1") == reason_codes.BAD_USER_NAME_OR_PASSWORD
    assert ticket.detail == "no authenticator knows the user"
    # As long as a refusal of alice takes.
    assert one.pretended == 1
    ticket = Asked()
    assert await answer(chain, ticket) == reason_codes.NOT_AUTHORIZED
    assert ticket.detail == "a user name is needed"


async def test_without_authenticators_clients_are_whom_they_say(chains: Chains) -> None:
    ticket = Asked()
    assert await answer(chains(), ticket, "alice", b"x") == reason_codes.SUCCESS
    assert ticket.principal is not None
    assert ticket.principal.user_name == "alice"
    assert await answer(chains(), Asked()) == reason_codes.SUCCESS
    assert await answer(chains(anonymous=False), Asked()) == reason_codes.NOT_AUTHORIZED


@pytest.mark.parametrize(
    ("authenticators", "anonymous", "expected"),
    [
        ([], None, True),
        ([], False, False),
        (["users"], None, False),
        (["users"], True, True),
        (["users", "anonymous"], None, True),
        (["users", "anonymous"], False, False),
    ],
)
async def test_anonymous_clients(
    chains: Chains, authenticators: list[str], anonymous: bool | None, expected: bool
) -> None:
    made = {"users": Scripted("users", {"alice": b"1"}), "anonymous": AnonymousAuthenticator("anonymous")}
    chain = chains(*(made[name] for name in authenticators), anonymous=anonymous)
    ticket = Asked()
    code = await answer(chain, ticket)
    assert code == (reason_codes.SUCCESS if expected else reason_codes.NOT_AUTHORIZED)
    assert (ticket.principal is not None) is expected
    # A password without a user name is an attempt to be somebody.
    if "users" in authenticators and anonymous is None:
        assert await answer(chain, Asked(), None, b"1") == reason_codes.NOT_AUTHORIZED


CERTIFICATE = PeerCertificate("CN=sensor-7,O=Site", "sensor-7", ("a.site", "b.site"), ("a@site",), ("urn:7",))


@pytest.mark.parametrize(
    ("part", "user"),
    [
        ("cn", "sensor-7"),
        ("subject", "CN=sensor-7,O=Site"),
        ("san-dns", "a.site"),
        ("san-email", "a@site"),
        ("san-uri", "urn:7"),
    ],
)
async def test_the_certificate_names_the_user(chains: Chains, part: Any, user: str) -> None:
    chain = chains(CertificateAuthenticator("certificate", part), Scripted("users", {"alice": b"1"}))
    for named in (None, "somebody-else"):
        ticket = Asked()
        assert await answer(chain, ticket, named, certificate=CERTIFICATE) == reason_codes.SUCCESS
        assert ticket.principal is not None
        assert ticket.principal.user_name == user
    # Who has none, or none with such a name, is asked by the next.
    assert await answer(chain, Asked(), "alice", b"1") == reason_codes.SUCCESS
    bare = PeerCertificate("")
    assert await answer(chain, Asked(), "alice", b"1", certificate=bare) == reason_codes.SUCCESS
    assert await answer(chain, Asked(), certificate=bare) == reason_codes.NOT_AUTHORIZED


async def test_an_authenticator_that_raises_harms_its_client_alone(chains: Chains) -> None:
    broken = Scripted("broken", {"alice": RuntimeError("hunter2")})
    chain = chains(broken, Scripted("users", {"alice": b"1", "bob": b"2"}))
    ticket = Asked()
    assert await answer(chain, ticket, "alice", b"1") == reason_codes.SERVER_UNAVAILABLE
    assert ticket.detail == "an authenticator failed"
    assert await answer(chain, Asked(), "bob", b"2") == reason_codes.SUCCESS
    at_once = chains(Scripted("broken", {"alice": RuntimeError("x")}, at_once=True))
    assert at_once.admit(connect("alice"), origin(), Asked().ticket) == reason_codes.SERVER_UNAVAILABLE
    assert [hook for hook, _ in chains.reporter.failures] == ["authenticator"] * 2


async def test_one_that_hangs_is_given_up(chains: Chains) -> None:
    slow = Scripted("slow", {"alice": b"1"})
    slow.may_go_on.clear()
    chain = chains(slow, authentication_timeout=0.01)
    ticket = Asked()
    assert await answer(chain, ticket, "alice", b"1") == reason_codes.SERVER_UNAVAILABLE
    assert ticket.detail == "the authenticators took too long"
    assert slow.cancelled == 1


async def test_no_more_than_so_many_are_worked_on(chains: Chains) -> None:
    slow = Scripted("slow", {"alice": b"1"})
    slow.may_go_on.clear()
    chain = chains(slow, max_authentications=2)
    tickets = [Asked() for _ in range(3)]
    codes = [chain.admit(connect("alice", b"1"), origin(), ticket.ticket) for ticket in tickets]
    assert codes == [LATER, LATER, reason_codes.SERVER_BUSY]
    slow.may_go_on.set()
    await until(lambda: tickets[0].answers and tickets[1].answers)
    assert chain.under_way == 0


async def test_wrong_credentials_are_told_later(chains: Chains) -> None:
    chain = chains(Scripted("users", {"alice": b"1"}, at_once=True), failure_delay=0.05, max_authentications=1)
    began = asyncio.get_running_loop().time()
    waiting, beyond, wrong = Asked(), Asked(), connect("alice", b"x")
    assert chain.admit(wrong, origin(), waiting.ticket) == LATER
    assert wrong.password is None
    # As many as may be worked on wait; the next is told at once. So is who gave no credentials.
    assert chain.admit(connect("alice", b"x"), origin(), beyond.ticket) == reason_codes.BAD_USER_NAME_OR_PASSWORD
    assert chain.admit(connect(), origin(), Asked().ticket) == reason_codes.NOT_AUTHORIZED
    assert chain.admit(connect("alice", b"1"), origin(), Asked().ticket) == reason_codes.SUCCESS
    await until(lambda: waiting.answers)
    assert waiting.answers == [reason_codes.BAD_USER_NAME_OR_PASSWORD]
    assert asyncio.get_running_loop().time() >= began + 0.05


async def test_nobody_is_told_after_the_end(chains: Chains) -> None:
    chain = chains(Scripted("users", {"alice": b"1"}, at_once=True), failure_delay=0.01)
    ticket = Asked()
    assert chain.admit(connect("alice", b"x"), origin(), ticket.ticket) == LATER
    await chain.close()
    assert ticket.answers == []
    assert not chain._delayed


async def test_what_is_no_guess_bans_nobody(chains: Chains) -> None:
    chain = chains(Scripted("users", {"alice": b"1"}), ban_after=1, client_ids=["{user}-*"])
    assert await answer(chain, Asked()) == reason_codes.NOT_AUTHORIZED
    assert await answer(chain, Asked(), "alice", b"1") == reason_codes.CLIENT_IDENTIFIER_NOT_VALID
    assert await answer(chain, Asked(), "alice", b"1", client_id="alice-1") == reason_codes.SUCCESS


async def test_client_identifiers_belong_to_users(chains: Chains) -> None:
    chain = chains(Scripted("users", {"alice": b"1", "bob": b"2"}), client_ids=["{user}-*"])
    ticket = Asked()
    assert await answer(chain, ticket, "alice", b"1", client_id="bob-1") == reason_codes.CLIENT_IDENTIFIER_NOT_VALID
    assert ticket.principal is None
    assert ticket.detail == "security.client_ids: not an identifier of this user"
    assert await answer(chain, Asked(), "alice", b"1", client_id="alice-1") == reason_codes.SUCCESS
    # The broker chooses one that nobody has.
    assert await answer(chain, Asked(), "alice", b"1", client_id="") == reason_codes.SUCCESS


async def test_an_authentication_method_has_decided(chains: Chains) -> None:
    """Then the credentials of the CONNECT mean nothing; bans and the rules of identifiers hold all the same."""
    users = Scripted("users", {"alice": b"1"})
    chain = chains(users, client_ids=["{user}-*"], ban_after=1)
    ticket = Asked(Principal("carl"))
    assert chain.admit(connect("alice", b"x", "carl-1"), origin(), ticket.ticket) == reason_codes.SUCCESS
    assert users.asked == []
    other = chain.admit(connect("alice", b"x", "alice-1"), origin(), Asked(Principal("carl")).ticket)
    assert other == reason_codes.CLIENT_IDENTIFIER_NOT_VALID
    chain.login_failed("10.0.0.1", "carl", b"proof")
    assert chain.admit(connect(client_id="carl-1"), origin(), Asked(Principal("carl")).ticket) == reason_codes.BANNED


async def test_who_may_stay_after_a_reload() -> None:
    staff, things = Scripted("staff", {"alice": b"1"}), Scripted("things", {"sensor": b"2"})
    auth = ListenerAuth([staff, things])
    assert auth.still_admits(Principal("alice", authenticator="staff"))
    assert not auth.still_admits(Principal("bob", authenticator="staff"))
    # The name alone does not make it the same user.
    assert not auth.still_admits(Principal("alice", authenticator="things"))
    assert not auth.still_admits(Principal("alice", authenticator="gone"))
    assert not auth.still_admits(Principal("alice"))
    assert ListenerAuth([]).still_admits(Principal("alice"))
    assert ListenerAuth([], False).still_admits(Principal("alice"))
    assert not ListenerAuth([], False).still_admits(Principal())
    assert ListenerAuth([staff], True).still_admits(Principal())


async def test_a_thousand_guesses_at_once_are_no_more_than_a_few(chains: Chains) -> None:
    """With the ban, what is under way from there ends unanswered; others go on."""
    slow = Scripted("slow", {"alice": b"500"})
    slow.may_go_on.clear()
    chain = chains(slow, ban_after=3)
    tickets = [Asked() for _ in range(1_000)]
    for at, ticket in enumerate(tickets):
        assert chain.admit(connect("alice", b"%d" % at), origin(), ticket.ticket) == LATER
    other = Asked()
    assert chain.admit(connect("alice", b"500"), origin("10.0.0.2"), other.ticket) == LATER
    slow.may_go_on.set()
    await until(lambda: other.answers and all(ticket.answers for ticket in tickets))
    codes = [ticket.answers for ticket in tickets]
    assert codes.count([reason_codes.BAD_USER_NAME_OR_PASSWORD]) == 3
    assert codes.count([reason_codes.BANNED]) == 997
    assert other.answers == [reason_codes.SUCCESS]
    await until(lambda: chain.under_way == 0)


async def test_lines_about_bans_are_bounded(chains: Chains) -> None:
    chain = chains(ban_after=1)
    for at in range(1_000):
        chain.login_failed(f"10.0.{at // 250}.{at % 250}", "alice", b"")
    assert chain.brute_force.bans == 1_000
    assert len(chains.log.lines) == MAX_LINES


async def test_nobody_slips_in_with_what_was_taken_back_meanwhile(chains: Chains) -> None:
    users = Scripted("users", {"alice": b"1", "bob": b"2"})
    users.may_go_on.clear()
    chain = chains(users)
    alice, bob = Asked(), Asked()
    for user, password, ticket in (("alice", b"1", alice), ("bob", b"2", bob)):
        assert chain.admit(connect(user, password), origin(), ticket.ticket) == LATER
    chain.change(Security(failure_delay=0.0), ListenerAuth([Scripted("users", {"bob": b"2"})]), {})
    users.may_go_on.set()
    await until(lambda: alice.answers and bob.answers)
    assert (alice.answers, bob.answers) == ([reason_codes.BAD_USER_NAME_OR_PASSWORD], [reason_codes.SUCCESS])


@pytest.mark.parametrize("code", [0, LATER, 0x18])
@pytest.mark.parametrize("at_once", [True, False])
async def test_a_refusal_that_is_none_lets_nobody_in(chains: Chains, code: int, at_once: bool) -> None:
    class Wrong(Scripted):
        def _decide(self, attempt: Attempt) -> Verdict:
            del attempt
            return Refusal(code)

    chain = chains(Wrong("wrong", {}, at_once))
    assert await answer(chain, Asked(), "alice", b"1") == reason_codes.SERVER_UNAVAILABLE
    assert "reason code" in str(chains.reporter.failures[0][1])


async def test_refusals_are_counted_by_their_reason_and_by_no_more_than_there_are(chains: Chains) -> None:
    class Odd(Scripted):
        """Refuses each time with another code."""

        code = 0x80

        def _decide(self, attempt: Attempt) -> Verdict:
            del attempt
            Odd.code += 1
            return Refusal(Odd.code)

    chain = chains(Scripted("users", {"alice": b"1"}))
    for password in (b"2", b"3", b"1"):
        await answer(chain, Asked(), "alice", password)
    assert chain.refusals == {"Bad User Name or Password": 2}
    chain = chains(Odd("odd", {}))
    for _ in range(2 * MAX_REASON_CODES):
        await answer(chain, Asked(), "alice", b"1")
    assert (len(chain.refusals), chain.refused) == (MAX_REASON_CODES, 2 * MAX_REASON_CODES)
