"""Numbers and names as people read them, in terminals, logs and the report.

Values are rounded before a unit is chosen, so 59.9 minutes print as "1 h 00 min" and never as "60 min" of an hour.
"""

from __future__ import annotations

import html
import math
import re
from collections.abc import Iterable, Sequence

from grash.errors import ConfigError

_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}
# control characters, which act on a terminal; marks that change the direction of text; halves of surrogate pairs
HIDDEN = re.compile("[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\u200e\u200f\ufeff\ud800-\udfff]")


def format_duration(seconds: float) -> str:
    """Return a duration in the largest useful unit: "40 ms", "4.2 s", "90 s", "45 min", "3 h 05 min"."""
    if 0.0005 <= seconds < 0.0995:
        return f"{1000 * seconds:.0f} ms"
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    if seconds < 119.5:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 120:
        return f"{minutes} min"
    return f"{minutes // 60} h {minutes % 60:02} min"


def parse_duration(given: str | float, name: str = "time") -> float:
    """Return the seconds of a duration: a number, or a number with s, m or h ("90s", "10m", "2h")."""
    seconds = math.nan
    if isinstance(given, str):
        match = re.fullmatch(r"\s*(\d+\.?\d*|\.\d+)\s*([a-z]*)\s*", given[:40].lower())
        if match and match[2] in _UNITS:
            seconds = float(match[1]) * _UNITS[match[2]]
    elif isinstance(given, int | float) and not isinstance(given, bool):
        seconds = float(given)
    if not (math.isfinite(seconds) and seconds > 0):
        text = printable(str(given)[:40])
        raise ConfigError(
            f"{name}={text} is not a duration: give seconds, or a number with a unit, e.g. 90s, 10m or 2h."
        )
    return seconds


def format_bytes(n: float) -> str:
    """Return a number of bytes with a binary unit: "512 B", "1.5 GiB"."""
    if n < 1023.5:
        return f"{n:.0f} B"
    for unit in ("KiB", "MiB", "GiB"):
        n /= 1024
        if n < 1023.95:
            return f"{n:.1f} {unit}"
    return f"{n / 1024:.1f} TiB"


def parse_size(given: str | float, name: str) -> float:
    """Return the bytes of a size: a number, or a number with K, M, G or T, powers of 1,024 ("200M")."""
    match = re.fullmatch(r"\s*(\d+\.?\d*|\.\d+)\s*([kmgt]?)(i?b)?\s*", str(given)[:40].lower())
    n_bytes = float(match[1]) * 1024.0 ** " kmgt".index(match[2] or " ") if match else 0.0
    if not (math.isfinite(n_bytes) and n_bytes > 0) or isinstance(given, bool):
        raise ConfigError(f"{name}={printable(str(given)[:40])} is not a size: give bytes, or e.g. 500M or 8G.")
    return n_bytes


def format_number(value: float) -> str:
    """Return a number with three digits and a unit: "0.25", "5e-4", "1,234", "12.3 k", "1.5 M", "2 G"."""
    size = abs(value)
    if size < 0.0009995:
        return f"{value:.0e}".replace("e-0", "e-") if value else "0"
    if size < 999.5:
        return f"{value:.3g}"
    if size < 9999.5:
        return f"{value:,.0f}"
    for unit in ("k", "M"):
        value /= 1000
        if abs(value) < 999.5:
            return f"{value:.3g} {unit}"
    return f"{value / 1000:.3g} G"


def counted(n: int, one: str, many: str = "") -> str:
    """Return a number with its noun, e.g. "1 entity" or "1,200 entities"; many: the plural (default: with an s)."""
    return f"{n:,} {one if n == 1 else many or one + 's'}"


def printable(text: str, *, keep: str = "") -> str:
    """Return the text with characters that act on a terminal written as escapes, e.g. \\x1b; `keep` are left as is."""
    return HIDDEN.sub(lambda m: m[0] if m[0] in keep else m[0].encode("unicode_escape").decode(), text)


def html_table(caption: str, columns: Sequence[str], rows: Iterable[Sequence[object]], *, below: str = "") -> str:
    """Return a table for notebooks, with every text escaped. Numbers are on the right; `below` may have lines."""

    def cell(value: object) -> str:
        if isinstance(value, bool) or not isinstance(value, int | float):
            return f'<td style="text-align:left">{_html_text("" if value in (None, False) else value)}</td>'
        number = f"{value:,}" if isinstance(value, int) else f"{value:.4f}"
        return f'<td style="text-align:right">{number}</td>'

    head = "".join(f'<th style="text-align:left">{_html_text(column)}</th>' for column in columns)
    body = "".join(f"<tr>{''.join(map(cell, row))}</tr>" for row in rows)
    note = f"<p>{'<br>'.join(map(_html_text, below.splitlines()))}</p>" if below else ""
    title = f'<caption style="text-align:left;white-space:nowrap"><b>{_html_text(caption)}</b></caption>'
    return f"<table>{title}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{note}"


def _html_text(value: object) -> str:
    return html.escape(printable("yes" if value is True else str(value)))
