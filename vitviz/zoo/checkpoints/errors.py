"""The error of files of weights."""

from ...common.language import MessageError


class CheckpointError(MessageError):
    """A file of weights that cannot be used."""
