"""SCRAM-SHA-256: the messages of the server, against the vectors of the RFC and a client written from it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from canopy_mqtt.security.scram.key_file import ScramFile, derive
from canopy_mqtt.security.scram.scram_server import MAX_MESSAGE_BYTES, MAX_NONCE_LENGTH, ScramError, ScramServer
from tests.security.scram_client import (
    CLIENT_FINAL,
    CLIENT_NONCE,
    SERVER_FINAL,
    SERVER_FIRST,
    SERVER_NONCE,
    VECTOR_PASSWORD,
    VECTOR_SALT,
    VECTOR_USER,
    ScramClient,
)
from tests.support.runs import for_each

FILE = ScramFile({VECTOR_USER: derive(VECTOR_PASSWORD, VECTOR_SALT, 4096)}, b"a secret of the file")


def vector_server() -> ScramServer:
    return ScramServer(FILE, SERVER_NONCE)


def begun() -> ScramServer:
    server = vector_server()
    server.first(b"n,,n=user,r=" + CLIENT_NONCE.encode())
    return server


class TestExchange:
    def test_the_vectors_of_rfc_7677(self) -> None:
        server = vector_server()
        assert server.first(b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO") == SERVER_FIRST
        assert server.final(CLIENT_FINAL) == SERVER_FINAL
        assert server.user == "user"

    @for_each("header", ["n,,", "y,,", "n,a=user,", "y,a=user,"])
    def test_a_client_without_channel_binding_comes_in(self, header: str) -> None:
        server, client = ScramServer(FILE), ScramClient(VECTOR_USER, VECTOR_PASSWORD, header=header)
        assert server.final(client.final(server.first(client.first()))) == client.signature

    @given(
        st.text(st.characters(codec="ascii", exclude_characters=":#", categories=["L", "N", "P", "S"]), min_size=1),
        st.text(st.characters(codec="ascii", categories=["L", "N", "P", "S"]), min_size=1),
    )
    def test_every_user_with_the_own_password_and_no_other(self, user: str, password: str) -> None:
        file = ScramFile({user: derive(password, b"salt", 4096)})
        server, client = ScramServer(file), ScramClient(user, password)
        assert server.final(client.final(server.first(client.first()))) == client.signature
        assert server.user == user
        server, client = ScramServer(file), ScramClient(user, password + "x")
        final = client.final(server.first(client.first()))
        with pytest.raises(ScramError):
            server.final(final)

    def test_a_final_message_of_another_exchange_is_refused(self) -> None:
        """Who has seen one exchange cannot repeat it: the server's part of the nonce is another."""
        first, second = ScramServer(FILE), ScramServer(FILE)
        client = ScramClient(VECTOR_USER, VECTOR_PASSWORD)
        final = client.final(first.first(client.first()))
        second.first(client.first())
        with pytest.raises(ScramError, match="nonce is not that"):
            second.final(final)

    def test_the_header_of_the_first_message_is_what_was_signed(self) -> None:
        """A man in the middle who takes channel binding out of the offer is noticed (RFC 5802, section 6)."""
        server, client = ScramServer(FILE), ScramClient(VECTOR_USER, VECTOR_PASSWORD, header="y,,")
        final = client.final(server.first(client.first().replace(b"y,,", b"n,,")))
        with pytest.raises(ScramError, match="channel binding is not that"):
            server.final(final)


