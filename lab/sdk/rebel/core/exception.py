"""Errors of the SDK."""


class RBLNRuntimeError(RuntimeError):
    """A runtime could not be made or run."""


class RBLNCompileError(RuntimeError):
    """A model could not be compiled."""
