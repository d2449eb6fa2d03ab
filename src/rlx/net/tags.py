"""The tag space of a transport, laid out in one place.

    0            never used: a header of zeros must mean nothing
    1            collectives of a process group
    2            bytes from one rank to one other (`ProcessGroup.send`)
    3 .. 1023    kept for rlx
    1024 .. 32767  free for users of a transport

A group numbers its calls in their stamps, not in their tags, so no count of calls runs out of tags.
"""

COLLECTIVE_TAG = 1
POINT_TO_POINT_TAG = 2
FIRST_USER_TAG = 1024
