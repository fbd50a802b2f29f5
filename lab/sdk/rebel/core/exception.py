"""Errors of the SDK."""


class RBLNRuntimeError(RuntimeError):
    """A failure to create a runtime, or of a run."""


class RBLNCompileError(RuntimeError):
    """A failure to compile a model."""
