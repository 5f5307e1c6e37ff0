"""Push and pull against a local server that answers as the Hugging Face Hub does; the Hub itself was not tried."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from grash.api.model import Model
from grash.errors import FormatError, InputError
from grash.interop.hub import pull_model, push_model
from interop.fake_hub import FakeHub, fake_hub
from small_graph import grash, model_of, rings

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # the library warns about its own settings


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[FakeHub, str]]:
    for name, value in (("HF_HOME", str(tmp_path / "home")), ("HF_TOKEN", "secret"), ("HF_HUB_DISABLE_XET", "1"),
                        ("HF_HUB_DISABLE_PROGRESS_BARS", "1"), ("HF_HUB_DISABLE_TELEMETRY", "1")):  # fmt: skip
        monkeypatch.setenv(name, value)
    with fake_hub() as found:
        yield found


def test_a_pushed_model_is_pulled_unchanged(hub: tuple[FakeHub, str], tmp_path: Path) -> None:
    server, address = hub
    model = model_of(rings(), "tucker")
    model.save(tmp_path / "model")
    (tmp_path / "model" / "notes.txt").write_text("mine")  # not a file of a model
    push_model(tmp_path / "model", "me/world", endpoint=address)
    assert server.created["visibility"] == "private" and server.files is not None, server.created
    assert "embeddings.safetensors" in server.files and "dataset/train.npy" in server.files
    assert "README.md" in server.files and "notes.txt" not in server.files
    back = Model.pull("me/world", tmp_path / "back", endpoint=address, device="cpu")
    assert torch.equal(back.kge.entity, model.kge.entity)
    assert torch.equal(back.kge.weights["core"], model.kge.weights["core"])
    assert sorted(p.name for p in (tmp_path / "back").iterdir()) == sorted(
        p.name for p in (tmp_path / "model").iterdir() if p.name != "notes.txt"
    )


def test_from_python_and_the_command_line(hub: tuple[FakeHub, str], tmp_path: Path) -> None:
    _, address = hub
    model_of(rings()).push("me/world", public=True, endpoint=address)
    done = grash("pull", "me/world", "-o", tmp_path / "m", "--endpoint", address)
    assert done.code == 0 and (tmp_path / "m" / "model.json").is_file()
    assert grash("push", tmp_path / "m", "me/world", "--endpoint", address).code == 0
    assert grash("pull", "me/world", "-o", tmp_path / "m", "--endpoint", address).code != 0  # already exists


def test_other_files_of_a_repository_are_not_pulled_and_damage_is_noticed(
    hub: tuple[FakeHub, str], tmp_path: Path
) -> None:
    server, address = hub
    model_of(rings()).push("me/world", endpoint=address)
    assert server.files is not None
    server.files |= {"run.py": b"import os", "dataset/evil.pkl": b"x", "config.json": b"{}"}
    pull_model("me/world", tmp_path / "m", endpoint=address)
    assert not [p for p in (tmp_path / "m").rglob("*") if p.name in ("run.py", "evil.pkl", "config.json", ".cache")]
    content = server.files["embeddings.safetensors"]
    server.files["embeddings.safetensors"] = content[:-1] + bytes([content[-1] ^ 1])
    with pytest.raises(FormatError, match=r"me/world/embeddings.safetensors is damaged.*Nothing was written"):
        pull_model("me/world", tmp_path / "other", endpoint=address)
    assert not (tmp_path / "other").exists()
    del server.files["model.json"]
    with pytest.raises(InputError, match="me/world is not a model of grash: it has no model.json"):
        pull_model("me/world", tmp_path / "other", endpoint=address)


def test_what_cannot_work_is_a_sentence(hub: tuple[FakeHub, str], tmp_path: Path) -> None:
    _, address = hub
    with pytest.raises(InputError, match="'world' is not a repository: give OWNER/NAME"):
        pull_model("world", tmp_path / "m", endpoint=address)
    with pytest.raises(InputError, match="me/world does not exist, or you may not see it"):
        pull_model("me/world", tmp_path / "m", endpoint=address)
    with pytest.raises(InputError, match="is not a model folder"):
        push_model(tmp_path, "me/world", endpoint=address)
    with pytest.raises(InputError, match="The request for me/world failed"):
        push_model(saved(tmp_path), "me/world", endpoint="http://127.0.0.1:9")


def saved(tmp_path: Path) -> Path:
    model_of(rings()).save(tmp_path / "saved")
    return tmp_path / "saved"
