"""Parts of the `rbln` backend; model.py beside this package is what Triton loads."""
