"""Settings for all tests: hypothesis without time limits (numba compiles on first use) and with the same examples in
every run (set HYPOTHESIS_PROFILE=search for new ones), no waiting for the disk, a fresh logger each."""

import logging
import os
import signal
from unittest import mock

import pytest
import torch
from hypothesis import settings

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as a shell leaves it to what runs in the background
    signal.signal(signal.SIGINT, signal.default_int_handler)


settings.register_profile("same", deadline=None, derandomize=True, max_examples=50)  # the same in every run
settings.register_profile("search", deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))


@pytest.fixture(scope="session", autouse=True)
def no_wait_for_the_disk():
    """Tests lose no power, and waiting for the disk takes as long as computing a small search. Programs that a test
    starts do wait."""
    with mock.patch("os.fsync", os.fstat):  # also fails for a file that is not open
        yield


@pytest.fixture(autouse=True)
def fresh_logger():
    """Undo what the command line did to the `grash` logger in another test or in a fixture of the session."""
    logger = logging.getLogger("grash")
    logger.handlers.clear()
    logger.setLevel(logging.NOTSET)
    logger.propagate = True


@pytest.fixture
def one_thread():
    """Tiny steps on two threads wait for each other, above all where other processes want the cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
