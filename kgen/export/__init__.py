"""Export: an operator's kernels as CUDA C++ of the user's own, with a C launch function, a CMake project and a test."""

from kgen.export.collection import Entry as Entry
from kgen.export.project import export as export
from kgen.export.project import export_launches as export_launches
from kgen.export.project import export_many as export_many
