"""The records of a zip file (APPNOTE.TXT 6.3.10, sections 4.3 and 4.4)."""

from __future__ import annotations

from struct import Struct
from typing import Final

LOCAL: Final = Struct("<4s5H3I2H")
"""4.3.7: signature, version, flags, method, time, date, CRC, stored size, size, length of the name, of the extras."""

CENTRAL: Final = Struct("<4s6H3I5H2I")
"""4.3.12: the same with two versions; then length of the comment, disk, two kinds of attributes, offset."""

END: Final = Struct("<4s4H2IH")
"""4.3.16: signature, two disks, two counts, size and offset of the central directory, length of the comment."""

END_64: Final = Struct("<4sQ2H2I4Q")
"""4.3.14: signature, bytes that follow, two versions, two disks, two counts, size and offset."""

LOCATOR: Final = Struct("<4sIQI")
"""4.3.15: signature, disk, offset of END_64, number of disks."""

LOCAL_MARK: Final = b"PK\3\4"
CENTRAL_MARK: Final = b"PK\1\2"
END_MARK: Final = b"PK\5\6"
END_64_MARK: Final = b"PK\6\6"
LOCATOR_MARK: Final = b"PK\6\7"
DESCRIPTOR_MARK: Final = b"PK\7\x08"

ENCRYPTED: Final = 1 << 0 | 1 << 5 | 1 << 6 | 1 << 13
"""Flags of a member that is encrypted, a patch, or hides its name (4.4.4)."""

SIZES_BEHIND: Final = 1 << 3
"""Flag: CRC and sizes are behind the contents."""

UTF_8: Final = 1 << 11
"""Flag: the name is UTF-8. Without it the name is in code page 437 (appendix D)."""

STORED: Final = 0
DEFLATED: Final = 8

ZIP64_EXTRA: Final = 1
"""4.5.3: the extra field of sizes and offsets that do not fit into 32 bits."""

PARENTS_EXTRA: Final = 0x6552
"""An extra field of our own in the central directory, which other programs skip: the modes of the directories above
a member, 16 bits each, from the one that is sent on. 0 means that its mode is not known. As members of their own,
directories with files would make Go's client fail, which opens every member as a file (cmd/recv.go of 1.0.8), and no
client could store the mode of the directory that is sent."""

MODE_MASK: Final = 0o170777
"""What is sent of a mode: the kind and the permissions, without set-user-ID, set-group-ID and the sticky bit."""

FULL_16: Final = 0xFFFF
FULL_32: Final = 0xFFFFFFFF
"""A field with this value is in ZIP64_EXTRA or END_64."""
