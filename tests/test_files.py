"""Whatever is written is there whole or not at all: two writers, a killed one, a full disk."""

import errno
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import progmem
from progmem import files
from progmem.errors import InputError, WriteError
from progmem.files import locked, read_whole, remove_leftovers, reserve, unfinished, write_file

FORK = multiprocessing.get_context("fork")


def in_another_process(do):
    """A process that has come as far as where ``do`` says so, by the function it is given."""
    told, tell = FORK.Pipe(duplex=False)
    process = FORK.Process(target=do, args=(lambda: tell.send(0),))
    process.start()
    assert told.poll(30)
    return process


def kill(process):
    os.kill(process.pid, signal.SIGKILL)
    process.join()


def writing(path, *, folder=False):
    """Another process in the midst of writing ``path``."""

    def write(tell):
        with unfinished(path) as new:
            if folder:
                new.mkdir()
                (new / "half").write_bytes(b"half")
            else:
                new.write_bytes(b"half")
            tell()
            time.sleep(60)

    return in_another_process(write)


def test_a_second_writer_is_told_who_is_writing_and_does_not_hang(tmp_path):
    other = writing(tmp_path / "a")
    began = time.perf_counter()
    with (
        pytest.raises(InputError, match=rf"a is in use by process {other.pid} on \S+; wait for it"),
        unfinished(tmp_path / "a", wait=0.05),
    ):
        pytest.fail("two writers at once")
    assert time.perf_counter() - began < 5
    kill(other)
    write_file(tmp_path / "a", b"whole")
    assert (tmp_path / "a").read_bytes() == b"whole" and len(list(tmp_path.iterdir())) == 1


def test_a_writer_waits_for_another(tmp_path):
    with locked(tmp_path / "a"):
        other = FORK.Process(target=write_file, args=(tmp_path / "a", b"later"))
        other.start()
        time.sleep(0.1)
        assert other.is_alive() and not (tmp_path / "a").exists()
    other.join(30)
    assert (tmp_path / "a").read_bytes() == b"later"


@pytest.mark.parametrize("folder", [False, True])
def test_what_a_killed_writer_has_left_is_removed_by_the_next_one_in_that_folder(tmp_path, folder):
    killed, alive = writing(tmp_path / "killed", folder=folder), writing(tmp_path / "alive.csv")
    kill(killed)
    assert sum("killed" in path.name for path in tmp_path.iterdir()) == 2
    write_file(tmp_path / "other", b"")
    names = sorted(path.name for path in tmp_path.iterdir())
    assert not any("killed" in name for name in names)
    assert sum("alive.csv" in name for name in names) == 2  # what it writes, and its lock
    kill(alive)
    remove_leftovers(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["other"]


def test_a_name_that_begins_like_another_is_another(tmp_path):
    for name in ("a.b", "a"):
        (tmp_path / f".progmem-{name}.0123").write_bytes(b"half")
    with locked(tmp_path / "a.b"):
        remove_leftovers(tmp_path)
        (tmp_path / ".progmem-a.b.0123").write_bytes(b"half")
        write_file(tmp_path / "a", b"")
        assert (tmp_path / ".progmem-a.b.0123").exists()
        assert not (tmp_path / ".progmem-a.0123").exists()


def fill(folder, text):
    folder.mkdir()
    for name in ("one", "two"):
        (folder / name).write_text(text)


def texts(folder):
    return [(folder / name).read_text() for name in ("one", "two")]


@pytest.mark.parametrize("at_once", [True, False], ids=["exchanged", "renamed twice"])
def test_a_folder_is_replaced_whole_and_keeps_its_mode(tmp_path, at_once, monkeypatch):
    if not at_once:
        monkeypatch.setattr(files, "_exchange", lambda *_: False)
    fill(tmp_path / "kept", "old")
    (tmp_path / "kept/more").write_text("old")
    (tmp_path / "kept").chmod(0o750)
    with unfinished(tmp_path / "kept") as new:
        fill(new, "new")
        assert texts(tmp_path / "kept") == ["old", "old"]
    assert sorted(p.name for p in (tmp_path / "kept").iterdir()) == ["one", "two"]
    assert texts(tmp_path / "kept") == ["new", "new"]
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]
    assert (tmp_path / "kept").stat().st_mode & 0o777 == 0o750
    with pytest.raises(ZeroDivisionError), unfinished(tmp_path / "kept") as new:
        fill(new, "bad")
        _ = 1 / 0
    assert texts(tmp_path / "kept") == ["new", "new"] and len(list(tmp_path.iterdir())) == 1


@pytest.mark.skipif(sys.platform != "linux", reason="other systems may have to rename twice")
def test_linux_exchanges_folders_at_once(tmp_path):
    fill(tmp_path / "a", "a")
    fill(tmp_path / "b", "b")
    assert files._exchange(tmp_path / "a", tmp_path / "b")
    assert texts(tmp_path / "a") == ["b", "b"] and texts(tmp_path / "b") == ["a", "a"]
    assert not files._exchange(tmp_path / "a", tmp_path / "none")


