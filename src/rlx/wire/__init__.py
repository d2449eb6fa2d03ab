"""Values to canonical bytes and back: versioned, bounded before anything is allocated, never
pickle.

This room alone uses msgspec. It knows graphs and records; it knows no sockets, no arrays and no
training. Whatever it decodes is checked as strictly as if it had been built by hand.
"""

from rlx.wire.envelope import WireKind
from rlx.wire.graphs import DTYPE_CODES, OP_CODES, decode_graph, encode_graph
from rlx.wire.records import (
    Record,
    decode_record,
    encode_record,
    encode_value,
    field_names,
    replaced,
)

__all__ = [
    "DTYPE_CODES",
    "OP_CODES",
    "Record",
    "WireKind",
    "decode_graph",
    "decode_record",
    "encode_graph",
    "encode_record",
    "encode_value",
    "field_names",
    "replaced",
]
