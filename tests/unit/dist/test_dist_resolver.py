"""From URIs to content: what is read, what is refused, and that nothing is opened before that."""

from __future__ import annotations

import gc
import os
import socket
import subprocess
import sys
import threading
from urllib.parse import quote

import numpy as np
import pytest
import safetensors.numpy

from rlx.dist.files import file_resolver, read_npy, read_raw, uri_resolver
from rlx.errors import DataError, UsageError

OPENED: list[str] = []
WATCHING = threading.Event()


def record_open(event, arguments):
    if event == "open" and WATCHING.is_set():
        OPENED.append(os.fsdecode(arguments[0]))


sys.addaudithook(record_open)  # a hook cannot be taken away again; it sleeps between tests


@pytest.fixture
def opened():
    """The paths that this process opens during the test."""
    OPENED.clear()
    WATCHING.set()
    yield OPENED
    WATCHING.clear()


@pytest.fixture
def root(tmp_path):
    """A folder with a file of each kind, beside a secret."""
    folder = tmp_path / "root"
    (folder / "sub").mkdir(parents=True)
    (folder / "weights.bin").write_bytes(b"weights")
    np.save(folder / "x.npy", np.arange(3, dtype="f4"))
    tensors = {"w": np.ones(2, "f4"), "b": np.zeros(1, "f8")}
    (folder / "two.safetensors").write_bytes(safetensors.numpy.save(tensors))
    (folder / "one.safetensors").write_bytes(safetensors.numpy.save({"only": np.ones(2, "i4")}))
    (tmp_path / "secret.bin").write_bytes(b"secret")
    return folder


def refused(resolve, uri):
    with pytest.raises(DataError) as raised:
        resolve(uri)
    return str(raised.value)


class TestTheEndingDecides:
    def test_raw_bytes_are_a_read_only_view(self, root):
        content = uri_resolver(f"file://{root}/weights.bin")
        assert isinstance(content, memoryview)
        assert content.readonly
        assert bytes(content) == b"weights"

    def test_an_empty_file_is_no_bytes(self, root):
        (root / "empty.bin").touch()
        assert bytes(uri_resolver(f"file://{root}/empty.bin")) == b""

    @pytest.mark.parametrize("name", ["x.npy", "X.NPY"])
    def test_npy_is_an_array(self, root, name):
        (root / "X.NPY").write_bytes((root / "x.npy").read_bytes())
        content = uri_resolver(f"file://{root}/{name}")
        assert isinstance(content, np.ndarray)
        assert content.tolist() == [0, 1, 2]

    def test_a_fragment_names_a_tensor(self, root):
        assert uri_resolver(f"file://{root}/two.safetensors#w").tolist() == [1, 1]
        assert uri_resolver(f"file://{root}/two.safetensors#%62").dtype == np.float64

    def test_a_tensor_that_is_missing_is_named_with_those_near(self, root):
        message = refused(uri_resolver, f"file://{root}/two.safetensors#ww")
        assert "no tensor 'ww'; near: 'w'" in message

    @pytest.mark.parametrize("fragment", ["", "#"])
    def test_without_a_fragment_a_file_must_have_one_tensor(self, root, fragment):
        one = uri_resolver(f"file://{root}/one.safetensors{fragment}")
        assert one.tolist() == [1, 1]
        message = refused(uri_resolver, f"file://{root}/two.safetensors{fragment}")
        assert "two.safetensors#NAME: 'b', 'w'" in message

    @pytest.mark.parametrize("name", ["x.npy", "weights.bin"])
    def test_other_files_have_no_tensors(self, root, name):
        assert "only a .safetensors file" in refused(uri_resolver, f"file://{root}/{name}#w")

    def test_an_archive_is_refused_unopened(self, root, opened):
        np.savez(root / "x.npz", x=np.array([{}], object))
        OPENED.clear()
        message = refused(uri_resolver, f"file://{root}/x.npz")
        assert "object arrays are not supported" in message
        assert OPENED == []

    def test_an_object_array_is_refused(self, root):
        np.save(root / "weights.npy", np.array([{}], object), allow_pickle=True)
        message = refused(uri_resolver, f"file://{root}/weights.npy")
        assert "object arrays are not supported" in message


