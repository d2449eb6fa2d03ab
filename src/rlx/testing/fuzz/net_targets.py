"""Targets of the fuzzer in `net`: handshakes, frames, control messages, the store, MPI headers."""

from __future__ import annotations

import hmac
import random
import socket
import zlib

from rlx.errors import AuthenticationError, ConnectError, DeadlineExceeded, WireError
from rlx.net import mpi_wire
from rlx.net.addresses import resolve
from rlx.net.auth import HELLO_BYTES, VERDICT_BYTES, Accepting, Channel, Facts, Proving, Status
from rlx.net.control import Messages, pack
from rlx.net.deadline import Deadline
from rlx.net.frames import GOODBYE, HEADER, Limits, pack_goodbye, pack_message_header, unpack_header
from rlx.net.links import Link
from rlx.net.mailbox import Operation, Room, Slot
from rlx.net.notices import Notice
from rlx.net.rendezvous import read_table
from rlx.net.store import ANSWER, GET, HERE, PEEK, REQUEST, SET
from rlx.net.store_client import Answers
from rlx.net.store_server import Requests, Table
from rlx.net.transport import Incoming, Outgoing
from rlx.testing.fuzz.target import Target, hold

_KEY = b"the token of the fuzzer"
_OWN = Facts(0, 4, "fuzz")
_PEER = Facts(2, 4, "fuzz", 0, Channel.DATA)
_ROOM_BYTES = 1 << 15
_FRAME_BYTES = 1 << 20
_SLOT_BYTES = 24
_TAG = 1024
_STAMP = b"fuzz"
_GUARD = b"\xa5" * 64


def _pieces(data: bytes) -> list[bytes]:
    """`data` in pieces of sizes that depend on it alone."""
    generator = random.Random(zlib.crc32(data))
    pieces, at = [], 0
    while at < len(data):
        size = generator.choice((1, 3, 16, 64, 1024, 1 << 16))
        pieces.append(data[at : at + size])
        at += size
    return pieces


def _masked(right: bytes, mask: bytes) -> bytes:
    """The right proof where the mask is zeros or nothing; so mutations get behind the proof."""
    return bytes(a ^ b for a, b in zip(right, mask.ljust(len(right), b"\0"), strict=False))


# The handshake: a hello, or a challenge and a status, then a mask over the right proof.


def _run_acceptor(data: bytes) -> str:
    talk = Accepting(_OWN, _KEY, lambda peer: Status.WELCOME if peer.rank else Status.TAKEN)
    hello, mask = data[:HELLO_BYTES], data[HELLO_BYTES : HELLO_BYTES + 32]
    challenge = b"".join(talk.feed(piece) for piece in _pieces(hello) if talk.needed)
    if talk.status is not None or not challenge:
        return "unfinished" if talk.status is None else "refused"
    proof = hmac.digest(_KEY, b"rlx connector\0" + hello + challenge, "sha256")
    verdict = b"".join(talk.feed(piece) for piece in _pieces(_masked(proof, mask)))
    hold(len(verdict) == VERDICT_BYTES and talk.needed == 0, "a proof has a verdict")
    welcome = talk.status is Status.WELCOME
    hold(not welcome or not any(mask), "only the right proof is welcome")
    return "accepted" if welcome else "refused"


def _run_connector(data: bytes) -> str:
    talk = Proving(_PEER, _KEY, "the fuzzer")
    challenge, status, mask = data[:HELLO_BYTES], data[HELLO_BYTES : HELLO_BYTES + 1], data[-32:]
    mask = mask if len(data) >= HELLO_BYTES + 33 else b""
    proof = b"".join(talk.feed(piece) for piece in _pieces(challenge))
    if not proof or not status:
        return "unfinished"
    label = b"rlx acceptor" + status + b"\0"
    right = hmac.digest(_KEY, label + talk.hello + challenge, "sha256")
    for piece in _pieces(status + bytes(3) + _masked(right, mask)):
        talk.feed(piece)
    hold(talk.needed == 0 and not any(mask), "only the right proof is believed")
    return "accepted"


