"""What all ranks of a run must have in common, compared before the first step."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Mapping, Sequence

import rlx
from rlx.backends import fingerprint
from rlx.dist.spec import SPEC_VERSION, TrainSpec
from rlx.errors import DisagreementError, FingerprintWarning
from rlx.group import ProcessGroup
from rlx.wire import Record, WireKind, decode_record, encode_record, encode_value, field_names

_OWN_TO_A_RANK = frozenset({"lanes", "device"})
_FACTS_LIMIT_BYTES = 1 << 16
_MAY_ROUND = "ranks may round differently, so the bits depend on which rank computes which rows:"
_WHAT_IT_MEANS = (
    "All ranks still end with the same parameters; another number of ranks, or these ranks in "
    "another order, may end with others. strict = true in [job] refuses to start."
)


class Facts(Record, frozen=True):
    """What one rank brings: a digest of each fact that must be equal, what it computes with, and
    its number of rows."""

    equal: dict[str, str]
    arithmetic: dict[str, str]
    rows: int


def spec_facts(spec: TrainSpec) -> dict[str, str]:
    """A digest of each field of a spec that all ranks share.

    Not of lanes, which change no bit, not of a rank's device, which the fingerprint tells, and not of where a rank finds its own rows.
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
    own = Facts(dict(equal), {}, rows)
    return [facts.rows for facts in _exchanged(group, own, what)]


def agree_on_spec(group: ProcessGroup, spec: TrainSpec) -> None:
    """Compare specs, which must be equal, and fingerprints, which should be.

    Where ranks compute with different libraries or CPUs, rank 0 gives a `FingerprintWarning` that
    shows both sides. Where the spec is strict that is a `DisagreementError` on every rank, as a
    difference of specs always is.
    """
    own = Facts(spec_facts(spec), fingerprint(spec.backend, spec.device), 0)
    everyone = _exchanged(group, own, "the spec")
    different = _differences([facts.arithmetic for facts in everyone])
    if different and spec.strict:
        raise DisagreementError(
            "\n".join(["ranks may round differently, and the job is strict:", *different])
        )
    if different and group.rank == 0:
        warnings.warn("\n".join([_MAY_ROUND, *different, _WHAT_IT_MEANS]), FingerprintWarning, 2)


def _exchanged(group: ProcessGroup, own: Facts, what: str) -> list[Facts]:
    encoded = encode_record(own, WireKind.FACTS, SPEC_VERSION)
    everyone = [
        decode_record(data, Facts, WireKind.FACTS, SPEC_VERSION, limit_bytes=_FACTS_LIMIT_BYTES)
        for data in group.all_gather_bytes(encoded, name=what)
    ]
    different = _differences([facts.equal for facts in everyone])
    if different:
        raise DisagreementError(
            "\n".join([f"ranks bring different facts to {what} (digests shown):", *different])
        )
    return everyone


def _differences(everyone: Sequence[Mapping[str, str]]) -> list[str]:
    """A line for each fact that is not the same everywhere: which ranks hold what."""
    lines = []
    for fact in sorted({key for facts in everyone for key in facts}):
        held: dict[str, list[int]] = {}
        for rank, facts in enumerate(everyone):
            held.setdefault(facts.get(fact, "nothing"), []).append(rank)
        if len(held) > 1:
            sides = (f"rank {_listed(ranks)}: {value}" for value, ranks in held.items())
            lines.append(f"  {fact}: {'; '.join(sides)}")
    return lines


def _listed(ranks: list[int]) -> str:
    return ", ".join(str(rank) for rank in ranks)
