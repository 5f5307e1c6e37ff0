"""The public datasets that grash knows by name: where they are, how large, under which licence, by whom.

`grash datasets` lists them, download.py fetches them. A figure or checksum that was not verified is None.
Counts are of the published files, before anything is dropped; docs/reference/datasets.md shows the table.
"""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches
from typing import Literal

from grash.errors import UnknownName

ROTATE = "https://raw.githubusercontent.com/DeepGraphLearning/KnowledgeGraphEmbedding/master/data"
LIBKGE = "https://web.informatik.uni-mannheim.de/pi1/kge-datasets"
PYKEEN = "https://raw.githubusercontent.com/pykeen/pykeen/v1.11.1/src/pykeen/datasets"
ZENODO = "https://zenodo.org/record"


@dataclass(frozen=True)
class RemoteFile:
    """A file to fetch: `name` is what it is called in the download folder."""

    url: str
    name: str
    size: int | None = None
    sha256: str | None = None
    md5: str | None = None


@dataclass(frozen=True)
class CatalogEntry:
    """A dataset. `files` are unpacked (archive) or taken as they are (files).

    `keep`: (path inside, new name) of what is wanted; empty: all of it, less a lone top folder.
    `columns`: their order in the files, or their names where the files have a header.
    `instead`: what to do where grash cannot fetch it.
    """

    name: str
    title: str
    entities: int | None
    relations: int | None
    train: int | None
    valid: int | None
    test: int | None
    files: tuple[RemoteFile, ...]
    form: Literal["archive", "files"]
    citation: str
    keep: tuple[tuple[str, str], ...] = ()
    columns: str = "head,relation,tail"
    licence: str | None = None
    notes: str = ""
    triples: int | None = None
    instead: str | None = None

    @property
    def n_triples(self) -> int | None:
        """All triples, of the splits together or of the one file that has none."""
        if self.train is None or self.valid is None or self.test is None:
            return self.triples
        return self.train + self.valid + self.test

    @property
    def size(self) -> int | None:
        """Bytes to download, where known of every file."""
        sizes = [file.size for file in self.files]
        return None if not sizes or None in sizes else sum(size or 0 for size in sizes)


def find_entry(name: str) -> CatalogEntry:
    """The entry of that name, whatever its case; UnknownName with suggestions if there is none."""
    wanted = name.strip().lower().replace("_", "-")
    if wanted not in CATALOG:
        close = get_close_matches(wanted, CATALOG, n=3, cutoff=0.5)
        raise UnknownName("public dataset", name, close, hint="`grash datasets` lists them all.")
    return CATALOG[wanted]


def _three(
    base: str, *, md5: tuple[str, ...] = (), size: tuple[int, ...] = (), sha256: tuple[str, ...] = ()
) -> tuple[RemoteFile, ...]:
    """train.txt, valid.txt and test.txt below `base`."""
    return tuple(
        RemoteFile(
            f"{base}/{split}.txt",
            f"{split}.txt",
            size=size[i] if size else None,
            sha256=sha256[i] if sha256 else None,
            md5=md5[i] if md5 else None,
        )
        for i, split in enumerate(("train", "valid", "test"))
    )


def _libkge(name: str) -> tuple[RemoteFile, ...]:
    return (RemoteFile(f"{LIBKGE}/{name}.tar.gz", f"{name}.tar.gz"),)


