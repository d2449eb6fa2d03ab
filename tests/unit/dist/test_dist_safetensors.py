"""Reading .safetensors files: its own library writes and judges them, hostile ones are refused."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
import time

import ml_dtypes
import numpy as np
import pytest
import safetensors
import safetensors.numpy
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from rlx.dist.files import read_safetensors
from rlx.errors import DataError

TAGS = {
    "float16": "F16",
    "bfloat16": "BF16",
    "float32": "F32",
    "float64": "F64",
    "int8": "I8",
    "uint8": "U8",
    "int32": "I32",
    "int64": "I64",
    "bool": "BOOL",
}
CODES = ["f2", "f4", "f8", "i1", "u1", "i4", "i8", "b1", "bfloat16"]


def packed(header, data=b"", length=None):
    """A file with this header (text, bytes or an object), whatever it says, and these bytes."""
    if not isinstance(header, (str, bytes)):
        header = json.dumps(header)
    encoded = header if isinstance(header, bytes) else header.encode()
    return struct.pack("<Q", len(encoded) if length is None else length) + encoded + data


def entry(dtype="F32", shape=(1,), data_offsets=(0, 4)):
    return {"dtype": dtype, "shape": shape, "data_offsets": data_offsets}


@pytest.fixture
def load(tmp_path):
    def from_bytes(content, tensor=None):
        path = tmp_path / "x.safetensors"
        path.write_bytes(content)
        return read_safetensors(path, tensor)

    return from_bytes


@pytest.fixture
def refusal(load, tmp_path):
    """The message with which a file of these bytes is refused."""

    def refuse(content, tensor=None):
        with pytest.raises(DataError) as raised:
            load(content, tensor)
        message = str(raised.value)
        assert str(tmp_path / "x.safetensors") in message
        assert len(message) < 2000
        return message

    return refuse


def of_code(code):
    shapes = hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4)
    if code == "bfloat16":
        return hnp.arrays(np.uint16, shapes).map(lambda bits: bits.view(ml_dtypes.bfloat16))
    return hnp.arrays(np.dtype(code), shapes)


tensors_of_any_kind = st.dictionaries(
    st.text(st.characters(exclude_categories=["Cs"]), max_size=6).filter(
        lambda name: name != "__metadata__"
    ),
    st.sampled_from(CODES).flatmap(of_code),
    max_size=4,
)

# Version 0.8.0 of the library writes invalid JSON for no tensors and an empty map of metadata.
METADATA = st.none() | st.dictionaries(st.text("abc"), st.text("xyz"), min_size=1)


def same(found, expected):
    assert found.keys() == expected.keys()
    for name, array in found.items():
        assert array.dtype == expected[name].dtype
        assert array.shape == expected[name].shape
        assert array.tobytes() == expected[name].tobytes()


class TestWhatTheLibraryWrites:
    @settings(max_examples=150, deadline=None, derandomize=True, database=None)
    @given(tensors_of_any_kind, METADATA)
    def test_is_read_back_to_the_last_bit(self, tmp_path_factory, tensors, metadata):
        path = tmp_path_factory.mktemp("st", numbered=True) / "x.safetensors"
        path.write_bytes(safetensors.numpy.save(tensors, metadata))
        loaded = read_safetensors(path)
        same(loaded, tensors)
        for name, array in loaded.items():
            assert not array.flags.writeable
            assert array.flags.aligned
            assert read_safetensors(path, name).tobytes() == array.tobytes()

    def test_is_mapped_and_not_copied(self, tmp_path):
        path = tmp_path / "x.safetensors"
        path.write_bytes(safetensors.numpy.save({"w": np.zeros(4, "f4")}))
        loaded = read_safetensors(path, "w")
        with open(path, "r+b") as file:
            file.seek(-4, 2)
            file.write(np.float32(7).tobytes())
        assert loaded[3] == 7

    def test_at_an_odd_offset_is_aligned_all_the_same(self, load):
        header = {"a": entry("U8", [1], [0, 1]), "b": entry("F64", [1], [1, 9])}
        loaded = load(packed(header, b"\x05" + struct.pack("<d", 2.5)))
        assert loaded["b"].flags.aligned
        assert loaded["b"].tolist() == [2.5]

    def test_lists_near_names_when_one_is_missing(self, refusal):
        content = safetensors.numpy.save({name: np.zeros(1) for name in ("layer1", "layer2", "z")})
        assert "no tensor 'layer_1'; near: 'layer1', 'layer2'" in refusal(content, "layer_1")
        assert "it has 'layer1', 'layer2', 'z'" in refusal(content, "qqq")

    def test_needs_ml_dtypes_for_bfloat16_alone(self, load, refusal, monkeypatch):
        content = safetensors.numpy.save(
            {"a": np.ones(2, "f4"), "b": np.ones(2, ml_dtypes.bfloat16)}
        )
        monkeypatch.setitem(sys.modules, "ml_dtypes", None)
        assert load(content, "a").tolist() == [1, 1]
        assert "pip install rlx[bf16]" in refusal(content, "b")


class TestOffsetsThatLie:
    def test_are_told_what_the_shape_needs(self, refusal):
        content = packed({"w": entry(shape=[1000, 1000])}, bytes(4))
        assert "needs 4000000 bytes, has 4" in refusal(content)

    @pytest.mark.parametrize(
        "offsets",
        [[4, 0], [0, 8], [0, 2, 4], [0], [], [0.0, 4.0], [0, 4.0], [-4, 0], [False, 4], [0, True],
         None, "04", {"0": 4}, [0, 2**64], [0, [4]]],
    )  # fmt: skip
    def test_are_refused(self, refusal, offsets):
        message = refusal(packed({"w": entry(data_offsets=offsets)}, bytes(4)))
        assert "data_offsets" in message or "nests" in message

    def test_of_minus_zero_are_refused(self, load, refusal):
        text = json.dumps({"w": entry(data_offsets=[0, 4])})
        assert load(packed(text, bytes(4)), "w").tolist() == [0]
        assert "data_offsets" in refusal(packed(text.replace("[0, 4]", "[-0, 4]"), bytes(4)))

    def test_counter_the_right_ones_are_read(self, load):
        loaded = load(packed({"w": entry()}, struct.pack("<f", 3.5)), "w")
        assert loaded.tolist() == [3.5]

    @pytest.mark.parametrize("shape", [[-1], [True], [1.0], 1, "1", None, [2], [[1]], [1, 2**64]])
    def test_and_a_shape_that_lies_are_refused(self, refusal, shape):
        refusal(packed({"w": entry(shape=shape)}, bytes(4)))

    def test_may_not_wrap_in_64_bits(self, refusal):
        header = {"w": entry(shape=[2**32, 2**32], data_offsets=[0, 0])}
        assert f"needs {2**66} bytes, has 0" in refusal(packed(header))

    def test_of_an_empty_tensor_may_not_hide_huge_dimensions(self, refusal):
        header = {"w": entry(shape=[0, 2**62, 2**62], data_offsets=[0, 0])}
        assert "too large" in refusal(packed(header))

    @pytest.mark.parametrize(
        ("first", "second", "size", "reason"),
        [
            ([0, 4], [4, 8], 8, None),
            ([4, 8], [0, 4], 8, None),
            ([0, 4], [0, 4], 4, "overlaps"),
            ([0, 4], [2, 6], 6, "overlaps"),
            ([0, 4], [5, 9], 9, "gap"),
            ([1, 5], [5, 9], 9, "gap"),
            ([0, 4], [4, 8], 9, "1 bytes at its end"),
        ],
    )
    def test_must_tile_the_content(self, load, refusal, first, second, size, reason):
        header = {"a": entry(data_offsets=first), "b": entry(data_offsets=second)}
        content = packed(header, bytes(size))
        if reason is None:
            assert set(load(content)) == {"a", "b"}
        else:
            assert reason in refusal(content)

    def test_are_checked_for_tensors_that_nobody_asked_for(self, refusal):
        header = {"a": entry(), "b": entry(data_offsets=[4, 999])}
        assert "'b'" in refusal(packed(header, bytes(4)), "a")


class TestAHeaderThatLies:
    def test_with_a_duplicate_key_names_it(self, refusal):
        one, two = json.dumps(entry()), json.dumps(entry(data_offsets=[4, 8]))
        message = refusal(packed(f'{{"w": {one}, "w": {two}}}', bytes(8)))
        assert "duplicate key 'w'" in message

    def test_with_a_duplicate_field_names_it(self, refusal):
        text = '{"w": {"dtype": "F32", "dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}'
        assert "duplicate key 'dtype'" in refusal(packed(text, bytes(4)))

    @pytest.mark.parametrize(
        "field", [{"shape": None}, {"extra": 1}], ids=["one missing", "one too many"]
    )
    def test_about_its_fields_is_refused(self, refusal, field):
        fields = {key: value for key, value in (entry() | field).items() if value is not None}
        assert "expected dtype, shape and data_offsets" in refusal(packed({"w": fields}, bytes(4)))

    @pytest.mark.parametrize("tag", ["F8_E4M3", "U16", "f32", "", None, 5])
    def test_about_its_dtype_is_refused(self, refusal, tag):
        assert "supported: F16, BF16" in refusal(packed({"w": entry(tag)}, bytes(4)))

    @pytest.mark.parametrize("metadata", [{"a": 1}, {"a": None}, "text", None, ["a"], {"a": ["b"]}])
    def test_with_metadata_other_than_text_is_refused(self, refusal, metadata):
        assert refusal(packed({"__metadata__": metadata}))

    def test_counter_metadata_of_text_is_no_tensor(self, load):
        header = {"__metadata__": {"a": "b{[[[[", 'quote"': "\\"}, "w": entry()}
        assert list(load(packed(header, bytes(4)))) == ["w"]

    @pytest.mark.parametrize(
        "text",
        [b"", b" {}", b"[]", b"{", b"{}x", b"{} {}", b"\xff\xfe{}", b'{"\xff": 1}', b'{"w": NaN}',
         b"\xef\xbb\xbf{}", b'{"\\ud800": {}}', b"{'w': 1}", b'{"w": 1,}', b'{"a": "',
         b'{"w": ' + b"9" * 5000 + b"}", b"{]", b'{"w\n": 1}'],
    )  # fmt: skip
    def test_that_is_no_json_object_is_refused(self, refusal, text):
        refusal(packed(text))

    @pytest.mark.parametrize("size", range(8))
    def test_in_a_file_too_short_for_its_length_is_refused(self, refusal, size):
        assert "at least 8 bytes" in refusal(bytes(size))

    @pytest.mark.parametrize(
        "bomb", ["[" * 100_000, '{"a":' * 100_000, '{"a":[' * 50_000, '{"a":{"b":[' + "[" * 99_999]
    )
    def test_that_nests_without_end_is_refused(self, refusal, bomb):
        # Even where the interpreter has been told that recursion is fine.
        limit = sys.getrecursionlimit()
        sys.setrecursionlimit(10**6)
        try:
            refusal(packed(bomb))
            refusal(packed('{"w": ' + bomb))
        finally:
            sys.setrecursionlimit(limit)

    @pytest.mark.parametrize("pattern", [b'\\"', b'"', b"\\", b'"a":{},', b"{}", b'"[', b"[]"])
    def test_of_a_megabyte_is_judged_in_a_moment(self, refusal, pattern):
        start = time.perf_counter()
        refusal(packed(b'{"' + pattern * (1_000_000 // len(pattern))))
        refusal(packed(b"{" + pattern * (1_000_000 // len(pattern))))
        assert time.perf_counter() - start < 5

    def test_with_endless_names_gets_a_short_message(self, refusal):
        names = {"x" * 100_000 + str(number): entry() for number in range(3)}
        refusal(packed(names, bytes(4)))
        refusal(packed({"w" * 100_000: 5}))
        refusal(packed({"w": entry("D" * 100_000)}, bytes(4)))

    def test_of_a_bool_with_bytes_other_than_0_and_1_is_refused(self, load, refusal):
        header = {"b": entry("BOOL", [2], [0, 2])}
        assert load(packed(header, b"\x00\x01"), "b").tolist() == [False, True]
        assert "0 or 1" in refusal(packed(header, b"\x00\x02"))


@settings(max_examples=400, deadline=None, derandomize=True, database=None)
@given(data=st.data())
def test_a_damaged_file_is_refused_or_read_as_the_library_reads_it(tmp_path_factory, data):
    content = bytearray(safetensors.numpy.save(data.draw(tensors_of_any_kind)))
    for _ in range(data.draw(st.integers(1, 3))):
        position = data.draw(st.integers(0, len(content) - 1))
        change = data.draw(st.sampled_from(["set", "insert", "remove", "cut"]))
        if change == "set":
            content[position] = data.draw(st.integers(0, 255) | st.sampled_from(b'FIU0123[],"{} '))
        elif change == "insert":
            content.insert(position, data.draw(st.sampled_from(b'0123456789[],"{} \\-.e')))
            content[0] = (content[0] + 1) % 256  # so that the header is whole where it can be
        elif change == "remove":
            del content[position]
        elif data.draw(st.booleans()):
            del content[position:]
        if not content:
            break
    path = tmp_path_factory.mktemp("st", numbered=True) / "x.safetensors"
    path.write_bytes(content)
    try:
        loaded = read_safetensors(path)
    except DataError:
        return
    expected = dict(safetensors.deserialize(bytes(content)))
    assert loaded.keys() == expected.keys()
    for name, array in loaded.items():
        assert TAGS[array.dtype.name] == expected[name]["dtype"]
        assert list(array.shape) == expected[name]["shape"]
        assert array.tobytes() == bytes(expected[name]["data"])


PEAK = """
import sys, time
from rlx.dist.files import read_safetensors
from rlx.errors import DataError

