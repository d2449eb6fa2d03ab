"""Saving tensors: the library reads what is written, and a failure leaves the old file whole."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import threading

import ml_dtypes
import numpy as np
import pytest
import safetensors
import safetensors.numpy
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from rlx.dist.files import read_safetensors
from rlx.dist.save import save_safetensors
from rlx.errors import DataError, UsageError

CODES = ["f2", "f4", "f8", "i1", "u1", "i4", "i8", "b1"]


def header_of(path):
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    return json.loads(content[8 : 8 + length])


@pytest.fixture
def path(tmp_path):
    return tmp_path / "model.safetensors"


class TestWhatIsSaved:
    @settings(max_examples=100, deadline=None, derandomize=True, database=None)
    @given(
        st.dictionaries(
            st.text(st.characters(exclude_categories=["Cs"]), max_size=6).filter(
                lambda name: name != "__metadata__"
            ),
            st.tuples(st.sampled_from(CODES), st.sampled_from("<>")).flatmap(
                lambda kind: hnp.arrays(
                    np.dtype(kind[1] + kind[0]),
                    hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4),
                )
            ),
            max_size=4,
        ),
        st.sampled_from(["C", "F", "strided"]),
    )
    def test_is_what_the_library_reads(self, tmp_path_factory, tensors, order):
        path = tmp_path_factory.mktemp("save", numbered=True) / "x.safetensors"
        given = {name: self.laid_out(array, order) for name, array in tensors.items()}
        save_safetensors(path, given, {"by": "rlx"})
        with safetensors.safe_open(path, "numpy") as file:
            assert file.metadata() == {"by": "rlx"}
        loaded = safetensors.numpy.load_file(path)
        ours = read_safetensors(path)
        assert list(ours) == list(tensors)
        assert loaded.keys() == tensors.keys()
        for name, array in tensors.items():
            expected = array.astype(array.dtype.newbyteorder("="))
            for found in (loaded[name], ours[name]):
                assert found.dtype == expected.dtype
                assert found.shape == expected.shape
                assert found.tobytes() == expected.tobytes()

    def laid_out(self, array, order):
        if order != "strided" or not array.ndim:
            return np.array(array, order="F" if order == "F" else "C")
        doubled = np.repeat(array, 2, axis=-1)
        return doubled[..., ::2]

    @pytest.mark.parametrize("code", ["<f4", ">f4"])
    def test_is_little_endian_on_disk(self, path, code):
        save_safetensors(path, {"w": np.array([1.0, 2.0], code)})
        assert path.read_bytes().endswith(bytes.fromhex("0000803f 00000040"))

    def test_may_be_bfloat16_of_either_byte_order(self, path):
        values = np.array([1.0, -2.5], ml_dtypes.bfloat16)
        swapped = values.astype(values.dtype.newbyteorder(">"))
        save_safetensors(path, {"w": values, "v": swapped[::-1]})
        assert read_safetensors(path, "w").dtype == ml_dtypes.bfloat16
        assert read_safetensors(path, "w").tolist() == [1.0, -2.5]
        assert read_safetensors(path, "v").tolist() == [-2.5, 1.0]

    def test_is_larger_than_one_piece(self, path):
        big = np.arange(5_000_003, dtype=">i8")
        save_safetensors(path, {"small": np.ones(3, "i1"), "big": big})
        assert np.array_equal(read_safetensors(path, "big"), big)
        assert read_safetensors(path, "small").tolist() == [1, 1, 1]

    def test_is_the_same_bytes_each_time(self, tmp_path):
        tensors = {"w": np.arange(3.0), "b": np.ones(1, "u1")}
        for name in ("a", "b"):
            save_safetensors(tmp_path / name, tensors, {"k": "v"})
        assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()

    def test_is_aligned_and_in_the_order_given(self, path):
        save_safetensors(path, {"odd": np.ones(3, "u1"), "w": np.arange(3.0)}, {"k": "v"})
        header = header_of(path)
        assert list(header) == ["__metadata__", "odd", "w"]
        assert header["w"]["data_offsets"] == [0, 24]
        assert int.from_bytes(path.read_bytes()[:8], "little") % 8 == 0

    def test_may_be_nothing(self, path):
        save_safetensors(path, {})
        assert read_safetensors(path) == {}
        assert safetensors.numpy.load_file(path) == {}

    @pytest.mark.parametrize("umask", [0o022, 0o077])
    def test_has_the_permissions_of_any_new_file(self, path, umask):
        before = os.umask(umask)
        try:
            save_safetensors(path, {})
        finally:
            os.umask(before)
        assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~umask

    def test_replaces_what_a_link_points_to(self, tmp_path, path):
        (tmp_path / "real").write_bytes(b"old")
        path.symlink_to("real")
        save_safetensors(path, {"w": np.ones(1)})
        assert path.is_symlink()
        assert read_safetensors(tmp_path / "real", "w").tolist() == [1]

    def test_leaves_arrays_of_the_old_file_whole(self, path):
        save_safetensors(path, {"w": np.ones(100_000)})
        old = read_safetensors(path, "w")
        save_safetensors(path, {"w": np.zeros(1)})
        assert old.min() == 1
        assert read_safetensors(path, "w").tolist() == [0]

    def test_may_be_read_and_written_at_once(self, path):
        def save(value):
            for _ in range(20):
                save_safetensors(path, {"w": np.full(5000, value)})

        save(0)
        writers = [threading.Thread(target=save, args=(value,)) for value in (1, 2)]
        for writer in writers:
            writer.start()
        while any(writer.is_alive() for writer in writers):
            found = read_safetensors(path, "w")
            assert found.shape == (5000,)
            assert found.min() == found.max()
        for writer in writers:
            writer.join(30)
        assert os.listdir(path.parent) == [path.name]


class TestWhatCannotBeSaved:
    @pytest.mark.parametrize(
        ("tensors", "metadata", "reason"),
        [
            ({"__metadata__": np.ones(1)}, None, "name of a tensor"),
            ({5: np.ones(1)}, None, "name of a tensor"),
            ({"\ud800": np.ones(1)}, None, "name of a tensor"),
            ({"w": [1.0]}, None, "not a numpy array"),
            ({"w": np.array([{}], object)}, None, "dtype object; supported: float16"),
            ({"w": np.ones(1, "u2")}, None, "dtype uint16"),
            ({}, {"a": 1}, "strings to strings"),
            ({}, {1: "a"}, "strings to strings"),
            ({}, {"a": "\udfff"}, "strings to strings"),
        ],
    )
    def test_is_named_before_anything_is_written(self, path, tensors, metadata, reason):
        path.write_bytes(b"old")
        with pytest.raises(UsageError, match=reason):
            save_safetensors(path, tensors, metadata)
        assert path.read_bytes() == b"old"
        assert os.listdir(path.parent) == [path.name]

    def test_is_a_header_that_its_reader_would_refuse(self, path):
        with pytest.raises(UsageError, match="at most 33554432 fit"):
            save_safetensors(path, {}, {"text": "x" * 2**25})


class TestWhereItCannotBeSaved:
    def refused(self, path, reason):
        with pytest.raises(DataError, match=reason) as raised:
            save_safetensors(path, {"w": np.ones(1)})
        assert repr(str(path)) in str(raised.value)

    def test_a_missing_folder_is_named(self, tmp_path):
        self.refused(tmp_path / "none" / "x.safetensors", "No such file or directory")

    def test_a_folder_is_not_replaced(self, tmp_path):
        (tmp_path / "folder").mkdir()
        self.refused(tmp_path / "folder", "no regular file")
        assert os.listdir(tmp_path) == ["folder"]

    def test_a_pipe_is_not_replaced(self, tmp_path):
        os.mkfifo(tmp_path / "pipe")
        self.refused(tmp_path / "pipe", "no regular file")
        assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)

    def test_a_nul_byte_is_refused(self, tmp_path):
        with pytest.raises(DataError, match="NUL"):
            save_safetensors(f"{tmp_path}/x\0", {})

    def test_a_name_too_long_leaves_nothing(self, tmp_path):
        self.refused(tmp_path / ("x" * 300), "File name too long")
        assert os.listdir(tmp_path) == []

    def test_the_longest_name_works(self, tmp_path):
        save_safetensors(tmp_path / ("x" * 255), {"w": np.ones(1)})
        assert read_safetensors(tmp_path / ("x" * 255), "w").tolist() == [1]


LIMITED = """
import os, resource, sys
import numpy as np
from rlx.dist.save import save_safetensors
from rlx.errors import DataError