def _hellos() -> list[bytes]:
    nonce = bytes(range(32))
    facts = [_PEER, Facts(1, 4, "fuzz", 0, Channel.CONTROL), Facts(3, 4, "fuzz"), Facts(1, 5, "x")]
    return [one.pack(nonce) + bytes(32) for one in facts]


def _challenges() -> list[bytes]:
    nonce = bytes(range(32))
    facts = [_OWN, Facts(0, 9, "fuzz"), Facts(0, 4, "other"), Facts(0, 4, "fuzz", version=2)]
    return [one.pack(nonce) + bytes((status,)) + bytes(32) for one in facts for status in Status]


# Frames, alone and in a stream that a link reads


def _run_header(data: bytes) -> str:
    if len(data) < HEADER.size:
        return "unfinished"
    kind, tag, stamp_bytes, size = unpack_header(data, 0, peer=1, limit_bytes=_FRAME_BYTES)
    again = pack_goodbye() if kind == GOODBYE else pack_message_header(tag, stamp_bytes, size)
    hold(again == data[: HEADER.size], "a header means what it says")
    return "accepted"


def _run_link(data: bytes) -> str:
    """A link with two slots reads the stream; what it fills is in the stream, and nothing else."""
    reading, writing = socket.socketpair()
    room = Room(_ROOM_BYTES)
    whole = bytearray(_GUARD + bytes(2 * _SLOT_BYTES) + _GUARD)
    slots = memoryview(whole)[len(_GUARD) : -len(_GUARD)]
    operation = Operation(2)
    with reading, writing:
        reading.setblocking(False)
        call_bytes = 700 if zlib.crc32(data) & 1 else 1 << 30
        link = Link(1, reading, room, Limits(_FRAME_BYTES, _ROOM_BYTES, call_bytes))
        posted = [
            Slot(operation, Incoming(1, _TAG, _STAMP, slots[at : at + _SLOT_BYTES]))
            for at in (0, _SLOT_BYTES)
        ]
        try:
            link.post(posted[0])
            for piece in _pieces(data):
                writing.sendall(piece)
                link.read()
                hold(room.used_bytes <= _ROOM_BYTES, "the inbox has a limit")
            link.post(posted[1])
            link.read()
            writing.shutdown(socket.SHUT_WR)
            link.read()
        finally:
            hold(whole.startswith(_GUARD) and whole.endswith(_GUARD), "no byte beside a slot")
        filled = 2 - operation.pending - len(operation.mismatches)
        for at in range(0, filled * _SLOT_BYTES, _SLOT_BYTES):
            if not operation.mismatches:
                hold(bytes(slots[at : at + _SLOT_BYTES]) in data, "a slot holds what was sent")
    if operation.pending:
        return "left" if link.left else "unfinished"
    return "mismatch" if operation.mismatches else "accepted"


def _message(tag: int, stamp: bytes, content: bytes) -> bytes:
    return pack_message_header(tag, len(stamp), len(content)) + stamp + content


def _streams() -> list[bytes]:
    first = _message(_TAG, _STAMP, bytes(range(_SLOT_BYTES)))
    second = _message(_TAG, _STAMP, bytes(range(100, 100 + _SLOT_BYTES)))
    other = _message(7, b"call 1.1: barrier()", b"")
    long = _message(_TAG + 1, b"s" * 1024, bytes(20_000))
    return [
        first + second + pack_goodbye(),
        other + first + long + other + second,
        second + _message(_TAG, b"other", b"12345") + first,
        pack_goodbye(),
        long + first + pack_message_header(9, 0, _FRAME_BYTES),
    ]


# Control messages and notices


def _run_control(data: bytes) -> str:
    messages = Messages(1, 4)
    count = 0
    for piece in _pieces(data):
        messages.feed(piece)
        while messages.take() is not None:
            count += 1
    return "accepted" if count else "unfinished"


def _run_notice(data: bytes) -> str:
    notice = Notice.decode(data, 4)
    hold(notice.blamed < 4, "a notice blames a rank")
    notice.to_error()
    return "accepted"


