"""Exit codes of ``gpu-share``. Pure."""

from typing import Final

FINE: Final = 0
NOT_FINE: Final = 1
WRONG_USE: Final = 2
INTERRUPTED: Final = 130
