"""Durations, bytes and numbers are rounded before their unit is chosen."""

import pytest

from grash.formatting import format_bytes, format_duration, format_number


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0.0 s"),
        (0.0004, "0.0 s"),
        (0.0123, "12 ms"),
        (0.0994, "99 ms"),
        (0.0996, "0.1 s"),
        (9.94, "9.9 s"),
        (9.97, "10 s"),
        (119.4, "119 s"),
        (119.6, "2 min"),
        (7169, "119 min"),
        (7199, "2 h 00 min"),
        (7260, "2 h 01 min"),
        (10799, "3 h 00 min"),
        (360000, "100 h 00 min"),
    ],
)
def test_durations_never_show_sixty_minutes(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (0.00005, "5e-5"),
        (0.0009996, "0.001"),
        (0.25, "0.25"),
        (-12.34, "-12.3"),
        (999.4, "999"),
        (999.6, "1,000"),
        (1234.4, "1,234"),
        (9999.6, "10 k"),
        (12345, "12.3 k"),
        (999999, "1 M"),
        (1500000, "1.5 M"),
        (-999999, "-1 M"),
        (2_000_000_000, "2 G"),
    ],
)
def test_numbers_move_to_the_next_unit_instead_of_an_exponent(value: float, text: str) -> None:
    assert format_number(value) == text


def test_bytes_are_readable() -> None:
    sizes = (0, 1023, 1024, (1 << 20) - 1, 5 << 20, 3 << 30, 1 << 41)
    assert [format_bytes(n) for n in sizes] == [
        "0 B",
        "1023 B",
        "1.0 KiB",
        "1.0 MiB",
        "5.0 MiB",
        "3.0 GiB",
        "2.0 TiB",
    ]
