"""The page of `grash serve` in a real browser, with a real server: ask, reasons, map, links, dark mode, 390 px."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from browsers import AXE, CHROMIUM
from grash.serve.service import Service
from serve.browser import Page, browser
from serve.conftest import HOSTILE, Client, places, serving

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed (apt-get install chromium)"),
]


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with browser(tmp_path_factory.mktemp("browser") / "profile") as opened:
        yield opened


@pytest.fixture
def page(tab: Page, client: Client) -> Iterator[Page]:
    """The page, which must leave no message on the console and nothing wider than the window."""
    tab.errors.clear()
    tab.size(1280, 1000)
    tab.prefer("light")
    tab.open(f"http://127.0.0.1:{client.port}/")
    yield tab
    assert tab.errors == []
    assert tab.run("document.documentElement.scrollWidth - innerWidth") <= 0
    assert tab.run("document.documentElement.dataset.hacked") is None


ANSWERS = (
    "[...document.querySelectorAll('#answers .answer')].map(e => e.querySelector('.link, span:not(.rank)').textContent)"
)


def ask(page: Page, head: str, relation: str) -> None:
    page.click("document.getElementById('head')")
    page.type(head)
    page.press("Escape")
    page.click("document.getElementById('relation')")
    page.type(relation)
    page.press("Enter")
    page.wait("document.querySelectorAll('#answers > li').length > 0")


def test_names_are_found_as_you_type_and_chosen_with_keys(page: Page) -> None:
    page.press("/")
    page.type("untied")
    page.wait("!document.getElementById('head-list').hidden")
    assert page.run("document.querySelector('#head-list li').textContent") == "United Kingdom"
    page.press("ArrowDown")
    assert page.run("document.getElementById('head').getAttribute('aria-activedescendant')") == "head-option-0"
    page.press("Enter")
    assert page.run("document.getElementById('head').value") == "United Kingdom"
    assert page.run("document.getElementById('head-list').hidden")


def test_a_question_is_answered_with_known_facts_marked_and_a_link_that_shows_the_same(page: Page) -> None:
    page.wait(
        r"/ [\d,]+ facts of train and [\d,]+ of valid and test$/.test(document.getElementById('about').textContent)"
    )
    ask(page, "Oslo", "located_in")
    answers = page.run(ANSWERS)
    assert set(answers) == {"Peru", "Italy", "United Kingdom", "Norway", HOSTILE}  # like known by default
    assert page.run("document.querySelectorAll('#answers .badge').length") >= 1
    page.click("document.getElementById('everything')")
    page.wait("document.querySelectorAll('#answers > li').length === 10")
    everything = page.run(ANSWERS)
    address = page.run("location.href")
    assert "like_known=false" in address and "head=Oslo" in address
    page.open(address)
    page.wait("document.querySelectorAll('#answers > li').length === 10")
    assert page.run(ANSWERS) == everything
    page.click("document.getElementById('like-known')")
    page.wait("document.querySelectorAll('#answers > li').length === 5")
    page.run("history.back()")
    page.wait("document.querySelectorAll('#answers > li').length === 10")


def test_reasons_open_on_a_click_and_lead_to_entities(page: Page) -> None:
    ask(page, "Oslo", "located_in")
    page.click("document.querySelector('.why')")
    page.wait("document.querySelectorAll('.reasons ol li').length >= 3")
    assert "support" in page.run("document.querySelector('.reasons li').textContent")
    page.click("document.querySelector('.reasons li .link')")
    page.wait("!document.getElementById('entity').hidden && document.querySelectorAll('#facts li').length > 0")
    page.wait("location.search.includes('entity=')")
    page.click("document.querySelector('.why')")
    page.wait("document.querySelectorAll('.reasons').length === 0")


def test_the_map_shows_the_surroundings_and_leads_on(page: Page) -> None:
    ask(page, "Lima", "near")
    page.wait("document.querySelectorAll('#map circle').length > 3")
    assert page.run("document.querySelector('#entity-title').textContent") == "Lima"
    assert page.run("document.querySelectorAll('#map line').length") > 3
    page.click("[...document.querySelectorAll('#map a')].find(a => a.getAttribute('aria-label') === 'Peru').firstChild")
    page.wait("document.querySelector('#entity-title').textContent === 'Peru'")
    assert page.run("document.querySelectorAll('#near li').length") == 8


def test_the_map_of_all_entities_opens_in_place_of_the_answers(page: Page) -> None:
    ask(page, "Lima", "near")
    page.click("document.getElementById('atlas-open')")
    page.wait("document.getElementById('atlas-map').dataset.visible === '15'")
    assert page.run("document.getElementById('answers-card').hidden") and "view=map" in page.run("location.href")
    assert page.run("[...document.getElementById('atlas-color').options].map(o => o.text)") == ["type", "relation"]
    legend = page.run("[...document.querySelectorAll('#atlas-legend button')].map(b => b.textContent)")
    assert legend == ["City", "Country", "other"]
    page.click("document.querySelector('#atlas-legend button')")
    page.wait("document.getElementById('atlas-map').dataset.visible === '8'")  # the cities
    page.click("document.getElementById('atlas-reset')")
    page.wait("document.getElementById('atlas-map').dataset.visible === '15'")
    page.click("document.getElementById('atlas-search')")
    page.type("norw")
    page.wait("document.querySelectorAll('#atlas-found button').length === 1")
    page.click("document.querySelector('#atlas-found button')")
    page.wait("document.getElementById('entity-title').textContent === 'Norway'")
    middle = page.run("(b => [b.x + b.width / 2, b.y + b.height / 2])"
                      "(document.getElementById('atlas-map').getBoundingClientRect())")  # fmt: skip
    page.call("Input.dispatchMouseEvent", type="mouseMoved", x=middle[0], y=middle[1])
    page.wait("document.getElementById('atlas-name').textContent === 'Norway (Country)'")
    address = page.run("location.href")
    page.open(address)
    page.wait("document.getElementById('atlas-map').dataset.visible === '15'")
    page.click("document.getElementById('atlas-in')")
    page.wait("document.getElementById('atlas-map').dataset.visible !== '15'")
    page.click("document.getElementById('atlas-open')")
    page.wait("!document.getElementById('answers-card').hidden && document.getElementById('atlas').hidden")


@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_map_of_all_entities_fits(page: Page, client: Client, width: int, scheme: str) -> None:
    page.run("localStorage.removeItem('grash-theme')")
    page.size(width, 900)
    page.prefer(scheme)
    page.open(f"http://127.0.0.1:{client.port}/?view=map&entity=Lima")
    page.wait("document.getElementById('atlas-map').dataset.visible === '15'")
    marks = page.run("(c => new Uint32Array(c.getContext('2d').getImageData(0, 0, c.width, c.height).data.buffer)"
                     ".reduce((sum, p) => sum + (p ? 1 : 0), 0))(document.getElementById('atlas-map'))")  # fmt: skip
    assert marks >= 15 * 9
    assert page.run("document.documentElement.scrollWidth - innerWidth") <= 0
    if pictures := os.environ.get("GRASH_PICTURES"):
        page.run("scrollTo(0, 0)")
        page.picture(Path(pictures) / f"serve-map-{scheme}-{width}.png")


def test_html_in_names_is_inert(page: Page) -> None:
    page.open(
        page.run("location.origin") + "/?relation=located_in&tail=" + HOSTILE.replace("=", "%3D").replace(" ", "%20")
    )
    page.wait("document.querySelectorAll('#answers > li').length > 0")
    page.wait("!document.getElementById('entity').hidden")
    assert HOSTILE in page.run("document.getElementById('answers-title').textContent")
    assert page.run("document.querySelectorAll('main img').length") == 0
    page.click("document.getElementById('atlas-open')")
    page.wait("!document.getElementById('atlas-view').hidden")
    page.click("document.getElementById('atlas-search')")
    page.type("onerror")
    page.wait("document.querySelector('#atlas-found button')?.textContent.includes('<img')")
    assert page.run("document.querySelectorAll('main img').length") == 0


def test_a_mistake_is_shown_with_names_to_choose(page: Page) -> None:
    page.open(page.run("location.origin") + "/?head=Limma&relation=near")
    page.wait("!document.getElementById('notice').hidden")
    assert "Did you mean 'Lima'?" in page.run("document.getElementById('notice').textContent")
    page.click("document.querySelector('#notice button')")
    page.wait("document.querySelectorAll('#answers > li').length > 0")
    page.errors[:] = [e for e in page.errors if "404" not in e]  # the browser notes every refused request


@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_small_windows_and_dark_rooms(page: Page, client: Client, width: int, scheme: str) -> None:
    page.run("localStorage.removeItem('grash-theme')")
    page.size(width, 900)
    page.prefer(scheme)
    page.open(f"http://127.0.0.1:{client.port}/?head=Lima&relation=near")
    page.wait("document.querySelectorAll('#answers > li').length > 0 && !document.getElementById('entity').hidden")
    page.click("document.querySelector('.why')")
    page.wait("document.querySelectorAll('.reasons ol li').length > 0")
    assert page.run("document.documentElement.dataset.theme") == scheme
    dark = page.run("getComputedStyle(document.body).backgroundColor") == "rgb(20, 23, 26)"
    assert dark == (scheme == "dark")
    assert page.run("document.documentElement.scrollWidth - innerWidth") <= 0
    if pictures := os.environ.get("GRASH_PICTURES"):
        page.run("scrollTo(0, 0)")
        page.picture(Path(pictures) / f"serve-{scheme}-{width}.png")
    page.click("document.getElementById('theme')")
    assert page.run("document.documentElement.dataset.theme") != scheme
    page.run("localStorage.removeItem('grash-theme')")


@pytest.mark.skipif(AXE is None, reason="axe-core is not installed (make browser installs it where npm is)")
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("view", ["", "map"])
def test_axe_finds_nothing_serious(page: Page, client: Client, scheme: str, view: str) -> None:
    page.prefer(scheme)
    page.open(f"http://127.0.0.1:{client.port}/?head=Lima&relation=near&view={view}")
    page.wait("document.querySelectorAll('#answers > li').length > 0 && !document.getElementById('entity').hidden")
    if view:
        page.wait("document.getElementById('atlas-map').dataset.visible === '15'")
        page.run("document.getElementById('atlas-search').value = 'l'")
        page.run("document.getElementById('atlas-search').dispatchEvent(new Event('input'))")
    else:
        page.click("document.querySelector('.why')")
        page.wait("document.querySelectorAll('.reasons ol li').length > 0")
    assert AXE is not None
    page.run(AXE.read_text(encoding="utf-8"))
    found = page.run("axe.run().then(r => r.violations.filter(v => ['serious', 'critical'].includes(v.impact))"
                     ".map(v => v.id + ': ' + v.nodes.slice(0, 3).map(n => n.html).join(' | ')))")  # fmt: skip
    assert found == []


def test_a_token_is_asked_for_and_kept_out_of_the_address(tab: Page) -> None:
    with serving(Service(places()), token="s3 cret") as secret:
        tab.call("Page.navigate", url=f"http://127.0.0.1:{secret.port}/")
        tab.wait("document.querySelector('#notice input[type=password]') !== null")
        tab.open(f"http://127.0.0.1:{secret.port}/?head=Lima&relation=near#token=s3%20cret")
        tab.wait("document.querySelectorAll('#answers > li').length > 0")
        assert "cret" not in tab.run("location.href")
        tab.run("sessionStorage.clear()")


def test_a_token_with_a_percent_sign_is_taken_as_it_is(tab: Page) -> None:
    with serving(Service(places()), token="s3%cret") as secret:
        tab.open(f"http://127.0.0.1:{secret.port}/?head=Lima&relation=near#token=s3%cret")
        tab.wait("document.querySelectorAll('#answers > li').length > 0")
        tab.run("sessionStorage.clear()")


def test_a_damaged_model_is_reported_beside_the_answers_of_a_link(tab: Page) -> None:
    service = Service(places())
    service.verified, service.damage = False, "The model is damaged."
    with serving(service) as damaged:
        tab.open(f"http://127.0.0.1:{damaged.port}/?head=Lima&relation=near")
        tab.wait("document.querySelectorAll('#answers > li').length > 0 && document.documentElement.dataset.ready")
        assert tab.run("document.getElementById('notice').textContent").startswith("The model is damaged.")
    tab.errors.clear()  # the browser itself reports the status 503 of /health


def test_the_entity_that_was_chosen_last_is_shown_though_the_one_before_takes_longer(page: Page) -> None:
    page.run("""(() => {
        const fetched = fetch;
        window.fetch = async (address, ...rest) => {
          const reply = await fetched(address, ...rest);
          if (address.includes("entity=Rome")) await new Promise((done) => setTimeout(done, 300));
          return reply;
        };
        window.settled = Promise.all([openEntity("Rome"), openEntity("Oslo")]);
    })()""")
    page.run("window.settled.then(() => 1)")
    assert page.run("document.getElementById('entity-title').textContent") == "Oslo"