def _notices() -> list[bytes]:
    return [
        Notice(1, True, "PeerLost", "rank 1 died").encode(),
        Notice(3, False, "ValueError", "bad lr: \u00e9", "Traceback\n  line 1\n" * 20).encode(),
        Notice(0, False, "", "").encode(),
    ]


def _control_streams() -> list[bytes]:
    heartbeat, goodbye = pack(1), pack(3)
    return [heartbeat * 3 + pack(2, one) + goodbye for one in _notices()] + [goodbye]


# The store's requests and answers, and what ranks read in it


def _run_requests(data: bytes) -> str:
    requests, table = Requests(), Table()
    count = 0
    for piece in _pieces(data):
        requests.feed(piece)
        while (request := requests.take()) is not None:
            what, _, key, value = request
            if what == SET:
                table.set(key, value)
            table.get(key)
            count += 1
    return "accepted" if count else "unfinished"


def _run_answers(data: bytes) -> str:
    answers = Answers("the fuzzer")
    count = 0
    for piece in _pieces(data):
        answers.feed(piece)
        while answers.take() is not None:
            count += 1
    return "accepted" if count else "unfinished"


def _run_table(data: bytes) -> str:
    for address in read_table(1, 3, data, "127.0.0.1", Deadline(1)):
        resolve(address)
    return "accepted"


def _requests() -> list[bytes]:
    one = REQUEST.pack(SET, 9, 11, 1) + b"address/1127.0.0.1 5"
    two = REQUEST.pack(GET, 9, 0, 2) + b"addresses"
    return [one + two + REQUEST.pack(PEEK, 1, 0, 3) + b"k", two * 5, one + one]


def _answers() -> list[bytes]:
    return [ANSWER.pack(HERE, 5, 1) + b"value" + ANSWER.pack(1, 0, 2), ANSWER.pack(HERE, 0, 3)]


def _tables() -> list[bytes]:
    found = b"addresses of all ranks\n"
    return [
        found + b" 5\n127.0.0.2 6\n::1 70",
        found + b"0.0.0.0 65535\nfe80::1%lo 1\n10.0.0.1 2",
        b"ranks that never came\n1\n2",
    ]


# MPI headers, each with its table of pieces behind it: the input begins with the header's length


def _run_mpi(data: bytes) -> str:
    end = 2 + int.from_bytes(data[:2], "little")
    header, table = mpi_wire.decode(data[2:end]), data[end:]
    hold(header.pieces or len(header.payload) == header.payload_bytes, "it is all there")
    if mpi_wire.table_bytes(header) != len(table):
        return "unfinished"
    if table:
        hold(sum(mpi_wire.decode_table(header, table)) == header.payload_bytes, "pieces add up")
    return "accepted"


def _mpi_headers() -> list[bytes]:
    small = [mpi_wire.encode_small(Outgoing(1, 1, b"call 1", [bytes(size)])) for size in (0, 5, 99)]
    parcels = [
        mpi_wire.encode_large(Outgoing(1, 1, b"call 1", [bytes(size)]), 1024)
        for size in (5, 3000, 200_000)
    ]
    made = [[one or b""] for one in small] + [parcel.copies for parcel in parcels]
    return [len(one[0]).to_bytes(2, "little") + b"".join(one) for one in made]


NET_TARGETS = (
    Target("hello", _run_acceptor, _hellos, ()),
    Target("challenge", _run_connector, _challenges, (AuthenticationError, ConnectError)),
    Target("header", _run_header, lambda: [one[: HEADER.size] for one in _streams()]),
    Target("link", _run_link, _streams),
    Target("control", _run_control, _control_streams),
    Target("notice", _run_notice, _notices),
    Target("requests", _run_requests, _requests),
    Target("answers", _run_answers, _answers),
    Target("table", _run_table, _tables, (WireError, DeadlineExceeded, ConnectError)),
    Target("mpi-header", _run_mpi, _mpi_headers),
)
