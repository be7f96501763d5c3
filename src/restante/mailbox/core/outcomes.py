"""How commands end."""

from __future__ import annotations

from typing import Final

OK: Final = "ok"
"""It was carried out."""

ERROR: Final = "error"
"""It was malformed, or not allowed at this time."""

REFUSED: Final = "refused"
"""It was refused for lack of permission or room."""

FAILED: Final = "failed"
"""An error of ours stopped it."""

UNDONE: Final = "not_stored"
"""It was undone, because the disk did not take its batch."""

OUTCOMES: Final = (OK, ERROR, REFUSED, FAILED, UNDONE)