def peak_kib():
    # Of this program alone; ru_maxrss also counts the process that started it.
    text = open("/proc/self/status").read()
    return int(text.split("VmHWM:")[1].split()[0])

before, start = peak_kib(), time.perf_counter()
for path in sys.argv[1:]:
    try:
        read_safetensors(path)
    except DataError:
        print("refused")
print("growth", peak_kib() - before)
print("seconds", time.perf_counter() - start)
block = b"x" * (100 << 20)
print("counter", peak_kib() - before)
"""


def test_a_header_length_alone_sizes_no_allocation(tmp_path):
    size = 100 * 1000 * 1000
    hostile = {
        "all ones": b"\xff" * 8,
        "2 to the 40": struct.pack("<Q", 2**40) + bytes(12),
        "spaces": packed(b"{" + b" " * size),
    }
    paths = [tmp_path / name for name in hostile]
    for path in paths:
        path.write_bytes(hostile[path.name])
    sparse = tmp_path / "sparse"
    sparse.write_bytes(struct.pack("<Q", 2**40))
    sparse.open("r+b").truncate(2**40 + 8)  # here the length is even true
    command = [sys.executable, "-c", PEAK, *map(str, [*paths, sparse])]
    output = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    *refused, growth, seconds, counter = output.splitlines()
    paths[-1].unlink()
    assert refused == ["refused"] * 4
    assert int(growth.split()[1]) < 50 * 1024
    assert float(seconds.split()[1]) < 1
    assert int(counter.split()[1]) > 90 * 1024
