"""Reading .npy files: numpy writes them, numpy is the judge, and hostile ones are refused."""

from __future__ import annotations

import io
import pickle
import struct
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from rlx.dist.files import read_npy
from rlx.errors import DataError

SUPPORTED = ["f2", "f4", "f8", "i1", "u1", "i4", "i8", "b1"]


def header(descr="'<f4'", fortran_order="False", shape="(2,)"):
    return f"{{'descr': {descr}, 'fortran_order': {fortran_order}, 'shape': {shape}, }}"


def npy(text, data=b"", version=1, length=None):
    """A file with this header, whatever it says, and these bytes."""
    encoded = text.encode("latin-1") + b"\n"
    size = struct.pack("<H" if version == 1 else "<I", len(encoded) if length is None else length)
    return b"\x93NUMPY" + bytes([version, 0]) + size + encoded + data


def written(array, version=None):
    file = io.BytesIO()
    np.lib.format.write_array(file, array, version=version, allow_pickle=True)
    return file.getvalue()


@pytest.fixture
def refusal(tmp_path):
    """Writes the bytes to a file, and gives the message with which it is refused."""

    def refuse(content):
        path = tmp_path / "x.npy"
        path.write_bytes(content)
        with pytest.raises(DataError) as raised:
            read_npy(path)
        assert str(path) in str(raised.value)
        return str(raised.value)

    return refuse


@pytest.fixture
def load(tmp_path):
    def from_bytes(content):
        path = tmp_path / "x.npy"
        path.write_bytes(content)
        return read_npy(path)

    return from_bytes


arrays = st.sampled_from(SUPPORTED).flatmap(
    lambda code: hnp.arrays(
        np.dtype(code), hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4)
    )
)


class TestWhatNumpyWrites:
    @settings(max_examples=150, deadline=None, derandomize=True, database=None)
    @given(
        arrays,
        st.sampled_from("<>"),
        st.sampled_from("CF"),
        st.sampled_from([(1, 0), (2, 0), (3, 0)]),
    )
    def test_is_read_back_to_the_last_bit(
        self, tmp_path_factory, array, byte_order, order, version
    ):
        path = tmp_path_factory.mktemp("npy", numbered=True) / "x.npy"
        stored = np.array(array, array.dtype.newbyteorder(byte_order), order=order)
        path.write_bytes(written(stored, version))
        loaded = read_npy(path)
        assert loaded.dtype == array.dtype
        assert loaded.dtype.isnative
        assert loaded.shape == array.shape
        assert loaded.tobytes() == array.tobytes()
        assert loaded.flags.c_contiguous
        assert not loaded.flags.writeable

    def test_is_mapped_and_not_copied(self, tmp_path):
        path = tmp_path / "x.npy"
        np.save(path, np.zeros(4, "<f4"))
        loaded = read_npy(path)
        with open(path, "r+b") as file:
            file.seek(-4, 2)
            file.write(np.float32(7).tobytes())
        assert loaded[3] == 7

    @pytest.mark.parametrize("code", [">f4", ">i8"])
    def test_of_the_other_byte_order_is_read_as_its_values(self, load, code):
        stored = np.array([1.0, 2.0], code)
        assert stored.tobytes() != stored.astype(code.replace(">", "<")).tobytes()
        loaded = load(written(stored))
        assert loaded.dtype.isnative
        assert loaded.tolist() == [1.0, 2.0]

    def test_in_fortran_order_is_not_transposed(self, load):
        array = np.arange(6, dtype="<f8").reshape(2, 3)
        assert load(written(np.asfortranarray(array))).tolist() == [[0, 1, 2], [3, 4, 5]]

    def test_at_an_odd_offset_is_aligned_all_the_same(self, load):
        text = header("'<f8'", shape="(2,)")
        data = np.array([1.5, -2.0]).tobytes()
        loaded = load(npy(text + " " * (1 - len(text) % 2), data))
        assert loaded.flags.aligned
        assert loaded.tolist() == [1.5, -2.0]

    @pytest.mark.parametrize("array", [np.float32(2.5), np.zeros((0, 3), "f4")])
    def test_of_no_dimension_or_no_element_is_an_array(self, load, array):
        loaded = load(written(np.asarray(array)))
        assert isinstance(loaded, np.ndarray)
        assert loaded.shape == array.shape
        assert loaded.tolist() == array.tolist()


