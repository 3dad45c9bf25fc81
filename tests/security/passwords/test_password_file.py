"""Password files: what is read, what is said of mistakes, and how a file is changed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from canopy_mqtt.security.errors import SecurityError
from canopy_mqtt.security.passwords.hashes import PasswordHash, make, parse
from canopy_mqtt.security.passwords.password_file import PasswordFile, edit, read_password_file
from tests.support.runs import for_each

HASH = make(b"secret", "sha512")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "passwd"


def fault(file: Path) -> str:
    with pytest.raises(SecurityError) as caught:
        read_password_file(file)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_users_comments_and_blanks(file: Path) -> None:
    file.write_text(f"# staff\n\nalice:{HASH}\r\n  bob :  {HASH}  \n#carl:{HASH}\n")
    assert sorted(read_password_file(file).users) == ["alice", "bob"]
    assert read_password_file(file).check("bob", b"secret")
    file.write_text("")
    assert read_password_file(file).users == {}
    assert not read_password_file(file).check("bob", b"secret")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("alice\n", "line 1: not USER:HASH; a comment begins with #"),
        (f"\n:{HASH}\n", "line 2: the user name before the colon is missing"),
        ("alice:hunter2\n", "line 1: not a hashed password ($7$, $6$ or $argon2id$)"),
        (f"alice:{HASH}\nbob:{HASH}\nalice:{HASH}\n", "line 3: the user has a line already, 1"),
        (f"{'a' * 65_536}:{HASH}\n", "line 1: the user name has more than 65535 bytes"),
    ],
)
def test_mistakes_name_file_and_line(file: Path, text: str, told: str) -> None:
    file.write_text(text)
    said = fault(file)
    assert said.startswith(f"{file}: {told}")
    assert "hunter2" not in said


def test_a_file_that_cannot_be_read(file: Path) -> None:
    assert fault(file) == f"{file}: cannot be read: No such file or directory"
    file.write_bytes(b"alice:\xff")
    assert fault(file) == f"{file}: not UTF-8 text (byte 6)"


class Counted(PasswordHash):
    """Counts the checks."""

    def __init__(self, cost: float, good: bytes) -> None:
        super().__init__("", cost)
        self.checks = 0
        self.good = good

    def check(self, password: bytes) -> bool:
        self.checks += 1
        return password == self.good


@for_each("user", ["cheap", "dear", "nobody"])
def test_a_refusal_costs_the_same_for_everybody(user: str) -> None:
    """What counts is the dearest hash of the file: it is computed once, whoever is refused."""
    cheap, dear = Counted(1, b"c"), Counted(100, b"d")
    users: dict[str, Any] = {"cheap": cheap, "dear": dear}
    assert not PasswordFile(users).check(user, b"wrong")
    assert dear.checks == 1
    assert cheap.checks == (user == "cheap")


def test_the_password_of_the_dearest_hash_opens_no_other_door() -> None:
    users: dict[str, Any] = {"cheap": Counted(1, b"c"), "dear": Counted(100, b"d")}
    assert not PasswordFile(users).check("cheap", b"d")
    assert not PasswordFile(users).check("nobody", b"d")
    assert PasswordFile(users).check("dear", b"d")


class TestEdit:
    def test_a_new_file_is_its_owners_alone(self, file: Path) -> None:
        assert not edit(file, "alice", HASH, create=True)
        assert file.read_text() == f"alice:{HASH}\n"
        assert file.stat().st_mode & 0o777 == 0o600

    def test_without_create_it_has_to_be_there(self, file: Path) -> None:
        with pytest.raises(SecurityError, match="cannot be read"):
            edit(file, "alice", HASH)
        assert not file.exists()

    def test_a_user_is_changed_at_its_place(self, file: Path) -> None:
        file.write_text(f"# mine\nalice:{HASH}\n\nbob:{HASH}\n")
        file.chmod(0o640)
        assert edit(file, "alice", "$6$new")
        assert file.read_text() == f"# mine\nalice:$6$new\n\nbob:{HASH}\n"
        assert file.stat().st_mode & 0o777 == 0o640

    def test_a_user_is_added_at_the_end_and_taken_out(self, file: Path) -> None:
        file.write_text(f"alice:{HASH}")
        assert not edit(file, "bob", HASH)
        assert edit(file, "alice", None)
        assert not edit(file, "carl", None)
        assert file.read_text() == f"bob:{HASH}\n"

    def test_two_lines_of_one_user_become_one(self, file: Path) -> None:
        file.write_text(f"alice:{HASH}\nalice:{HASH}\n")
        edit(file, "alice", "$6$new")
        assert file.read_text() == "alice:$6$new\n"

    @pytest.mark.parametrize("user", ["", "a:b", "#a", " a", "a\nb", "a" * 65_536])
    def test_names_that_would_break_the_file(self, file: Path, user: str) -> None:
        with pytest.raises(SecurityError, match="a user name has"):
            edit(file, user, HASH, create=True)
        assert not file.exists()

    def test_a_link_stays_one(self, file: Path, tmp_path: Path) -> None:
        real = tmp_path / "real"
        real.write_text("")
        file.symlink_to(real)
        edit(file, "alice", HASH)
        assert file.is_symlink()
        assert parse(real.read_text().strip().removeprefix("alice:")).check(b"secret")

    def test_a_folder_that_cannot_be_written_leaves_nothing(self, tmp_path: Path) -> None:
        missing = tmp_path / "nowhere" / "passwd"
        with pytest.raises(SecurityError, match="cannot be written: there is no folder"):
            edit(missing, "alice", HASH, create=True)
        assert list(tmp_path.iterdir()) == []
