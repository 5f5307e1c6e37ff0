"""The report in a real browser: no error on the console, every chart has marks, nothing overflows."""

from __future__ import annotations

import re
import subprocess
import threading
import warnings
from pathlib import Path

import pytest

from browsers import AXE, CHROMIUM
from grash.report.optuna import dashboard_server
from grash.report.page import write_comparison, write_report
from report.runs import MISHAPS, write_run

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed (apt-get install chromium)"),
]


# HTML that would leave a mark on the document; without a slash, so that a folder can have this name
HOSTILE = "<img src=x onerror=document.documentElement.dataset.hacked=1>"


def opened(page: Path | str, place: Path, *options: str) -> tuple[str, list[str]]:
    """Return the document once its script has run, and the messages on the console."""
    assert CHROMIUM is not None
    words = [
        CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
        "--window-size=1280,2000", "--virtual-time-budget=4000", "--enable-logging=stderr",
        f"--user-data-dir={place}", *options, "--dump-dom", page if isinstance(page, str) else page.as_uri(),
    ]  # fmt: skip
    ran = subprocess.run(words, capture_output=True, text=True, timeout=120, check=True)
    return ran.stdout, [line for line in ran.stderr.splitlines() if "CONSOLE" in line]


@pytest.mark.parametrize("which", ["finished", "running", "failed"])
def test_the_report_opens_without_errors(which: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    path = write_report(request.getfixturevalue(which))
    probed = tmp_path / "report.html"
    probed.write_text(path.read_text(encoding="utf-8").replace("</body>", f"{PROBE}</body>"), encoding="utf-8")
    document, console = opened(probed, tmp_path / "profile")
    assert console == []
    assert 'data-ready="yes"' in document
    marks = dict(re.findall(r"chart-(\w+)=(\d+)", document))
    assert all(int(count) > 0 for count in marks.values())
    assert len(marks) == {"failed": 2, "running": 10, "finished": 11}[which]
    assert "sorted=yes" in document and "wider=0" in document


def test_the_comparison_opens_without_errors(finished: Path, running: Path, tmp_path: Path) -> None:
    path = write_comparison([finished, running], tmp_path / "comparison.html")
    probed = tmp_path / "probed.html"
    page = path.read_text(encoding="utf-8")
    probed.write_text(page.replace("</body>", f"{PROBE}</body>"), encoding="utf-8")
    document, console = opened(probed, tmp_path / "profile")
    assert console == [] and "chart-tests-1=1" in document and "wider=0" in document


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("which", ["report", "comparison"])
def test_axe_finds_nothing_serious(which: str, scheme: str, finished: Path, running: Path, tmp_path: Path) -> None:
    if AXE is None:
        pytest.skip("axe-core is not installed (make browser installs it where npm is)")
    path = write_report(finished) if which == "report" else write_comparison([finished, running], tmp_path / "c.html")
    probed = tmp_path / "probed.html"
    script = f"<script>{AXE.read_text(encoding='utf-8')}</script>{RUN_AXE}"
    probed.write_text(path.read_text(encoding="utf-8").replace("</body>", f"{script}</body>"), encoding="utf-8")
    document, _ = opened(
        probed, tmp_path / "profile", f"--blink-settings=preferredColorScheme={int(scheme == 'light')}"
    )
    assert f"scheme={scheme}" in document
    assert re.search(r"axe-done=\d+ (.*)", document)[1].startswith("findings: none"), document[-3000:]  # type: ignore[index]


def test_everything_that_scrolls_or_sorts_can_be_focused_and_shows_it(finished: Path, tmp_path: Path) -> None:
    probed = tmp_path / "report.html"
    page = write_report(finished).read_text(encoding="utf-8")
    probed.write_text(page.replace("</body>", f"{FOCUS}</body>"), encoding="utf-8")
    document, console = opened(probed, tmp_path / "profile")
    assert console == [] and re.search(r"focused=([1-9]\d+) unreachable=0 invisible=0", document)


def test_an_error_on_the_console_would_be_seen(tmp_path: Path) -> None:
    page = tmp_path / "bad.html"
    page.write_text("<!doctype html><script>undefinedFunction()</script>")
    _, console = opened(page, tmp_path / "profile")
    assert any("undefinedFunction" in line for line in console)


def is_hacked(document: str) -> bool:
    return re.search(r"<html[^>]*data-hacked", document) is not None


def test_names_in_the_report_stay_text(tmp_path: Path) -> None:
    control = tmp_path / "control.html"
    control.write_text(f"<!doctype html><body>{HOSTILE}</body>")
    assert is_hacked(opened(control, tmp_path / "profile")[0])
    folder = tmp_path / HOSTILE
    write_run(folder, n_trials=16, name=HOSTILE, faults=MISHAPS)
    probed = tmp_path / "report.html"
    page = write_report(folder).read_text(encoding="utf-8")
    probed.write_text(page.replace("</body>", f"{TIPS}</body>"), encoding="utf-8")
    document, console = opened(probed, tmp_path / "profile")
    assert console == [] and not is_hacked(document) and "<img" not in document
    assert document.count("&lt;img src=x") > 4  # title, heading, commands, dataset
    assert re.search(r'id="tip"[^>]*>configuration', document)


def test_names_in_the_dashboard_stay_text(tmp_path: Path) -> None:
    pytest.importorskip("optuna_dashboard", reason="optuna-dashboard is an extra")
    folder = tmp_path / HOSTILE
    write_run(folder, n_trials=4, name=HOSTILE)
    with warnings.catch_warnings(), dashboard_server(folder, 0) as server:
        warnings.simplefilter("ignore")
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            for path in ("dashboard", "dashboard/studies/0", "dashboard/studies/0/trials"):
                document, _ = opened(f"http://127.0.0.1:{server.server_port}/{path}", tmp_path / "profile")
                assert "&lt;img src=x" in document and not is_hacked(document), path
        finally:
            server.shutdown()
            thread.join()


# Runs axe-core over the page; every finding with a serious or critical impact counts.
RUN_AXE = """<script>
const scheme = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
for (const details of document.querySelectorAll("details")) details.open = true;
axe.run(document).then((found) => {
  const bad = found.violations.filter((v) => ["serious", "critical"].includes(v.impact));
  const text = bad.map((v) => `${v.id} ${v.nodes.slice(0, 3).map((n) => n.html).join(" | ")}`).join("; ") || "none";
  const line = document.createElement("p");
  line.textContent = `scheme=${scheme} axe-done=${found.passes.length} findings: ${text}`;
  document.body.append(line);
});
</script>"""
# Focuses every button, summary and region with a scroll bar, and looks for an outline.
FOCUS = """<script>
for (const details of document.querySelectorAll("details")) details.open = true;
const scrolls = [...document.querySelectorAll("*")].filter((e) => !["HTML", "BODY"].includes(e.tagName)
  && ["auto", "scroll"].includes(getComputedStyle(e).overflowX));
const wanted = [...document.querySelectorAll("button, summary"), ...scrolls];
let focused = 0, unreachable = 0, invisible = 0;
for (const element of wanted) {
  element.focus({focusVisible: true});
  if (document.activeElement !== element) { unreachable += 1; continue; }
  focused += 1;
  if (getComputedStyle(element).outlineStyle === "none") invisible += 1;
}
document.body.append(`focused=${focused} unreachable=${unreachable} invisible=${invisible}`);
</script>"""
# Shows the tooltip of every mark.
TIPS = """<script>
const moved = () => new PointerEvent("pointermove", {bubbles: true});
for (const mark of document.querySelectorAll(".mark")) mark.dispatchEvent(moved());
</script>"""
# Counts what is really drawn (marks with a size), sorts the table by a click, looks for sideways scrolling.
PROBE = """<script>
const said = [];
for (const figure of document.querySelectorAll("figure.chart")) {
  const marks = [...figure.querySelectorAll(".mark")].filter((m) => m.getBoundingClientRect().width > 0);
  said.push(`${figure.id}=${marks.length}`);
}
const head = [...document.querySelectorAll(".sortable th")].find((th) => th.textContent === "time");
head.querySelector("button").click();
const column = head.cellIndex;
const rows = [...head.closest("table").querySelectorAll("tbody tr")];
const times = rows.map((tr) => tr.cells[column].dataset.v).filter((v) => v);
const sorted = times.every((v, i) => i === 0 || Number(times[i - 1]) <= Number(v));
said.push(`sorted=${sorted ? "yes" : "no"}`);
said.push(`wider=${Math.max(0, document.documentElement.scrollWidth - innerWidth)}`);
document.body.append(said.join(" "));
</script>"""
