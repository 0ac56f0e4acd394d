"""What a model is, as one fingerprint: everything that changes the bytes of its KV cache, and that no page's key says.

Each adapter puts the fingerprint into its namespace, so servers that differ in any of it have no page in common. What an engine
does not hand over is `unknown`, and an adapter starts without it only if the operator passes a `revision`, which is added to
the fingerprint and never replaces it.

`facts` has the digest, `weights` the files on disk, and a module for each engine says what is read from where.
"""

from .facts import Identity, ModelError, admit

__all__ = ["Identity", "ModelError", "admit"]
