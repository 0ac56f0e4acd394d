"""The identity of a model, as one fingerprint of everything that changes the bytes of its KV cache
and is not part of a page's key.

Each adapter adds the fingerprint to its namespace, so servers that differ in any of it share no
page. A fact that an engine does not provide is `unknown`. An adapter then starts only if the
operator passes a `revision`; it is added to the fingerprint and never replaces it.

`facts` computes the digest, `weights` reads the files on disk, and one module per engine reads the
engine's facts.
"""

from .facts import Identity, ModelError, admit

__all__ = ["Identity", "ModelError", "admit"]
