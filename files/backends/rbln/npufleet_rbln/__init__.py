"""Parts of the `rbln` backend. Triton loads model.py, which is next to this package."""