_ENTRIES = (
    CatalogEntry(
        "fb15k-237", "FB15k-237", 14_541, 237, 272_115, 17_535, 20_466,
        _three(
            f"{ROTATE}/FB15k-237",
            md5=(
                "c05b87b9ac00f41901e016a2092d7837",
                "6a94efd530e5f43fcf84f50bc6d37b69",
                "f5bdf63db39f455dec0ed259bb6f8628",
            ),
            size=(21_277_292, 1_303_101, 1_519_499),
            sha256=(
                "6e4c2782169af21e9743f3b1d200886f5d595bf6bc504ec1351720949c5cdfae",
                "cf6309010852f6a8d47a45df830a426415d1ee6f7a3970a8376ff1fb81db4a5c",
                "5711cf41623ceb4eacc50eb6108a3ca6565c7492e3caaf82a3e355cc660d1574",
            ),
        ),
        "files", "Toutanova & Chen 2015",
        licence="Freebase: CC BY",
        notes="FB15k without inverse relations. 36 entities of valid and test are not in train.",
    ),
    CatalogEntry(
        "wn18rr", "WN18RR", 40_943, 11, 86_835, 3_034, 3_134,
        _three(
            f"{ROTATE}/wn18rr",
            md5=(
                "35e81af3ae233327c52a87f23b30ad3c",
                "74a2ee9eca9a8d31f1a7d4d95b5e0887",
                "2b45ba1ba436b9d4ff27f1d3511224c9",
            ),
            size=(3_135_377, 110_415, 113_180),
            sha256=(
                "038612e783c215ee5f3ca9fbfca27b8d0739be1028fe4ee7c174aecf0b83d5df",
                "453ce7202afa58094a04d2b1560ee2b02660f1c260b32ce6651c8ccedd1028ab",
                "0383bceaaa1096cf3c03ec021ed0048068e2355dbfc0239b292cefdac821cec5",
            ),
        ),
        "files", "Dettmers et al. 2018",
        licence="WordNet 3.0 licence",
        notes="WN18 without inverse relations; a third of test still stands in train the other way round, "
        "under symmetric relations. 384 entities of valid and test are not in train.",
    ),
    CatalogEntry(
        "fb15k", "FB15k", 14_951, 1_345, 483_142, 50_000, 59_071,
        _three(
            f"{ROTATE}/FB15k",
            md5=(
                "5a87195e68d7797af00e137a7f6929f2",
                "275835062bb86a86477a3c402d20b814",
                "71098693b0efcfb8ac6cd61cf3a3b505",
            ),
        ),
        "files", "Bordes et al. 2013",
        licence="Freebase: CC BY",
        notes="Leaks: most of test stands in train under an inverse relation. Use fb15k-237 for results.",
    ),
    CatalogEntry(
        "wn18", "WN18", 40_943, 18, 141_442, 5_000, 5_000,
        _three(
            f"{ROTATE}/wn18",
            md5=(
                "7d68324d293837ac165c3441a6c8b0eb",
                "f4f66fec0ca83b5ebe7ad7003404e61d",
                "b035247a8916c7ec3443fa949e1ff02c",
            ),
        ),
        "files", "Bordes et al. 2013",
        licence="WordNet 3.0 licence",
        notes="Leaks: most of test stands in train under an inverse relation. Use wn18rr for results.",
    ),
    CatalogEntry(
        "yago3-10", "YAGO3-10", 123_182, 37, 1_079_040, 5_000, 5_000,
        _three(
            f"{ROTATE}/YAGO3-10",
            md5=(
                "a9da8f583ec3920570eeccf07199229a",
                "2d679a906f2b1ac29d74d5c948c1ad09",
                "14bf97890b2fee774dbce5f326acd189",
            ),
        ),
        "files", "Mahdisoltani et al. 2015; Dettmers et al. 2018",
        notes="Entities of YAGO3 with at least 10 relations.",
    ),
    CatalogEntry(
        "wikidata5m", "Wikidata5M, transductive, current release", 4_594_485, 822, 20_614_279, 5_163, 5_133,
        (
            RemoteFile(
                "https://huggingface.co/datasets/intfloat/wikidata5m/resolve/"
                "6b2b09672129e280c0c9da97ab58154e9d535e6b/wikidata5m_transductive.tar.gz",
                "wikidata5m_transductive.tar.gz",
                size=168_258_214,
                sha256="383160990b41c0905fc03f4a8afbb9b12be1ca3591e026bde6cdc94a59542597",
            ),
        ),
        "archive", "Wang et al. 2021 (KEPLER)",
        keep=(
            ("wikidata5m_transductive_train.txt", "train.txt"),
            ("wikidata5m_transductive_valid.txt", "valid.txt"),
            ("wikidata5m_transductive_test.txt", "test.txt"),
        ),
        licence="Wikidata: CC0",
        notes="Not wikidata5m-v2: results on the two cannot be compared.",
    ),
    CatalogEntry(
        "wikidata5m-v2", "Wikidata5M, older release (LibKGE's copy)",
        4_818_298, 828, 21_343_681, 5_357, 5_321,
        (RemoteFile(f"{LIBKGE}/wikidata5m.tar.gz", "wikidata5m-v2.tar.gz"),),
        "archive", "Wang et al. 2021 (KEPLER)",
        licence="Wikidata: CC0",
        notes="What LibKGE, Dist-KGE and GraSH trained on. Not wikidata5m: results on the two cannot be "
        "compared.",
    ),
    CatalogEntry(
        "freebase86m", "Freebase, 86 million entities (LibKGE's copy)",
        86_054_151, 14_824, 304_727_650, None, None,
        (RemoteFile(f"{LIBKGE}/freebase.tar.gz", "freebase86m.tar.gz"),),
        "archive", "Zheng et al. 2020 (DGL-KE)",
        licence="Freebase: CC BY",
        triples=338_586_276,
        notes="Encoded already, as a LibKGE folder. GraSH validated on 1,000 triples and tested on 10,000.",
    ),
    CatalogEntry(
        "codex-s", "CoDEx-S", 2_034, 42, 32_888, 1_827, 1_828,
        (
            RemoteFile(
                f"{ZENODO}/4281094/files/codex-s.tar.gz", "codex-s.tar.gz",
                md5="63cd8186fc2aeddc154e20cf4a10087e",
            ),
        ),
        "archive", "Safavi & Koutra 2020",
        licence="MIT; Wikidata: CC0",
    ),
    CatalogEntry(
        "codex-m", "CoDEx-M", 17_050, 51, 185_584, 10_310, 10_311,
        (
            RemoteFile(
                f"{ZENODO}/4281094/files/codex-m.tar.gz", "codex-m.tar.gz",
                md5="43e561cfdca1c6ad9cc2f5b1ca4add76",
            ),
        ),
        "archive", "Safavi & Koutra 2020",
        licence="MIT; Wikidata: CC0",
    ),
    CatalogEntry(
        "codex-l", "CoDEx-L", 77_951, 69, 551_193, 30_622, 30_622,
        (
            RemoteFile(
                f"{ZENODO}/4281094/files/codex-l.tar.gz", "codex-l.tar.gz",
                md5="9a10f4458c4bd2b16ef9b92b677e0d71",
            ),
        ),
        "archive", "Safavi & Koutra 2020",
        licence="MIT; Wikidata: CC0",
    ),
    CatalogEntry(
        "dbpedia50", "DBpedia50", 49_900, 654, 32_388, 399, 10_969,
        _libkge("dbpedia50"), "archive", "Shi & Weninger 2018 (ConMask)",
        notes="Made for unseen entities: only 24,624 entities and 351 relations occur in train.",
    ),
    CatalogEntry(
        "dbpedia500", "DBpedia500", 517_475, 654, 3_102_677, 10_000, 1_155_937,
        _libkge("dbpedia500"), "archive", "Shi & Weninger 2018 (ConMask)",
        columns="head,tail,relation",
        notes="Made for unseen entities. Its columns are head, tail, relation.",
    ),
    CatalogEntry(
        "db100k", "DB100K", 99_604, 470, 597_572, 50_000, 50_000,
        tuple(
            RemoteFile(
                "https://raw.githubusercontent.com/iieir-km/ComplEx-NNE_AER/master/datasets/DB100K/"
                f"_{split}.txt",
                f"{split}.txt",
            )
            for split in ("train", "valid", "test")
        ),
        "files", "Ding et al. 2018",
    ),
    CatalogEntry(
        "aristo-v4", "Aristo-v4", 44_950, 1_605, 242_594, 20_000, 20_000,
        (RemoteFile(f"{ZENODO}/5942560/files/aristo-v4.zip", "aristo-v4.zip"),),
        "archive", "Chen et al. 2021",
        keep=(("train", "train.txt"), ("valid", "valid.txt"), ("test", "test.txt")),
        notes="2,934 entities and 12 relations are not in train.",
    ),
    CatalogEntry(
        "nations", "Nations", 14, 55, 1_592, 199, 201,
        _three(
            f"{PYKEEN}/nations",
            size=(39_101, 4_851, 4_951),
            sha256=(
                "0830fa9da8e5bba2ccdaa45b7bdc9130451ba66b09ff2708f35fccaf82473e57",
                "2b337a62e51a2f45c283eac98a70d21b7e0e102136be1539b2a52c652a7b0530",
                "3971085165b47b6aeaec68058c6d8d98b3005e929db81268410b95ae4db770ab",
            ),
        ),
        "files", "Kemp et al. 2006",
    ),
    CatalogEntry(
        "kinship", "Kinship (Alyawarra)", 104, 25, 8_544, 1_068, 1_074,
        _three(
            f"{PYKEEN}/kinships",
            size=(208_710, 26_088, 26_255),
            sha256=(
                "738612111a6acf0e39662bde24c7e72a4d1edf20931beea077da367dda689731",
                "c56f8630a583178b1e569f11a64aa535ae1ce0b0912d8b1e24716be2b37f04da",
                "05e5733265761d55be9c05bfaff5a8d0808df46f9c1e9d66cc3f2fe114e43d88",
            ),
        ),
        "files", "Kemp et al. 2006",
    ),
    CatalogEntry(
        "umls", "UMLS semantic network", 135, 46, 5_216, 652, 661,
        _three(
            f"{PYKEEN}/umls",
            size=(260_013, 32_963, 32_968),
            sha256=(
                "873ef4925516b83e7f6f8cc02b4be51d848828710a7f65a956f0ac4a9e452f35",
                "025c98f8a4891e2a6582ec5b40ee0d904031edad9c52554522f4b7904820c98e",
                "a7eb529a3d2810fcc96341ccc97c625a5e202f8389673aa6bd317eeebbb79014",
            ),
        ),
        "files", "Kok & Domingos 2007",
    ),
    CatalogEntry(
        "hetionet", "Hetionet v1.0", 45_158, 24, None, None, None,
        (
            RemoteFile(
                "https://github.com/hetio/hetionet/raw/master/hetnet/tsv/hetionet-v1.0-edges.sif.gz",
                "hetionet.tsv.gz",
            ),
        ),
        "files", "Himmelstein et al. 2017",
        columns="source,metaedge,target",
        triples=2_250_197,
        notes="One file with a header, not split. Licences differ by edge, see its repository.",
    ),
    CatalogEntry(
        "drkg", "Drug Repurposing Knowledge Graph", 97_238, 107, None, None, None,
        (RemoteFile("https://dgl-data.s3-us-west-2.amazonaws.com/dataset/DRKG/drkg.tar.gz", "drkg.tar.gz"),),
        "archive", "Ioannidis et al. 2020",
        keep=(("drkg.tsv", "drkg.tsv"),),
        triples=5_874_261,
        notes="One file, not split. Licences differ by source, see its repository.",
    ),
    CatalogEntry(
        "primekg", "PrimeKG", 129_375, 30, None, None, None,
        (
            RemoteFile(
                "https://dataverse.harvard.edu/api/access/datafile/6180620", "primekg.csv",
                size=981_751_236, md5="aac8191d4fbc5bf09cdf8c3c78b4e75f",
            ),
        ),
        "files", "Chandak et al. 2023",
        columns="x_name,relation,y_name",
        licence="CC0",
        triples=8_100_498,
        notes="One file with a header, not split; every edge stands there in both directions.",
    ),
    CatalogEntry(
        "ogbl-wikikg2", "OGB WikiKG2", 2_500_604, 535, 16_109_182, 429_456, 598_543,
        (), "archive", "Hu et al. 2020",
        instead="Its splits are published as pickles, which grash does not open. Install the package ogb, "
        "load LinkPropPredDataset('ogbl-wikikg2'), and save head, relation, tail of each split as train.npy, "
        "valid.npy and test.npy.",
        notes="Official results rank against 500 sampled candidates per side, not against all entities.",
    ),
    CatalogEntry(
        "ogbl-biokg", "OGB BioKG", 93_773, 51, 4_762_678, 162_886, 162_870,
        (), "archive", "Hu et al. 2020",
        instead="Its splits are published as pickles, which grash does not open. Install the package ogb, "
        "load LinkPropPredDataset('ogbl-biokg'), number the entities of its five types one after the other, "
        "and save head, relation, tail of each split as train.npy, valid.npy and test.npy.",
        notes="Official results rank against 500 sampled candidates per side, not against all entities.",
    ),
)  # fmt: skip

CATALOG = {entry.name: entry for entry in _ENTRIES}
