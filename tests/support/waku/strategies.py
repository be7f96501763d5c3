"""What hypothesis draws: envelopes, their fields, RLP items."""

from __future__ import annotations

from hypothesis import strategies as st

from restante.waku.envelope.envelope import make

U32, U64 = 0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF

times = st.integers(0, U32) | st.sampled_from((0, 1, 0x7F, 0x80, 0xFF, 0x100, 0xFFFF, 0x10000, 0xFFFFFF, U32))
nonces = st.integers(0, U64) | st.sampled_from((0, 1, 0x7F, 0x80, 0xFF, 0x100, U32, U32 + 1, U64))
topics = st.binary(min_size=4, max_size=4)
payloads = (
    st.binary(max_size=300)
    | st.integers(0, 255).map(lambda byte: bytes((byte,)))
    | st.sampled_from((55, 56, 255, 256, 284, 65535, 65536)).map(bytes)
)
envelopes = st.builds(make, times, times, topics, payloads, nonces)

ITEMS = (
    *(b"\x80", b"\x01", b"\x7f", b"\x81\x80", b"\x82\x01\x00", b"\x84\x5f\x5e\x10\x32", b"\x88" + b"\xff" * 8),
    *(b"\x00", b"\x81\x05", b"\x81\x00", b"\x82\x00\x80", b"\x84\x00\xff\xff\xff", b"\x85\x01" + bytes(4)),
    *(b"\x89\x01" + bytes(8), b"\xb8\x04\x01\x02\x03\x04", b"\xb8\x38" + bytes(56), b"\xb9\x00\x38" + bytes(56)),
    *(b"\xc0", b"\xc4\x01\x02\x03\x04", b"\x83abc", b"\x84abcd", b"\x85abcde", b"\xb7" + bytes(55), b"\x84ab"),
)
