"""The checkout is importable to every test here."""

import checkout  # noqa: F401
