"""Structured logging for the webhook process: one JSON object per line on standard error, gunicorn's own included."""

import logging
import sys
from typing import Any, Final

import structlog

LEVELS: Final = ("debug", "info", "warning", "error")

_SHARED: Final[tuple[structlog.typing.Processor, ...]] = (
    structlog.processors.add_log_level,
    structlog.processors.TimeStamper(fmt="iso", utc=True),
    structlog.processors.format_exc_info,
)


def configure(level: str) -> None:
    """Send every line of this process, ours and the standard library's, to standard error as JSON."""
    number = logging.getLevelNamesMapping()[level.upper()]
    structlog.configure(
        processors=[*_SHARED, structlog.processors.JSONRenderer()],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        # One system call a line: `print` would make two.
        logger_factory=structlog.WriteLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )


def standard_library(level: str) -> dict[str, Any]:
    """A ``logging.config`` dictionary that formats records like ours; gunicorn takes it as ``logconfig_dict``."""
    formatter = {
        "()": structlog.stdlib.ProcessorFormatter,
        "processors": [
            structlog.stdlib.ProcessorFormatter.remove_processors_meta,
            structlog.processors.JSONRenderer(),
        ],
        "foreign_pre_chain": [*_SHARED, structlog.stdlib.add_logger_name],
    }
    handler = {"class": "logging.StreamHandler", "stream": "ext://sys.stderr", "formatter": "json"}
    gunicorn = {"level": level.upper(), "handlers": ["stderr"], "propagate": False}
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {"json": formatter},
        "handlers": {"stderr": handler},
        "root": {"level": "WARNING", "handlers": ["stderr"]},
        "loggers": {"gunicorn.error": gunicorn},
    }