class TestUnknownUsers:
    def test_an_unknown_user_gets_as_far_as_one_with_a_wrong_password(self) -> None:
        told: list[str] = []
        for user in (VECTOR_USER, "nobody"):
            server, client = ScramServer(FILE), ScramClient(user, "wrong")
            final = client.final(server.first(client.first()))
            with pytest.raises(ScramError) as caught:
                server.final(final)
            assert caught.value.wrong_credentials
            told.append(str(caught.value))
        assert told[0] == told[1]

    def test_the_salt_of_an_unknown_user_stays_the_same_over_a_restart(self) -> None:
        def salt(file: ScramFile, user: str) -> bytes:
            return ScramServer(file, SERVER_NONCE).first(b"n,,n=%s,r=x" % user.encode())

        again = ScramFile(FILE.users, b"a secret of the file")
        assert salt(FILE, "nobody") == salt(again, "nobody")
        assert salt(FILE, "nobody") != salt(FILE, "someone")
        assert len(salt(FILE, "nobody")) == len(salt(FILE, VECTOR_USER))

    def test_no_password_opens_the_keys_of_an_unknown_user(self) -> None:
        credential, known = FILE.find("nobody")
        assert not known
        assert credential.stored_key != derive(VECTOR_PASSWORD, credential.salt, credential.iterations).stored_key


class TestMessages:
    @for_each(
        "message",
        [
            b"",
            b"n",
            b"n,",
            b"n,,",
            b"n,,n=user",
            b"n,,r=nonce,n=user",
            b"x,,n=user,r=nonce",
            b"n,,n=user,r=",
            b"n,,n=user,r=with blank",
            b"n,,n=,r=nonce",
            b"n,,n=us=er,r=nonce",
            b"n,,n=us=2cer,r=nonce",
            b"n,,m=ext,n=user,r=nonce",
            b"n,user,n=user,r=nonce",
            b"n,a=root,n=user,r=nonce",
            b"n,,n=us\x00er,r=nonce",
            b"n,,n=us\xffer,r=nonce",
            b"p=tls-unique,,n=user,r=nonce",
            b"n,,n=user,r=" + b"r" * (MAX_NONCE_LENGTH + 1),
            b"n,,n=user,r=nonce,x=" + b"x" * MAX_MESSAGE_BYTES,
        ],
    )
    def test_a_first_message_that_is_none(self, message: bytes) -> None:
        with pytest.raises(ScramError):
            vector_server().first(message)

    @for_each(
        "message",
        [
            b"",
            b"c=biws",
            CLIENT_FINAL.replace(b"c=biws", b"c=eSws"),
            CLIENT_FINAL.replace(b"c=biws", b"c=!"),
            CLIENT_FINAL.replace(b"c=biws,", b""),
            CLIENT_FINAL.replace(b"r=rOpr", b"r=rOps"),
            CLIENT_FINAL.replace(b"p=dHzb", b"p=dHzc"),
            CLIENT_FINAL.replace(b"p=dHzb", b"p="),
            CLIENT_FINAL.replace(b"p=dHzb", b"p=!!!!"),
            CLIENT_FINAL.replace(b",p=", b",q="),
            CLIENT_FINAL.replace(b",p=", b",x=y,p="),
        ],
    )
    def test_a_final_message_that_is_none_or_of_somebody_else(self, message: bytes) -> None:
        with pytest.raises(ScramError):
            begun().final(message)

    @given(st.binary())
    def test_whatever_comes_first_is_answered_or_refused(self, message: bytes) -> None:
        try:
            answer = vector_server().first(message)
        except ScramError:
            return
        assert answer.startswith(b"r=")

    @given(st.one_of(st.binary(), st.builds(lambda end: CLIENT_FINAL[:30] + end, st.binary())))
    def test_nothing_but_the_proof_lets_in(self, message: bytes) -> None:
        with pytest.raises(ScramError):
            begun().final(message)

    @given(st.integers(0, len(CLIENT_FINAL) - 1), st.integers(1, 255))
    def test_no_changed_byte_lets_in(self, at: int, by: int) -> None:
        changed = bytearray(CLIENT_FINAL)
        changed[at] ^= by
        with pytest.raises(ScramError):
            begun().final(bytes(changed))

    def test_an_error_holds_no_proof(self) -> None:
        with pytest.raises(ScramError) as caught:
            begun().final(CLIENT_FINAL.replace(b"p=dHzb", b"p=dHzc"))
        assert "dHz" not in repr(caught.value)
