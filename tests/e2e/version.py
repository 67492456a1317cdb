"""Names of the images under test."""

from importlib.metadata import version
from typing import Final

IMAGE: Final = f"gpu-share:{version('gpu-share')}"
SIMULATOR_IMAGE: Final = f"gpu-share-simulator:{version('gpu-share')}"
