"""Settings for all tests: no time limits inside hypothesis (numba compiles on first use), a fresh logger each."""

import logging

import pytest
from hypothesis import settings

settings.register_profile("grash", deadline=None)
settings.load_profile("grash")


@pytest.fixture(autouse=True)
def fresh_logger():
    """The command line listens to the `grash` logger; nothing of that reaches the next test."""
    logger = logging.getLogger("grash")
    handlers, level, propagate = list(logger.handlers), logger.level, logger.propagate
    yield
    logger.handlers[:], logger.propagate = handlers, propagate
    logger.setLevel(level)
