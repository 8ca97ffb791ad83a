"""The CUDA C++ templates (jinja2) and the PTX layer. Data only; kgen.codegen reads it."""
