"""What all ranks of a run must have in common, compared before the first step."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import rlx
from rlx.dist.spec import SPEC_VERSION, TrainSpec
from rlx.errors import DisagreementError
from rlx.group import ProcessGroup
from rlx.wire import Record, WireKind, decode_record, encode_record, encode_value, field_names

_OWN_TO_A_RANK = frozenset({"lanes", "device"})
_FACTS_LIMIT_BYTES = 1 << 16


class Facts(Record, frozen=True):
    """What one rank brings: a digest of each fact that must be equal, and its number of rows."""

    equal: dict[str, str]
    rows: int


def spec_facts(spec: TrainSpec) -> dict[str, str]:
    """A digest of each field of a spec that all ranks share.

    Not of lanes and device, which change no bit, and not of where a rank finds its own rows.
    """
    facts = {"rlx version": rlx.__version__}
    for name in field_names(spec):
        if name in _OWN_TO_A_RANK:
            continue
        value = getattr(spec, name)
        if name == "data":
            value = [(ref.input, ref.elem, ref.has_shard) for ref in value]
        if name == "params":
            value = [ref.name for ref in value]
        facts[name] = hashlib.sha256(encode_value(value)).hexdigest()[:16]
    return facts


def agree(group: ProcessGroup, equal: Mapping[str, str], rows: int, what: str) -> list[int]:
    """Compare facts; return every rank's number of rows.

    Ranks that differ all raise `DisagreementError`, which names each fact and who holds what.
    """
    own = Facts(dict(equal), rows)
    encoded = encode_record(own, WireKind.FACTS, SPEC_VERSION)
    everyone = [
        decode_record(data, Facts, WireKind.FACTS, SPEC_VERSION, limit_bytes=_FACTS_LIMIT_BYTES)
        for data in group.all_gather_bytes(encoded, name=what)
    ]
    lines = []
    for fact in sorted({key for facts in everyone for key in facts.equal}):
        held: dict[str, list[int]] = {}
        for rank, facts in enumerate(everyone):
            held.setdefault(facts.equal.get(fact, "nothing"), []).append(rank)
        if len(held) > 1:
            sides = (f"rank {_listed(ranks)}: {value}" for value, ranks in held.items())
            lines.append(f"  {fact}: {'; '.join(sides)}")
    if lines:
        raise DisagreementError(
            "\n".join([f"ranks bring different facts to {what} (digests shown):", *lines])
        )
    return [facts.rows for facts in everyone]


def _listed(ranks: list[int]) -> str:
    return ", ".join(str(rank) for rank in ranks)
