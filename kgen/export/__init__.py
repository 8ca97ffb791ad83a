"""Export: an operator's kernel as CUDA C++ of the user's own, with a C launch function, a CMake project and a test."""

from kgen.export.project import export as export
