"""`Model`: a module with its layers, preprocessing, labels and provenance, watched without a trace.

`families` says how each architecture is built, `preprocessing` and `inputs` what a picture becomes,
`answers` what the output means, `memory` and `devices` what a pass costs and where it runs.
"""

from .model import Model, ModelError, Preprocessing

__all__ = ["Model", "ModelError", "Preprocessing"]