def test_a_writer_killed_between_two_renames_loses_nothing(tmp_path, monkeypatch):
    """Where folders cannot change places at once, what was there before is found again."""
    monkeypatch.setattr(files, "_exchange", lambda *_: False)
    fill(tmp_path / "kept", "old")

    def killed(tell):
        rename = Path.rename

        def then_wait(self, target):
            rename(self, target)
            tell()
            time.sleep(60)

        Path.rename = then_wait
        with unfinished(tmp_path / "kept") as new:
            fill(new, "new")

    kill(in_another_process(killed))
    assert not (tmp_path / "kept").exists()
    write_file(tmp_path / "other", b"")
    assert texts(tmp_path / "kept") == ["old", "old"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["kept", "other"]


def test_who_reads_a_folder_that_is_replaced_meanwhile_reads_one_of_both(tmp_path):
    fill(tmp_path / "kept", "0")
    seen = []

    def read():
        first = (tmp_path / "kept/one").read_text()
        if len(seen) < 2:  # twice another comes in between
            with unfinished(tmp_path / "kept") as new:
                fill(new, str(len(seen) + 1))
        seen.append(first)
        second = (tmp_path / "kept/two").read_text()
        if first != second:
            raise ValueError("of two saves")
        return first

    assert read_whole(tmp_path / "kept", read) == "2" and seen == ["0", "1", "2"]
    (tmp_path / "kept/two").write_text("another")
    with pytest.raises(ValueError, match="of two saves"):
        read_whole(tmp_path / "kept", read)


def test_a_folder_below_a_file_is_refused_by_the_name_of_that_file(tmp_path):
    (tmp_path / "a").write_bytes(b"")
    for folder in (tmp_path / "a", tmp_path / "a/b", tmp_path / "a/b/c"):
        with pytest.raises(InputError, match=f"{folder} cannot be made: {tmp_path}/a is a file$"):
            files.make_folder(folder)


def test_a_link_is_written_through(tmp_path):
    (tmp_path / "there").mkdir()
    for name in ("file", "folder"):
        (tmp_path / name).symlink_to(tmp_path / "there" / name)
    fill(tmp_path / "there/folder", "old")
    write_file(tmp_path / "file", b"new")
    with unfinished(tmp_path / "folder") as new:
        fill(new, "new")
    assert (tmp_path / "file").is_symlink() and (tmp_path / "folder").is_symlink()
    assert (tmp_path / "there/file").read_bytes() == b"new"
    assert texts(tmp_path / "there/folder") == ["new", "new"]


@pytest.mark.parametrize(
    "number, words",
    [(errno.ENOSPC, "No space left on device"), (errno.EDQUOT, "uota exceeded"),
     (errno.EROFS, "Read-only file system"), (errno.EACCES, "Permission denied")],
)  # fmt: skip
@pytest.mark.parametrize("before", [None, b"before"], ids=["new", "replaced"])
def test_what_cannot_be_written_is_named_with_what_is_kept(tmp_path, number, words, before):
    path, kept = tmp_path / "a.csv", "nothing of it is left"
    if before is not None:
        path.write_bytes(before)
        kept = "what was there before is kept"
    with pytest.raises(WriteError) as caught, unfinished(path) as new:
        new.write_bytes(b"half")
        raise OSError(number, "")
    assert str(caught.value).startswith(f"{path} was not written: ")
    assert words in str(caught.value) and str(caught.value).endswith(f"; {kept}")
    assert caught.value.errno == number
    assert [p.read_bytes() for p in tmp_path.iterdir()] == ([] if before is None else [before])


@pytest.fixture
def full_disk(tmp_path):
    """A folder on a file system of 1 MB, where there is a right to make one."""
    folder = tmp_path / "full"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    try:
        subprocess.run(mount, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("only root may mount a small file system")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_disk_that_is_full_keeps_what_was_there(full_disk):
    path = full_disk / "a"
    write_file(path, b"before")
    with pytest.raises(WriteError, match="No space left on device; what was there before is kept"):
        write_file(path, bytes(2 << 20))
    assert path.read_bytes() == b"before" and list(full_disk.iterdir()) == [path]
    with pytest.raises(WriteError, match="b was not written"), unfinished(full_disk / "b") as new:
        with new.open("wb") as file:
            file.truncate(2 << 20)  # only holes, which a mapping would have to fill
        reserve(new)
    assert list(full_disk.iterdir()) == [path]


def test_a_file_with_holes_gets_its_space_without_a_change(tmp_path, monkeypatch):
    for name in ("one", "two"):
        with (tmp_path / name).open("wb") as file:
            file.write(b"head")
            file.truncate(3 << 20)
        reserve(tmp_path / name)
        found = (tmp_path / name).stat()
        assert found.st_size == 3 << 20 and found.st_blocks * 512 >= 3 << 20
        assert (tmp_path / name).read_bytes()[:8] == b"head\0\0\0\0"
        monkeypatch.delattr(os, "posix_fallocate", raising=False)  # as on macOS


def test_files_that_may_not_grow_are_named(tmp_path, small_files):
    model = progmem.PMT(progmem.ModelConfig(channels=2, size="tiny"))
    with pytest.raises(WriteError, match=r"model.safetensors was not written: File too large; not"):
        model.save(tmp_path / "model")
    assert list((tmp_path / "model").iterdir()) == []
