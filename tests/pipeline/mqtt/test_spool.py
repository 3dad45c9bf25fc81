"""The spool: what is appended stays readable under its offsets, exactly once, whatever happens in between."""

from __future__ import annotations

import os
import tempfile
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from canopy_mqtt.core.codec.packets import Publish
from canopy_pipeline.errors import PipelineError
from canopy_pipeline.mqtt.rows import Read, batch
from canopy_pipeline.mqtt.source import divided
from canopy_pipeline.mqtt.spool import Slice, Spool, SpoolError, read
from canopy_pipeline.runtime.storage import Local
from tests.support.runs import examples, for_each


def rows(first: int, count: int) -> object:
    """Rows whose payload is their offset."""
    return batch([Publish(b"t", b"%d" % each) for each in range(first, first + count)], [Read(count, 0, 0, 1)])


def offsets(slices: list[Slice]) -> list[int]:
    return [int(each) for piece in slices for got in read(piece) for each in got.column("payload").to_pylist()]


STEPS = st.one_of(
    st.tuples(st.just("append"), st.integers(1, 5)),
    st.tuples(st.just("commit"), st.integers(0, 12)),
    st.tuples(st.just("crash"), st.sampled_from(["quiet", "torn segment", "before unlinking"])),
)


@settings(deadline=None, max_examples=examples(60))
@given(st.lists(STEPS, max_size=25))
def test_every_row_stays_readable_under_its_offset(steps: list[tuple[str, int | str]]) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        spool = Spool(folder, "c")
        committed = end = 0
        for step, how in steps:
            if step == "append":
                assert isinstance(how, int)
                end += how
                assert spool.append(rows(end - how, how)) == end
            elif step == "commit":
                assert isinstance(how, int)
                committed = max(committed, min(committed + how, end))
                spool.commit(committed)
            else:
                kept = {each: each.read_bytes() for each in folder.glob("seg-*")}
                if how == "before unlinking":
                    committed = end
                    spool.commit(end)
                    for path, content in kept.items():
                        path.write_bytes(content)
                if how == "torn segment":
                    (folder / f".seg-{end:018d}-3.arrow.part").write_bytes(b"ARROW1 torn")
                # A killed process takes its lock with it, and nothing else.
                spool.close()
                spool = Spool(folder, "c")
            assert (spool.committed, spool.next) == (committed, end)
            assert offsets(spool.slices(committed, end)) == list(range(committed, end))
            middle = (committed + end) // 2
            assert offsets(spool.slices(committed, middle)) == list(range(committed, middle))
            assert spool.bytes == sum(each.stat().st_size for each in folder.glob("seg-*"))
            assert not list(folder.glob(".seg-*")), "a torn segment was left"
        spool.close()


def test_one_query_at_a_time(tmp_path: Path) -> None:
    spool = Spool(tmp_path, "c")
    with pytest.raises(PipelineError, match="another query uses this spool"):
        Spool(tmp_path, "c", wait=0.01)
    spool.close()
    Spool(tmp_path, "c").close()


def test_the_spool_of_another_client(tmp_path: Path) -> None:
    Spool(tmp_path, "mine").close()
    with pytest.raises(SpoolError, match="is the spool of client id 'mine'; give 'other' its own option 'spool'"):
        Spool(tmp_path, "other")
    # The refusal leaves no lock behind.
    Spool(tmp_path, "mine").close()


@for_each("lost", [0, 1])
def test_a_deleted_segment_is_told(tmp_path: Path, lost: int) -> None:
    spool = Spool(tmp_path, "c")
    for each in range(3):
        spool.append(rows(each * 2, 2))
    spool.close()
    sorted(tmp_path.glob("seg-*"))[lost].unlink()
    with pytest.raises(SpoolError, match=f"rows {lost * 2} to {lost * 2 + 1} are missing"):
        Spool(tmp_path, "c")


def test_a_checkpoint_that_does_not_belong_to_it(tmp_path: Path) -> None:
    spool = Spool(tmp_path, "c")
    spool.append(rows(0, 4))
    spool.commit(2)
    for start, end in ((0, 4), (2, 5), (7, 7)):
        with pytest.raises(SpoolError, match="they do not belong together"):
            spool.slices(start, end)
    assert offsets(spool.slices(2, 4)) == [2, 3]
    spool.close()


@for_each("text", ["", "[]", "{}", '{"format": 2, "committed": 0, "client_id": "c"}'])
def test_a_state_that_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "state.json").write_text(text)
    with pytest.raises(SpoolError, match=r"state\.json: is no state of a spool; move the folder away"):
        Spool(tmp_path, "c")


def test_a_folder_that_cannot_be_one(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SpoolError, match="cannot be used as a spool"):
        Spool(tmp_path / "file", "c")


def test_a_task_that_does_not_reach_the_segment(tmp_path: Path) -> None:
    with pytest.raises(SpoolError, match="must be a folder that every executor reaches"):
        read(Slice(str(tmp_path / "seg-000000000000000000-1.arrow"), 0, 1))
    torn = tmp_path / "torn.arrow"
    torn.write_bytes(os.urandom(100))
    with pytest.raises(SpoolError, match=r"torn\.arrow: cannot be read"):
        read(Slice(str(torn), 0, 1))


def test_partitions_are_even_and_in_order() -> None:
    slices = [Slice(str(each), 0, 5000) for each in range(20)]
    parts = divided(slices, 4)
    assert [len(each.slices) for each in parts] == [5, 5, 5, 5]
    assert [piece for each in parts for piece in each.slices] == slices
    assert len(divided(slices[:2], 4)) == 1, "few rows are one task"
    assert divided([], 4) == []


def test_nothing_is_written_after_close(tmp_path: Path) -> None:
    spool = Spool(tmp_path, "c")
    spool.append(rows(0, 2))
    spool.close()
    spool.close()
    before = {each.name: each.read_bytes() for each in tmp_path.iterdir()}
    other = Spool(tmp_path, "c")
    for write in (lambda: spool.append(rows(2, 1)), lambda: spool.commit(2), lambda: spool.note("filters", ["late"])):
        with pytest.raises(SpoolError, match="is closed, and may be another query's by now"):
            write()
    assert {each.name: each.read_bytes() for each in tmp_path.iterdir()} == before
    other.close()


def test_close_keeps_the_lock_while_a_segment_is_being_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writing, go_on = threading.Event(), threading.Event()

    publish = Local.publish

    def slow(self: Local, draft: str, place: str) -> None:
        if threading.current_thread() is appending:
            writing.set()
            assert go_on.wait(30)
        publish(self, draft, place)

    monkeypatch.setattr(Local, "publish", slow)
    appending = threading.Thread(target=lambda: spool.append(rows(0, 2)))
    spool = Spool(tmp_path, "c")
    closing = threading.Thread(target=spool.close)
    appending.start()
    try:
        assert writing.wait(30)
        closing.start()
        with pytest.raises(PipelineError, match="another query uses this spool"):
            Spool(tmp_path, "c", wait=0.2)
    finally:
        go_on.set()
        appending.join(30)
        closing.join(30)
    other = Spool(tmp_path, "c")
    assert offsets(other.slices(0, other.next)) == [0, 1]
    other.close()
