"""Files that are damaged or missing, options that do not exist."""

import shutil
import subprocess
import sys

import pytest

from fedloom.core.errors import DataError, SettingError
from fedloom.core.registry import datasets
from fedloom.data.catalog import load

ONE_OF_EACH = {
    "adult": "adult_train.parquet",
    "ames": "ames_9feat_2930.csv.gz",
    "cifar10-subset": "train_03.webp",
    "coil20": "coil20_72views_32.npz",
    "mnist": "t10k-images-idx3-ubyte.gz",
}


@pytest.fixture
def copied(folder, tmp_path):
    """A set's folder with one file that may be changed."""

    def get(name, file):
        source = folder(name)
        for needed in datasets[name].files:
            if needed != file:
                (tmp_path / needed).symlink_to(source / needed)
        return shutil.copyfile(source / file, tmp_path / file)

    return get


def cut(path):
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size // 2)


def flip(path):
    with path.open("r+b") as file:
        file.seek(path.stat().st_size // 2)
        byte = file.read(1)[0]
        file.seek(-1, 1)
        file.write(bytes([byte ^ 1]))


@pytest.mark.parametrize("name", ONE_OF_EACH)
@pytest.mark.parametrize("damage", [cut, flip])
def test_damage_is_found_by_checksum(copied, tmp_path, name, damage):
    damage(copied(name, ONE_OF_EACH[name]))
    with pytest.raises(DataError, match=f"{ONE_OF_EACH[name]} is damaged or another version"):
        load(name, tmp_path)


@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_a_cut_file_is_refused_without_checksums(copied, tmp_path, name):
    cut(copied(name, ONE_OF_EACH[name]))
    with pytest.raises(DataError, match=ONE_OF_EACH[name]):
        load(name, tmp_path, verify=False)


@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_a_file_of_something_else_is_refused_without_checksums(copied, tmp_path, name):
    copied(name, ONE_OF_EACH[name]).write_text("<html>Sign in to download</html>\n")
    with pytest.raises(DataError, match=ONE_OF_EACH[name]):
        load(name, tmp_path, verify=False)


@pytest.mark.parametrize("name", ["fashion-mnist", "cifar10", "mimic3-ihm", *ONE_OF_EACH])
def test_missing_files_are_named(tmp_path, name):
    entry = datasets[name]
    with pytest.raises(DataError) as error:
        load(name, tmp_path)
    text = str(error.value)
    assert all(file in text for file in entry.files)
    assert f"{tmp_path / entry.folder} and {tmp_path}" in text
    assert entry.get in text


def test_missing_folder(monkeypatch):
    monkeypatch.delenv("FEDLOOM_DATA", raising=False)
    with pytest.raises(DataError, match="FEDLOOM_DATA is not set"):
        load("mnist")


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("superconductivity", {"row": 5}, "no option 'row'; did you mean 'rows'"),
        ("parkinson", {"from": "oxford"}, "no option 'from'; did you mean 'form'"),
    ],
)
def test_unknown_options(name, options, message):
    with pytest.raises(SettingError, match=message):
        load(name, **options)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("parkinson", {"form": "patient"}, "form: 'patient'; did you mean 'patients'"),
        ("sqoe4", {"device": "hd-tv"}, "device: 'hd-tv'; did you mean 'hdtv'"),
        ("ames", {"which": "977"}, "which: '977'; known: 1460, 2930"),
        ("physionet2012", {"test_set": "a"}, "test_set: 'a'; known: b, c"),
        ("physionet2012", {"channels": 75}, "channels: 75; known: 37, 74, 76"),
    ],
)
def test_unknown_values(root, folder, name, options, message):
    folder(name)
    entry = datasets[name]
    with pytest.raises(SettingError, match=message):
        entry.load(entry.find(root), **options)


def test_unknown_set():
    with pytest.raises(SettingError, match="did you mean 'fashion-mnist'"):
        load("fashion_mnist")


def test_importing_the_sets_imports_no_readers():
    code = (
        "import fedloom.data.datasets, sys; "
        "print([name for name in ('pyarrow', 'PIL', 'sklearn') if name in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"
