"""Names of the images under test."""

from typing import Final

from importlib.metadata import version

IMAGE: Final = f"gpu-share:{version('gpu-share')}"
SIMULATOR_IMAGE: Final = f"gpu-share-simulator:{version('gpu-share')}"
