"""Adapters of other libraries' models to kgen's operators, a file each."""
