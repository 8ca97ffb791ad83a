"""Bad input to the command line: exit code 2, one line on stderr that says what is wrong, nothing on stdout, nothing written."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from cli_runs import Kgen

HGEMM = ("hgemm", "--shape", "64x64x64")
CONFIG = "Elementwise(pack=8, items=1, along='vectors', threads=128, blocks_per_sm=0, load='default', store='default')"
#: The words of a command, and what its message must say.
BAD = [
    # verbs and options
    (["tun"], "No such command 'tun'. Did you mean 'tune'? (see kgen --help)"),
    (["db", "drop"], "No such command 'drop' (see kgen db --help)"),
    (["db"], "Missing command"),
    (["--nonsense"], "No such option: --nonsense"),
    (["tune"], "expected an operator with its options, or --deferred"),
    (["bench"], "Missing argument 'OP'"),
    (["tune", "hgemm", "--shap", "8x8x8"], "No such option: --shap"),
    (["tune", "hgemm", "sgemm"], "unexpected extra argument"),
    (["source", "hgemm", "--shape"], "'--shape' requires an argument"),
    # operators
    (["tune", "hgem"], "no operator 'hgem': did you mean hgemv or hgemm or gemm"),
    (["source", "nosuch"], "no operator 'nosuch': expected one of hgemm"),
    (["show", ""], "no operator ''"),
    (["show", "os.path"], "no operator 'os.path'"),
    (["source", "missing.py:f"], "no file missing.py"),
    (["source", "mine.py"], "malformed operator 'mine.py'"),
    (["source", "mine.py:"], "malformed operator 'mine.py:'"),
    (["source", "mine.py:scalde"], "'scalde' is not there; did you mean scaled?"),
    (["source", "mine.py:number"], "'number' is a int and no operator; it has scaled"),
    (["source", "broken.py:f"], "broken.py cannot be loaded: SyntaxError"),
    (["source", "raises.py:f"], "raises.py cannot be loaded: ZeroDivisionError: division by zero (line 2)"),
    (["source", "exits.py:f"], "exits.py cannot be loaded: SystemExit: 7 (line 2)"),
    (["source", "untyped.py:f"], "untyped.py:4: f: operand x is annotated with nothing"),
    # shapes
    *(
        (["tune", "hgemm", "--shape", shape], f"malformed shape '{shape}'")
        for shape in ("", " ", "x", "8", "8x8x", "x8x8x8", "8x8xx8", "8,8,8", "8*8*8", "8x8x8.5", "8x8x1e3", "axbxc", "-8x8x8",
                      "8x8x0x8 8", "M=", "M=8,", "=8", "M=8,N", "M=8,N=8,K=-8", "M=8,N=8,K=eight", "M=8;N=8;K=8", "M==8",
                      "M=8,N=8,K=8,...=2y3", "٨x٨x٨", "9" * 30 + "x8x8")
        if shape != "8"
    ),
    (["tune", "hgemm", "--shape", "8x8"], "shape '8x8' has 2 sizes; expected at least 3: ...xMxNxK"),
    (["tune", "mine.py:scaled", "--shape", "2x8x8"], "shape '2x8x8' has 3 sizes; expected 2: MxN"),
    (["tune", "mine.py:scaled", "--shape", "...=2,M=8,N=8"], "has leading sizes; expected MxN alone"),
    (["tune", "hgemm", "--shape", "0x8x8"], "has the size 0; expected sizes of at least 1"),
    (["tune", "hgemm", "--shape", "M=8,N=8,K=0"], "has the size 0"),
    (["tune", "hgemm", "--shape", "M=8,N=8"], "missing K; expected M, K, N"),
    (["tune", "hgemm", "--shape", "M=8,N=8,K=8,Q=8"], "unknown Q"),
    (["tune", "hgemm", "--shape", "M=8,M=9,N=8,K=8"], "names M twice"),
    (["tune", "hgemm", "--shape", "M=8x8,N=8,K=8"], "M has 2 sizes; expected one"),
    (["tune", "hgemm", "--shape", "M=1000000,N=1000000,K=1000000"], "is larger than 1 TiB"),
    (["tune", *HGEMM, "--shape", "8x"], "malformed shape '8x'"),  # also where only the second is bad
    (["tune", *HGEMM, "--suite", "small"], "--shape and --suite were both given"),
    (["tune", "hgemm", "--suite", "huge"], "unknown suite 'huge'; hgemm has default, small"),
    # dtypes and layouts
    (["tune", *HGEMM, "--dtype", "f32"], "hgemm is not defined for f32; expected one of f16; bf16"),
    (["tune", *HGEMM, "--dtype", "half"], "unknown dtype 'half'; expected one of f64"),
    (["tune", *HGEMM, "--dtype", ""], "malformed dtype ''; expected for example f16"),
    (["tune", *HGEMM, "--dtype", "f16,f32"], "not defined for f16,f32"),
    (["tune", *HGEMM, "--layout", "XY"], "malformed layout 'XY'; expected NN, NT, TN or TT"),
    (["tune", *HGEMM, "--layout", "N"], "malformed layout 'N'"),
    (["tune", *HGEMM, "--layout", "NN", "--transposed", "a"], "--transposed and --layout were both given"),
    (["tune", "gelu", "--shape", "8", "--layout", "NN"], "--layout is for matrix products, and gelu has none"),
    (["tune", *HGEMM, "--transposed", "c"], "hgemm has no operand 'c'; expected one of a, b, out"),
    (["tune", *HGEMM, "--transposed", "a,,b"], "hgemm has no operand ''"),
    (["tune", "linear", "--shape", "8x8x8", "--transposed", "bias"], "bias has 1 dimensions; expected 2 or more"),
    (["tune", "gelu", "--shape", "8", "--transposed", "x"], "x has 1 dimensions"),
    # GPUs
    (["tune", *HGEMM, "--gpu", "GTX 9999"], "unknown GPU 'GTX 9999'; expected auto, an index"),
    (["tune", *HGEMM, "--gpu", "A100"], "fits A100-SXM4-40GB, A100-SXM4-80GB"),
    (["tune", *HGEMM, "--gpu", "sm_42"], "unknown architecture 'sm_42'"),
    (["tune", *HGEMM, "--gpu", "77"], "no GPU 77"),
    (["tune", *HGEMM, "--gpu", "-1"], "no GPU -1"),
    (["tune", *HGEMM, "--gpu", ""], "unknown GPU ''"),
    (["tune", *HGEMM, "--dtype", "bf16", "--gpu", "T4"], "no config serves hgemm"),
    (["bench", *HGEMM, "--gpu", "B200"], "B200 (sm_100a) is not in this machine: a benchmark measures on a GPU"),
    # budgets, samplers, opponents
    *(
        (["tune", *HGEMM, "--budget", budget], f"budget {budget!r}")
        for budget in ("", "fast", "60 parsecs", "-5s", "1.5", "60s60s", "1e3s")
    ),
    (["tune", *HGEMM, "--budget", "0s"], "a budget of 0.0 seconds; expected more than 0"),
    (["tune", *HGEMM, "--budget", "0"], "a budget of 0 trials"),
    (["tune", *HGEMM, "--sampler", "magic"], "unknown sampler 'magic'; expected one of posterior, tpe, random, ranking"),
    (["bench", *HGEMM, "--vs", "cudnn"], "unknown opponent 'cudnn'; expected some of"),
    (["bench", *HGEMM, "--vs", "torch,,copy"], "unknown opponent ''"),
    (["bench", *HGEMM, "--vs", "torch,torch"], "named twice"),
    (["bench", *HGEMM, "--host", "--between"], "--host prints a table of its own; expected it without --variants"),
    (["bench", *HGEMM, "--json", "missing/folder/x.json"], "there is no such folder"),
    (["space", *HGEMM, "--sample", "-3"], "'--sample'"),
    (["space", *HGEMM, "--sample", "many"], "'--sample'"),
    # configs
    (["source", *HGEMM, "--config", "nonsense"], "malformed or unknown config 'nonsense'"),
    (["source", *HGEMM, "--config", ""], "malformed or unknown config ''"),
    (["explain", *HGEMM, "--config", "Nosuch(a=1)"], "expected Name(field=value, ...) with Name one of AttentionGradientMma"),
    (["explain", *HGEMM, "--config", "__import__('os').getcwd()"], "malformed or unknown config"),
    (["explain", *HGEMM, "--config", "Elementwise(pack=3)"], "missing field items"),
    (["explain", *HGEMM, "--config", CONFIG.replace("pack=8", "pack=3")], "pack=3 is outside its domain 1, 2, 4, 8, 16"),
    (["explain", *HGEMM, "--config", CONFIG.replace("pack=8", "pack=eight")], "malformed value 'eight' of 'pack'"),
    (["source", *HGEMM, "--config", CONFIG], "does not serve hgemm"),
    (["verify", *HGEMM, "--config", CONFIG], "does not serve hgemm"),
    (["export", *HGEMM, "-o", "out", "--config", CONFIG], "does not serve hgemm"),
    (["source", "gelu", "--shape", "7", "--dtype", "f32", "--config", CONFIG.replace("pack=8", "pack=16")], "moderate_vectors: "),
    # files and folders
    (["export", *HGEMM], "Missing option '--out'"),
    (["export", *HGEMM, "-o", "mine.py"], "cannot export to mine.py"),
    (["export", *HGEMM, "-o", "full"], "cannot export to full: it holds keep.txt"),
    (["export", *HGEMM, "-o", "mine.py/below"], "cannot export to mine.py/below"),
    (["export", *HGEMM, "-o", "out", "--arch", "sm_1"], "malformed architecture 'sm_1'"),
    (["export", *HGEMM, "-o", "out", "--arch", "sm_70"], "unknown architecture 'sm_70'; expected one of sm_75, sm_80"),
    (["export", *HGEMM, "-o", "out", "--arch", "sm_75"], "or what runs it, got sm_75"),
    (["source", *HGEMM, "-o", "missing/x.cu"], "cannot write missing/x.cu: No such file or directory"),
    (["source", *HGEMM, "-o", "full"], "cannot write full: Is a directory"),
    # databases
    *(
        ([*command, "--db", "corrupt.sqlite"], "corrupt.sqlite: file is not a database")
        for command in (["tune", *HGEMM], ["source", *HGEMM], ["verify", *HGEMM], ["show", "gelu"], ["db", "check"])
    ),
    (["tune", *HGEMM, "--db", "foreign.sqlite"], "holds tables that are not kgen's (birds)"),
    (["tune", *HGEMM, "--db", "full"], "it is a folder; give a path to a file"),
    (["tune", *HGEMM, "--db", "mine.py/x.sqlite"], "cannot open the tuning database mine.py/x.sqlite"),
    (["tune", *HGEMM, "--db", ""], "malformed database ''"),
    (["tune", *HGEMM, "--db", "nosuch://host/kgen"], "cannot use the database URL 'nosuch://host/kgen'"),
    (["source", *HGEMM, "--db", "missing.sqlite"], "no tuning database missing.sqlite"),
    (["db", "stats"], "no tuning database yet at"),
    (["db", "best", "--db", "missing.sqlite"], "no tuning database missing.sqlite"),
    (["db", "trials", "nosuch"], "no operator 'nosuch'"),
    (["db", "prune"], "nothing named to prune"),
    (["db", "prune", "--operator", "gelu", "--db", "empty.sqlite"], "no operator 'gelu' in empty.sqlite; it has none"),
    (["db", "best", "--gpu", "H200", "--db", "empty.sqlite"], "no GPU 'H200' in empty.sqlite; it has none"),
    (["db", "export", "pack.json", "--db", "empty.sqlite"], "has no configs to export"),
    (["db", "import", "missing.json"], "cannot read pack missing.json"),
    (["db", "import", "mine.py"], "pack mine.py is not valid JSON"),
    (["db", "import", "list.json"], "pack list.json is malformed: pack is a list"),
]  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path, user_file: Path, kgen: Kgen, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with files to stumble over; the cache and the default database would be here too."""
    (tmp_path / "broken.py").write_text("def f(:\n")
    (tmp_path / "raises.py").write_text("import kgen\n1 / 0\n")
    (tmp_path / "exits.py").write_text("import sys\nsys.exit(7)\n")
    (tmp_path / "untyped.py").write_text("import kgen\n\n\n@kgen.operator\ndef f(x):\n    return x\n")
    (tmp_path / "list.json").write_text("[]")
    (tmp_path / "corrupt.sqlite").write_text("neither rows nor columns, and long enough to have a header. " * 20)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "keep.txt").write_text("mine")
    with sqlite3.connect(tmp_path / "foreign.sqlite") as connection:
        connection.execute("CREATE TABLE birds (name TEXT)")
    connection.close()
    monkeypatch.chdir(tmp_path)
    assert kgen("db", "check", "--db", "missing.sqlite").code == 2
    from kgen.tuning_db import open_store

    open_store("empty.sqlite").close()
    monkeypatch.setenv("KGEN_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path


def _everything(folder: Path) -> dict[str, bytes | None]:
    """All but what is kept for the next process (`kgen.codegen.kept`, `kgen.codegen.parsed`, `kgen.tuner.chooser`)."""
    found = {str(p.relative_to(folder)): p.read_bytes() if p.is_file() else None for p in folder.rglob("*")}
    folders = ("cache/spaces", "cache/rendered", "cache/shipped", "cache/parsed", "cache/choices")
    kept = {name for name in found if name.startswith(folders)}
    if {name for name in found if name.startswith("cache")} == kept | {"cache"}:
        kept.add("cache")
    return {name: content for name, content in found.items() if name not in kept}


def _ids(case: object) -> str:
    return " ".join(map(str, case))[:60].encode("ascii", "replace").decode() if isinstance(case, list) else ""


@pytest.mark.parametrize(("arguments", "said"), BAD, ids=_ids)
def test_bad_input_is_one_line_and_writes_nothing(arguments: list[str], said: str, folder: Path, kgen: Kgen) -> None:
    before = _everything(folder)
    ran = kgen(*arguments)
    assert ran.code == 2, ran.err
    assert ran.out == ""
    (line,) = ran.err.splitlines()
    assert line.startswith("kgen: error: ")
    assert said in line
    assert _everything(folder) == before


def test_there_are_enough_cases() -> None:
    assert len(BAD) == len({tuple(arguments) for arguments, _ in BAD}) >= 100


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="root may write everywhere")
@pytest.mark.parametrize("command", [["export", *HGEMM, "-o", "locked/out"], ["tune", *HGEMM, "--db", "locked/x.sqlite"],
                                     ["source", *HGEMM, "-o", "locked/x.cu"]])  # fmt: skip
def test_a_folder_that_may_not_be_written(command: list[str], folder: Path, kgen: Kgen) -> None:
    (folder / "locked").mkdir(mode=0o500)
    ran = kgen(*command)
    assert ran.code == 2
    (line,) = ran.err.splitlines()
    assert "locked" in line
    assert list((folder / "locked").iterdir()) == []


@pytest.mark.parametrize("arguments", [["tune", "hgem"], ["source", *HGEMM, "--shape", "8x8"], ["tun"]])
def test_the_process_itself_says_one_line_and_exits_with_2(arguments: list[str], folder: Path) -> None:
    before = _everything(folder)
    command = [sys.executable, "-c", "from kgen.cli.main import main; main()", *arguments]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1
    assert done.stderr.startswith("kgen: error: ")
    assert _everything(folder) == before