class TestAUri:
    @pytest.mark.parametrize(
        "start", ["file://", "FILE://", "file://localhost", "file://LOCALHOST"]
    )
    def test_of_this_host_is_read(self, root, start):
        assert bytes(uri_resolver(f"{start}{root}/weights.bin")) == b"weights"

    @pytest.mark.parametrize(
        "uri",
        ["http://x/w.npy", "https://x/w", "s3://bucket/w", "w.npy", "/tmp/w.npy", "", "file:/tmp/w",
         "file:w", "://", "data:,x", "file//x"],
    )  # fmt: skip
    def test_of_another_scheme_is_told_what_is_supported(self, uri):
        assert "supported: file:///PATH" in refused(uri_resolver, uri)

    @pytest.mark.parametrize("uri", ["file://elsewhere/w", "file://user@localhost/w", "file://w"])
    def test_of_another_host_is_refused(self, uri):
        assert "only this host's files" in refused(uri_resolver, uri)

    @pytest.mark.parametrize("uri", ["file://", "file://localhost", "file:///w?x"])
    def test_without_an_absolute_path_is_refused(self, uri):
        assert uri in refused(uri_resolver, uri)

    @pytest.mark.parametrize("name", ["a b#c?d%e.bin", "größe.bin", "a\nb.bin", b"\xff.bin"])
    def test_is_percent_decoded(self, root, name):
        path = os.path.join(os.fsencode(root), os.fsencode(name))
        with open(path, "wb") as file:
            file.write(b"found")
        assert bytes(uri_resolver(f"file://{quote(path)}")) == b"found"

    @pytest.mark.parametrize(
        "uri",
        ["file:///x%00.npy", "file:///x\0.npy", "file:///\udcff", "file:///x.safetensors#%ff",
         "file:///" + "x" * 5000],
    )  # fmt: skip
    @pytest.mark.parametrize("roots", [None, ["/"]])
    def test_that_names_no_possible_file_is_refused(self, uri, roots):
        refused(file_resolver(roots), uri)


class TestWhatIsNoRegularFile:
    @pytest.fixture(params=["anywhere", "within roots"])
    def resolve(self, request, root):
        return file_resolver(None if request.param == "anywhere" else [root, "/dev"])

    def test_a_pipe_is_refused_at_once_and_not_opened(self, root, resolve, opened):
        os.mkfifo(root / "pipe.npy")
        assert "it is a pipe" in refused(resolve, f"file://{root}/pipe.npy")
        assert "pipe.npy" not in map(os.path.basename, OPENED)

    def test_a_folder_is_refused(self, root, resolve):
        assert "it is a folder" in refused(resolve, f"file://{root}/sub")
        assert "it is a folder" in refused(resolve, f"file://{root}")

    def test_a_device_is_refused_and_not_opened(self, resolve, opened):
        assert "it is a device" in refused(resolve, "file:///dev/zero")
        assert "zero" not in map(os.path.basename, OPENED)

    def test_a_socket_is_refused(self, root, resolve, monkeypatch):
        monkeypatch.chdir(root)  # the name of a socket is short
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind("door.npy")
            assert "it is a socket" in refused(resolve, f"file://{root}/door.npy")

    def test_a_missing_file_is_named(self, root, resolve):
        message = refused(resolve, f"file://{root}/sub/none.npy")
        assert f"{root}/sub/none.npy" in message
        assert "No such file" in message

    def test_a_file_taken_for_a_folder_is_named(self, root, resolve):
        assert "Not a directory" in refused(resolve, f"file://{root}/x.npy/y.npy")

    def test_a_circle_of_links_is_refused(self, root, resolve):
        (root / "circle.npy").symlink_to("circle.npy")
        refused(resolve, f"file://{root}/circle.npy")


UNREADABLE = """
import os, sys
from rlx.dist.files import uri_resolver
from rlx.errors import DataError
if os.geteuid() == 0:  # who may read everything
    os.setresuid(65534, 65534, 65534)
try:
    uri_resolver(sys.argv[1])
except DataError as error:
    print(error)
"""


