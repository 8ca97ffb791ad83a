"""What is installed: wheel, sdist, editable installs and plain checkouts hold the same files and find them."""

import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from kgen.dsl.version import VERSION

ROOT = Path(__file__).parents[1]
#: Folders of the checkout that are packages, by their place in an installation.
PACKAGES = {"kgen": "kgen", "templates": "kgen/templates", "tuning_db": "kgen/tuning_db"}
BUILD = "import sys; from setuptools.build_meta import build_sdist; print(build_sdist(sys.argv[1]))"
FIND = (
    "import kgen.templates, kgen.tuning_db, kgen.emulator; "
    "print(kgen.templates.__file__, kgen.tuning_db.__file__, kgen.__version__)"
)


def run(*command, cwd, **environment):
    done = subprocess.run(
        [sys.executable, *map(str, command)], cwd=cwd, env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


def pip(*arguments, cwd):
    run("-m", "pip", "--isolated", "--disable-pip-version-check", *arguments, cwd=cwd)


def sources(folder):
    """The files of a package in the checkout; what Python or an editor leaves there is none."""
    return [f for f in (ROOT / folder).rglob("*") if f.is_file() and "__pycache__" not in f.parts and f.name[0] != "."]


EXPECTED = {
    f"{place}/{file.relative_to(ROOT / folder).as_posix()}"
    for folder, place in PACKAGES.items()
    for file in sources(folder)
}


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    """A copy of what a build reads: builds leave files in the folder."""
    copy = tmp_path_factory.mktemp("checkout")
    ignore = shutil.ignore_patterns("__pycache__", "*.egg-info")
    for path in ROOT.iterdir():
        if path.name in (*PACKAGES, "tests", "examples", "docs"):
            shutil.copytree(path, copy / path.name, ignore=ignore)
        elif path.is_file():
            shutil.copy(path, copy)
    return copy


@pytest.fixture(scope="module")
def sdist(checkout, tmp_path_factory):
    folder = tmp_path_factory.mktemp("sdist")
    return folder / run("-c", BUILD, folder, cwd=checkout).split()[-1]


@pytest.fixture(scope="module")
def wheel(sdist, tmp_path_factory):
    """The wheel, made of the sdist: so the sdist is complete too."""
    folder = tmp_path_factory.mktemp("wheel")
    pip("wheel", "--no-deps", "--no-build-isolation", "--no-index", "-w", folder, sdist, cwd=folder)
    (built,) = folder.glob("kgen-*.whl")
    return built


def test_expected_files_are_all_kinds_of_data():
    needed = ["templates/gemm_mma.cu.j2", "templates/ptx/mma.cuh", "templates/common/tile.cuh", "py.typed"]
    needed += ["templates/macros/gemm.cuh.j2", "templates/export/launch.cu.j2", "emulator/cpp/machine.cpp"]
    needed += [
        "emulator/cpp/ptx.h",
        "runtime/cpp/warm_calls.cpp",
        "runtime/cpp/calls.h",
        "runtime/cpp/gradients.h",
        "runtime/cpp/launch.h",
        "tuning_db/migrations/versions/r0001_first.py",
        "cli/__init__.py",
    ]
    assert {f"kgen/{name}" for name in needed} <= EXPECTED


def test_wheel_holds_every_file_of_the_packages_and_no_other(wheel):
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert names == EXPECTED


def test_sdist_holds_packages_tests_and_documents(sdist):
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    for folder in PACKAGES:
        assert {f.relative_to(ROOT).as_posix() for f in sources(folder)} <= names
    assert {"LICENSE", "README.md", "CHANGELOG.md", "tests/test_packaging.py", "examples/fused_linear.py"} <= names
    assert not [name for name in names if "__pycache__" in name]


def test_an_installed_wheel_finds_its_parts(wheel, tmp_path):
    pip("install", "--no-deps", "--no-index", "--no-compile", "--target", tmp_path / "site", wheel, cwd=tmp_path)
    templates, database, version = run("-c", FIND, cwd=tmp_path, PYTHONPATH=str(tmp_path / "site")).split()
    assert Path(templates) == tmp_path / "site/kgen/templates/__init__.py"
    assert Path(database) == tmp_path / "site/kgen/tuning_db/__init__.py"
    assert wheel.name.startswith(f"kgen-{version}-")
    assert "kgen = kgen.cli.main:main" in next((tmp_path / "site").glob("*.dist-info/entry_points.txt")).read_text()


def test_a_checkout_that_is_not_installed_finds_its_parts(tmp_path):
    """-S: without the folder that packages are installed in, where an editable install would answer."""
    templates, database, version = run("-S", "-c", FIND, cwd=tmp_path, PYTHONPATH=str(ROOT)).split()
    assert (Path(templates).parent, Path(database).parent) == (ROOT / "templates", ROOT / "tuning_db")
    assert version == VERSION


def test_an_editable_install_finds_its_parts(checkout, tmp_path):
    site = tmp_path / "site"
    editable = run("-c", BUILD.replace("build_sdist", "build_editable"), tmp_path, cwd=checkout).split()[-1]
    pip("install", "--no-deps", "--no-index", "--target", site, tmp_path / editable, cwd=tmp_path)
    found = run("-S", "-c", f"import site; site.addsitedir({str(site)!r}); {FIND}", cwd=tmp_path).split()
    assert [Path(file).parent for file in found[:2]] == [checkout / "templates", checkout / "tuning_db"]
    assert found[2:] == [VERSION]
