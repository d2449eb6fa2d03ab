"""Reading data files that a URI points to: raw bytes, .npy and .safetensors.

Everything here treats a file as hostile: no length is believed before it is checked against the
file, no code in a file is ever run, and whatever is wrong is a `DataError` that names the file.
It knows no graph, no spec and no rank: a reader gives what the file says, and its caller compares
that with what it needs.
"""

from rlx.dist.files.npy import read_npy
from rlx.dist.files.raw import read_raw
from rlx.dist.files.resolver import file_resolver, uri_resolver
from rlx.dist.files.safetensors_file import read_safetensors

__all__ = ["file_resolver", "read_npy", "read_raw", "read_safetensors", "uri_resolver"]
