"""Modules of the `rbln` backend. Triton loads `../model.py`, and this file imports them."""
