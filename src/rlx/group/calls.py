"""Call stamps: what a rank says it is calling, and the error when ranks say different things."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from rlx.errors import DisagreementError, UsageError
from rlx.group.arrays import name_of
from rlx.net import Deadline, Mismatch

MAX_NAME_CHARACTERS = 64


class Call:
    """One collective call as this rank made it."""

    __slots__ = ("_encoded", "deadline", "number", "text")

    def __init__(self, number: int, text: str, deadline: Deadline) -> None:
        self.number = number
        self.text = text
        self.deadline = deadline
        self._encoded = text.encode()

    def stamp(self, round_number: int = 1) -> bytes:
        """What every message of the call carries; rounds of one call differ by their number."""
        return b"call %d.%d: %b" % (self.number, round_number, self._encoded)


def described(name: str, details: Sequence[str], caller_name: str | None) -> str:
    """A call as text, such as `all_reduce(sum, float32[1024], name='gradients')`."""
    if caller_name is not None:
        usable = isinstance(caller_name, str) and caller_name.isprintable()
        if not usable or len(caller_name) > MAX_NAME_CHARACTERS:
            raise UsageError(
                f"{name}: a call's name is printable text of at most {MAX_NAME_CHARACTERS} "
                f"characters; got {caller_name!r}"
            )
        details = [*details, f"name={caller_name!r}"]
    return f"{name}({', '.join(details)})"


def shown(array: np.ndarray) -> str:
    """An array's dtype and shape, such as `float32[3, 4]`."""
    return f"{name_of(array.dtype)}{list(array.shape)}"


def disagreement(
    call: Call, rank: int, world_size: int, mismatches: Sequence[Mismatch]
) -> DisagreementError:
    """The error that shows each side's call; every rank builds the same one from what it heard."""
    own = call.stamp().decode()
    said = dict.fromkeys(range(world_size), own)
    for mismatch in mismatches:
        said[mismatch.peer] = _said(mismatch, own)
    lines = [f"  rank {ranks}: {text}" for text, ranks in _by_text(said).items()]
    return DisagreementError(
        "\n".join([f"ranks called different collectives at call {call.number}:", *lines])
        + f"\n(rank {rank} reports; make all ranks call the same collectives in the same order)"
    )


def _said(mismatch: Mismatch, own: str) -> str:
    """What a peer sent, told apart from this rank's own call even where both have one stamp."""
    stamp = mismatch.stamp.decode(errors="replace")
    if mismatch.stamp == mismatch.expected_stamp:
        return f"{stamp} in {mismatch.bytes} bytes, where {mismatch.expected_bytes} were expected"
    if stamp == own:
        expected = mismatch.expected_stamp.decode(errors="replace").partition(": ")[0]
        return f"{stamp} once more, where {expected} was expected"
    return stamp


def _by_text(said: Mapping[int, str]) -> dict[str, str]:
    ranks: dict[str, list[int]] = {}
    for rank, stamp in sorted(said.items()):
        number, _, text = stamp.partition(": ")
        plain = text if len({one.partition(": ")[0] for one in said.values()}) == 1 else stamp
        ranks.setdefault(plain if number else stamp, []).append(rank)
    return {text: ", ".join(str(rank) for rank in group) for text, group in ranks.items()}