def test_an_unreadable_file_is_named(root):
    (root / "weights.bin").chmod(0)
    command = [sys.executable, "-c", UNREADABLE, f"file://{root}/weights.bin"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert "Permission denied" in done.stdout
    assert f"{root}/weights.bin" in done.stdout


class TestRoots:
    @pytest.mark.parametrize(
        "name", ["weights.bin", "./weights.bin", "sub/../weights.bin", "sub/%2e%2e/weights.bin",
                 "/weights.bin", "../root/weights.bin"]
    )  # fmt: skip
    def test_hold_what_lies_below_them(self, root, name):
        resolve = file_resolver([root / "sub", str(root)])
        assert bytes(resolve(f"file://{root}/{name}")) == b"weights"

    @pytest.mark.parametrize(
        "path",
        ["{root}/../secret.bin", "{root}/%2e%2e/secret.bin", "{root}/a/../../secret.bin",
         "{root}/sub/../../secret.bin", "/etc/hostname", "//etc/hostname", "{root}-other/x",
         "{root}/link", "{root}/chain", "{root}/out/secret.bin", "{root}/sub/..%2f..%2fsecret.bin",
         "{root}/../missing.bin", "/proc/self/root/etc/hostname"],
    )  # fmt: skip
    def test_are_not_left(self, root, tmp_path, path, opened):
        (root / "link").symlink_to(tmp_path / "secret.bin")
        (root / "chain").symlink_to("link")
        (root / "out").symlink_to(tmp_path)
        (tmp_path / "root-other").mkdir()
        (tmp_path / "root-other" / "x").write_bytes(b"secret")
        OPENED.clear()
        uri = f"file://{path.format(root=root)}"
        message = refused(file_resolver([root]), uri)
        assert uri in message
        assert "outside the allowed folders" in message
        assert repr(str(root)) in message
        assert OPENED == []

    def test_counter_without_them_the_secret_is_read(self, root, tmp_path, opened):
        (root / "link").symlink_to(tmp_path / "secret.bin")
        OPENED.clear()
        assert bytes(uri_resolver(f"file://{root}/../secret.bin")) == b"secret"
        assert bytes(uri_resolver(f"file://{root}/link")) == b"secret"
        assert len(OPENED) == 2

    def test_allow_links_that_stay_within(self, root):
        (root / "sub" / "link").symlink_to("../weights.bin")
        resolve = file_resolver([root])
        assert bytes(resolve(f"file://{root}/sub/link")) == b"weights"

    def test_may_be_links_themselves(self, root, tmp_path):
        (tmp_path / "alias").symlink_to(root)
        resolve = file_resolver([tmp_path / "alias"])
        assert bytes(resolve(f"file://{tmp_path}/alias/weights.bin")) == b"weights"
        assert bytes(resolve(f"file://{root}/weights.bin")) == b"weights"

    def test_may_be_one_file_or_relative_or_everything(self, root, monkeypatch):
        uri = f"file://{root}/weights.bin"
        monkeypatch.chdir(root)
        resolvers = [file_resolver([root / "weights.bin"]), file_resolver(["."]),
                     file_resolver(["/"])]  # fmt: skip
        monkeypatch.chdir("/")
        assert [bytes(resolve(uri)) for resolve in resolvers] == [b"weights"] * 3
        refused(resolvers[0], f"file://{root}/x.npy")

    def test_may_be_none_at_all(self, root):
        assert "folders: none" in refused(file_resolver([]), f"file://{root}/weights.bin")

    def test_are_a_list_and_not_a_string_of_letters(self):
        with pytest.raises(UsageError, match="list of folders"):
            file_resolver("/data")

    @pytest.mark.parametrize("part", ["file", "folder"])
    def test_hold_when_a_link_is_put_there_after_the_check(self, root, tmp_path, monkeypatch, part):
        (root / "sub" / "secret.bin").write_bytes(b"public")
        real_path = os.path.realpath

        def swap_after(path):
            found = real_path(path)
            if part == "file":
                (root / "sub" / "secret.bin").unlink()
                (root / "sub" / "secret.bin").symlink_to(tmp_path / "secret.bin")
            else:
                (root / "sub").rename(root / "old")
                (root / "sub").symlink_to(tmp_path)
            return found

        resolve = file_resolver([root])
        uri = f"file://{root}/sub/secret.bin"
        assert bytes(resolve(uri)) == b"public"
        monkeypatch.setattr(os.path, "realpath", swap_after)
        refused(resolve, uri)
        assert (root / "sub" / "secret.bin").read_bytes() == b"secret"


def descriptors():
    gc.collect()  # the traceback of an error that was caught may hold a file
    return len(os.listdir("/proc/self/fd"))


def test_no_file_stays_open(root):
    (root / "bad.npy").write_bytes(b"bad")
    before = descriptors()
    for resolve in (uri_resolver, file_resolver([root])):
        for name in ("x.npy", "weights.bin", "two.safetensors#w"):
            assert resolve(f"file://{root}/{name}") is not None
        refused(resolve, f"file://{root}/bad.npy")
        refused(resolve, f"file://{root}/sub")
        refused(resolve, f"file://{root}/none")
    assert descriptors() == before
    held = uri_resolver(f"file://{root}/x.npy")
    assert descriptors() == before + 1  # the mapping's, for as long as the array lives
    del held
    assert descriptors() == before


def test_the_bytes_outlive_the_name(root):
    content = uri_resolver(f"file://{root}/x.npy")
    raw = read_raw(root / "weights.bin")
    (root / "x.npy").unlink()
    (root / "weights.bin").unlink()
    assert content.tolist() == [0, 1, 2]
    assert bytes(raw) == b"weights"


@pytest.mark.parametrize("read", [read_raw, read_npy])
def test_a_path_with_a_nul_byte_is_refused(read):
    with pytest.raises(DataError, match="NUL"):
        read("/tmp/x\0.npy")