path, limit, elements = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
if limit:
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
elif os.geteuid() == 0:  # who may write everywhere
    os.setresuid(65534, 65534, 65534)
try:
    save_safetensors(path, {"w": np.zeros(elements)})
    print("saved")
except DataError as error:
    print(error)
"""


def save_in_child(path, limit_bytes, elements):
    command = [sys.executable, "-c", LIMITED, str(path), str(limit_bytes), str(elements)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    return done.stdout.strip()


class TestAFailureHalfWay:
    @pytest.mark.parametrize("elements", [10_000, 5_000_000])
    def test_leaves_the_old_file_whole_and_no_other(self, path, elements):
        save_safetensors(path, {"w": np.ones(3)})
        before = path.read_bytes()
        message = save_in_child(path, 16_384, elements)
        assert f"cannot save '{path}'" in message
        assert "File too large" in message
        assert path.read_bytes() == before
        assert os.listdir(path.parent) == [path.name]

    def test_counter_within_the_limit_it_is_saved(self, path):
        assert save_in_child(path, 16_384, 1000) == "saved"
        assert read_safetensors(path, "w").shape == (1000,)

    def test_in_a_read_only_folder_is_named(self, path):
        save_safetensors(path, {"w": np.ones(3)})
        path.parent.chmod(0o500)
        try:
            message = save_in_child(path, 0, 3)
        finally:
            path.parent.chmod(0o700)
        assert "Permission denied" in message

    def test_by_an_interrupt_leaves_no_file(self, path, monkeypatch):
        def interrupted(descriptor):
            assert os.fstat(descriptor).st_size > 800
            raise KeyboardInterrupt

        path.write_bytes(b"old")
        monkeypatch.setattr(os, "fsync", interrupted)
        with pytest.raises(KeyboardInterrupt):
            save_safetensors(path, {"w": np.zeros(100)})
        assert path.read_bytes() == b"old"
        assert os.listdir(path.parent) == [path.name]

    def test_by_a_power_cut_finds_data_synced_before_the_name(self, path, monkeypatch):
        events = []
        for name in ("fsync", "replace"):
            original = getattr(os, name)

            def recorded(*arguments, name=name, original=original):
                kind = name
                if name == "fsync":
                    is_folder = stat.S_ISDIR(os.fstat(arguments[0]).st_mode)
                    kind = "fsync folder" if is_folder else "fsync file"
                events.append(kind)
                return original(*arguments)

            monkeypatch.setattr(os, name, recorded)
        save_safetensors(path, {"w": np.zeros(100)})
        assert events == ["fsync file", "replace", "fsync folder"]


@pytest.fixture
def full_disk(tmp_path):
    """A file system of 64 KiB; a test that needs it skips where none may be mounted."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)]
    try:
        mounted = subprocess.run(command, capture_output=True, timeout=30).returncode == 0
    except FileNotFoundError:
        mounted = False
    if not mounted:
        pytest.skip("this process may not mount a tmpfs")
    yield folder
    subprocess.run(["umount", str(folder)], check=True, timeout=30)


def test_a_full_disk_leaves_the_old_file_whole_and_no_other(full_disk):
    path = full_disk / "model.safetensors"
    save_safetensors(path, {"w": np.ones(1000)})
    before = path.read_bytes()
    with pytest.raises(DataError, match="No space left on device") as raised:
        save_safetensors(path, {"w": np.ones(20_000)})
    assert str(path) in str(raised.value)
    assert path.read_bytes() == before
    assert os.listdir(full_disk) == [path.name]
    save_safetensors(path, {"w": np.ones(2000)})  # the space is free again
