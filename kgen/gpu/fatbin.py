"""fatbin: cubins for several architectures as one fat binary, by the CUDA toolkit's fatbinary tool."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from kgen.codegen.settings import cuda_homes
from kgen.dsl.errors import ToolchainError
from kgen.dsl.target import Arch


def fatbin(cubins: Mapping[Arch, bytes]) -> bytes:
    """The cubins as one fat binary. Raises ToolchainError where the tool is missing or fails."""
    tool = find_tool()
    if tool is None:
        raise ToolchainError(
            "fatbinary was not found, which joins cubins; install a CUDA toolkit or pip install nvidia-cuda-nvcc, or export cubin"
        )
    with tempfile.TemporaryDirectory() as folder:
        place, images = Path(folder), []
        for arch, cubin in cubins.items():
            (place / f"{arch}.cubin").write_bytes(cubin)
            images.append(f"--image3=kind=elf,sm={str(arch).removeprefix('sm_')},file={place / f'{arch}.cubin'}")
        command = [tool, f"--create={place / 'fat'}", "-64", *images]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise ToolchainError(f"fatbinary failed: {(done.stderr or done.stdout).strip()}; see kgen doctor")
        return (place / "fat").read_bytes()


def find_tool() -> str | None:
    """The toolkit's program, else that of a Python package; None where there is none."""
    candidates = [home / "bin" / "fatbinary" for home in cuda_homes()]
    for entry in sys.path:
        candidates += Path(entry or ".").glob("nvidia/*/bin/fatbinary")
    return shutil.which("fatbinary") or next((str(path) for path in candidates if path.is_file()), None)
