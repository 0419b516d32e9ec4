"""Labels of a session: on disk after every change, one for a sample, and taken back in order."""

import errno
import threading

import pytest

from progmem import artifact, files
from progmem.errors import InputError, WriteError
from progmem.explore.session import Label, Session


@pytest.fixture
def session(tmp_path):
    with Session(tmp_path) as session:
        yield session


def test_a_new_label_takes_its_samples_from_older_ones(session):
    session.name("a", 0, 100, "one")
    session.name("b", 0, 100, "one")
    session.name("a", 40, 60, "two")
    assert session.labels_of("a") == [
        Label("a", 0, 40, "one"), Label("a", 40, 60, "two"), Label("a", 60, 100, "one"),
    ]  # fmt: skip
    assert session.labels_of("b") == [Label("b", 0, 100, "one")]
    session.name("a", 30, 70, "")
    assert session.labels_of("a") == [Label("a", 0, 30, "one"), Label("a", 70, 100, "one")]


def test_undo_takes_back_one_change_after_the_other_also_in_another_session(session, tmp_path):
    history = [list(session.labels)]
    for start, end, label in [(0, 100, "one"), (50, 150, "two"), (20, 130, "three"), (0, 9, "")]:
        session.name("a", start, end, label)
        history.append(list(session.labels))
    session.close()
    with Session(tmp_path) as again:
        assert again.labels == history.pop()
        while history:
            assert again.undo() is not None
            assert again.labels == history.pop()
        assert again.undo() is None


def test_labels_of_a_file_are_added_in_one_change_where_there_are_none(session):
    session.name("a", 0, 100, "one")
    given = [Label("a", 50, 150, "two"), Label("a", 100, 150, "two"), Label("b", 0, 9, "two")]
    assert session.add(given) == 2
    assert session.labels == [Label("a", 0, 100, "one"), *given[1:]]
    assert session.add(given) == 0
    session.undo()
    assert session.labels == [Label("a", 0, 100, "one")]


def test_classes_keep_the_order_in_which_they_were_first_used(session):
    for i, label in enumerate(["wave", "calm", "wave", "=1+1\n"]):
        session.name("a", 10 * i, 10 * i + 10, label)
    assert session.classes == ["wave", "calm", "=1+1"]
    session.name("a", 10, 20, "")
    assert session.classes == ["wave", "=1+1"]
    session.undo()
    assert session.classes == ["wave", "calm", "=1+1"]


def test_every_change_gives_a_revision_and_what_changes_nothing_gives_none(session):
    session.name("a", 0, 10, "one")
    assert session.revision == 1
    session.name("a", 0, 10, "one")
    session.name("b", 0, 10, "")
    assert session.revision == 1 and len(session.changes) == 1


def test_changes_at_the_same_time_are_all_kept(session, tmp_path):
    def label(recording):
        for i in range(10):
            session.name(recording, 10 * i, 10 * i + 10, f"label {i % 3}")

    threads = [threading.Thread(target=label, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    session.close()
    with Session(tmp_path) as again:
        assert len(again.labels) == 40 and again.labels == session.labels


def test_on_a_full_disk_the_page_and_the_disk_still_agree(session, tmp_path, monkeypatch):
    session.name("a", 0, 10, "one")

    def full(path):
        raise OSError(errno.ENOSPC, "no space")

    monkeypatch.setattr(files, "_sync", full)
    with pytest.raises(WriteError, match="was not written: No space left"):
        session.name("a", 20, 30, "two")
    with pytest.raises(WriteError, match="what was there before is kept"):
        session.undo()
    monkeypatch.undo()
    assert session.labels == [Label("a", 0, 10, "one")] and session.revision == 1
    session.close()
    with Session(tmp_path) as again:
        assert again.labels == session.labels


def _damaged(path):
    path.write_bytes(path.read_bytes()[:-1] + b"?")


def _other(path):
    artifact.write(path, "session", {}, {"labels": [["a", "0", 1, "x"]], "changes": []})


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (_damaged, "session.safetensors.*damaged.*--labels"),
        (_other, "is no label; move .*session.safetensors away"),
    ],
)
def test_a_damaged_session_is_told_in_one_line_and_stays(tmp_path, spoil, message):
    with Session(tmp_path) as session:
        session.name("a", 0, 10, "one")
    spoil(session.path)
    before = session.path.read_bytes()
    with pytest.raises(InputError, match=message) as told:
        Session(tmp_path)
    assert "\n" not in str(told.value) and session.path.read_bytes() == before


def test_bad_use_is_told_in_one_line(session, tmp_path):
    with pytest.raises(InputError, match=r"begins at 0 or later and ends after that, got 5-5"):
        session.name("a", 5, 5, "one")
    with pytest.raises(InputError, match="is in use by process"):
        Session(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="file is a file; give a folder"):
        Session(tmp_path / "file")