class TestAHeaderThatLies:
    def test_about_its_own_length_is_refused(self, refusal):
        content = b"\x93NUMPY\x02\x00\xff\xff\xff\xff" + b" " * 8
        assert len(content) == 20
        assert "4294967295 bytes; 8 follow" in refusal(content)

    def test_about_the_content_is_told_both_sizes(self, refusal):
        content = npy(header("'<f8'", shape="(4, 4)"), bytes(64))
        assert "needs 128 bytes, has 64" in refusal(content)

    def test_with_bytes_left_over_is_refused(self, refusal):
        assert "needs 8 bytes, has 9" in refusal(npy(header(), bytes(9)))

    def test_whose_product_wraps_in_64_bits_is_refused(self, refusal):
        assert (2**32 * 2**32) % 2**64 == 0
        message = refusal(npy(header("'|u1'", shape="(4294967296, 4294967296)")))
        assert f"needs {2**64} bytes, has 0" in message

    def test_with_an_empty_array_of_huge_dimensions_is_refused(self, refusal):
        size = 2**62
        assert "too large" in refusal(npy(header(shape=f"(0, {size}, {size})")))

    def test_with_more_dimensions_than_numpy_has_is_refused(self, refusal, load):
        assert load(npy(header(shape=f"({'1, ' * 64})"), bytes(4))).ndim == 64
        assert "65 dimensions" in refusal(npy(header(shape=f"({'1, ' * 65})"), bytes(4)))

    @pytest.mark.parametrize(
        "shape",
        ["(-1,)", "(True,)", "[2]", "(2.0,)", "2", "(2)", "(2,,)", "(,)", "(2 2,)", "(02,)", "None",
         "(2", "2,)", "(2]", "((2,),)", "('2',)", "(1_0,)", "(2,\x1c1)", "(2L,)",
         f"({10**30},)", "{}"],
    )  # fmt: skip
    def test_about_its_shape_is_refused(self, refusal, shape):
        refusal(npy(header(shape=shape), bytes(8)))

    @pytest.mark.parametrize("shape", ["(2,)", "(2, )", "( 2 , )", "(1, 2)", "(1, 2,)"])
    def test_counter_these_shapes_are_good(self, load, shape):
        assert load(npy(header(shape=shape), bytes(8))).size == 2

    @pytest.mark.parametrize(
        ("text", "reason"),
        [
            ("{'descr': '<f4', 'shape': (2,)}", "lacks fortran_order"),
            (header()[:-1] + " 'extra': 1}", "'extra'"),
            (header()[:-1] + " 'descr': '<f4'}", "duplicate key 'descr'"),
            (header(fortran_order="1"), "expected True or False"),
            ("[1, 2]", "no dict"),
            ("", "no dict"),
            ("{'descr' '<f4'}", "malformed"),
            ("{,}", "malformed"),
            ("{)(}", "brackets"),
            ("{'descr: }", "malformed"),
            (header() + " + 1", "no dict"),
            (header() + " \x1e ", "no dict"),
            (header() + "\xa0", "no dict"),
        ],
    )
    def test_about_its_fields_is_refused(self, refusal, text, reason):
        assert reason in refusal(npy(text, bytes(8)))

    @pytest.mark.parametrize("letter", ["[", "(", "{", "-", "'", "\\", "1+", "\xff", ",", ":"])
    def test_of_one_endless_expression_is_refused(self, refusal, letter):
        text = "{'shape': " + letter * (60_000 // len(letter))
        refusal(npy(text))
        refusal(npy(text + "}"))

    def test_longer_than_any_real_one_is_refused(self, refusal, load):
        padding = " " * (60 * 1024)
        assert load(npy(header() + padding, bytes(8), version=2)).size == 2
        assert "at most 65536" in refusal(npy(header() + padding * 2, bytes(8), version=2))

    @pytest.mark.parametrize("cut", range(0, 12))
    def test_cut_anywhere_in_its_start_is_refused(self, refusal, cut):
        refusal(npy(header(), bytes(8))[:cut])

    @pytest.mark.parametrize("version", [(0, 0), (1, 1), (4, 0)])
    def test_of_an_unknown_version_is_refused(self, refusal, version):
        content = bytearray(npy(header(), bytes(8)))
        content[6:8] = version
        assert f"version {version[0]}.{version[1]} is unknown" in refusal(bytes(content))


class TestATypeThatIsNotSupported:
    @pytest.mark.parametrize("code", ["i2", "u2", "u4", "u8", "c8", "U3", "M8[s]", "S4"])
    def test_is_named_with_those_that_are(self, refusal, code):
        message = refusal(written(np.zeros(2, code)))
        assert code in message
        assert "supported: float16, float32, float64, int8, uint8, int32, int64, bool" in message

    def test_is_named_as_a_person_would(self, refusal):
        assert "(uint16)" in refusal(written(np.zeros(2, "u2")))

    def test_that_leaves_its_byte_order_open_is_refused(self, refusal):
        assert "byte order" in refusal(npy(header("'=f4'"), bytes(8)))

    def test_that_is_structured_is_refused(self, refusal):
        table = np.zeros(2, [("a", "f4"), ("b", "f4")])
        assert "structured arrays are not supported" in refusal(written(table))

    def test_is_a_bool_with_bytes_other_than_0_and_1(self, refusal, load):
        assert load(npy(header("'|b1'"), b"\x00\x01")).tolist() == [False, True]
        assert "0 or 1" in refusal(npy(header("'|b1'"), b"\x00\x02"))


class Trap:
    """Its pickle makes a file when it is loaded."""

    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return open, (str(self.marker), "w")


class TestCodeInAFile:
    @pytest.fixture
    def marker(self, tmp_path):
        return tmp_path / "marker"

    def hostile(self, kind, marker):
        objects = np.array([Trap(marker)], object)
        if kind == "object array":
            return written(objects)
        if kind == "pickle":
            return pickle.dumps(Trap(marker))
        archive = io.BytesIO()
        np.savez(archive, x=objects)
        return archive.getvalue()

    @pytest.mark.parametrize("kind", ["object array", "pickle", "archive"])
    def test_is_refused_and_does_not_run(self, refusal, marker, kind):
        message = refusal(self.hostile(kind, marker))
        assert "object arrays are not supported" in message
        assert not marker.exists()

    @pytest.mark.parametrize("kind", ["object array", "pickle", "archive"])
    def test_counter_a_trusting_reader_runs_it(self, marker, kind):
        file = io.BytesIO(self.hostile(kind, marker))
        loaded = np.load(file, allow_pickle=True)
        if kind == "archive":
            loaded["x"]
        assert marker.exists()

    def test_in_the_header_is_not_run(self, refusal, marker):
        refusal(npy(header(shape=f"(open({str(marker)!r}, 'w') and 2,)"), bytes(8)))
        assert not marker.exists()


@settings(max_examples=400, deadline=None, derandomize=True, database=None)
@given(data=st.data())
def test_a_damaged_file_is_refused_or_read_as_numpy_reads_it(tmp_path_factory, data):
    array = data.draw(arrays)
    content = bytearray(written(array))
    for _ in range(data.draw(st.integers(1, 3))):
        position = data.draw(st.integers(0, len(content) - 1))
        change = data.draw(st.sampled_from(["set", "cut", "insert", "remove"]))
        if change == "set":
            content[position] = data.draw(st.integers(0, 255) | st.sampled_from(b"<>|0123(),' f"))
        elif change == "insert":
            content.insert(position, data.draw(st.sampled_from(b"0123456789(),'-{}[] \n\x00")))
        elif change == "remove":
            del content[position]
        elif data.draw(st.booleans()):
            del content[position:]
        if not content:
            break
    path = tmp_path_factory.mktemp("npy", numbered=True) / "x.npy"
    path.write_bytes(content)
    try:
        loaded = read_npy(path)
    except DataError:
        return
    expected = np.load(path, allow_pickle=False)
    assert loaded.dtype == expected.dtype.newbyteorder("=")
    assert loaded.shape == expected.shape
    assert loaded.tobytes() == np.ascontiguousarray(expected).astype(loaded.dtype).tobytes()


PEAK = """
import sys, time
from rlx.dist.files import read_npy
from rlx.errors import DataError

def peak_kib():
    # Of this program alone; ru_maxrss also counts the process that started it.
    text = open("/proc/self/status").read()
    return int(text.split("VmHWM:")[1].split()[0])

before, start = peak_kib(), time.perf_counter()
try:
    read_npy(sys.argv[1])
except DataError:
    print("refused", peak_kib() - before, time.perf_counter() - start)
block = b"x" * (100 << 20)
print("counter", peak_kib() - before)
"""


def test_a_header_length_of_4_gib_allocates_nothing(tmp_path):
    path = tmp_path / "x.npy"
    path.write_bytes(b"\x93NUMPY\x02\x00\xff\xff\xff\xff")
    path.open("r+b").truncate(6 << 30)  # sparse: the length is within the file
    command = [sys.executable, "-c", PEAK, str(path)]
    output = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    refused, counter = (line.split() for line in output.splitlines())
    assert refused[0] == "refused"
    assert int(refused[1]) < 50 * 1024
    assert float(refused[2]) < 1
    assert int(counter[1]) > 90 * 1024
