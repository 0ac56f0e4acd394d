"""A pytest plugin: runs LMCache's own tests of its mock adapter, and of its controllers over it,
with Pagelith in its place.

    python -m pytest -p lmcache_own TESTS...     TESTS are those of LMCache's source distribution, run in its root directory
"""

import os
import shutil
import tempfile
import time

os.environ.setdefault("LMCACHE_TRACK_USAGE", "false")

import lmcache  # noqa: E402
from lmcache.v1.distributed.l2_adapters import mock_l2_adapter  # noqa: E402

from pagelith.lmcache import PagelithL2Adapter  # noqa: E402


class MockL2Adapter(PagelithL2Adapter):
    """Created from the mock's configuration, with the members that LMCache's tests use in addition
    to the interface."""

    def __init__(self, config):
        self._home = tempfile.mkdtemp()
        ssd = {"dirs": [self._home], "bytes": "64MiB", "segment_bytes": "4MiB"}
        super().__init__({"revision": "a test", "store": {"dram": {"bytes": "16MiB"}, "index": {"max_objects": 10000}, "ssd": ssd}})

        # The mock's bandwidth, and its capacity, which Pagelith's adapter does not report.
        self._rate = config.mock_bandwidth_gb * (1 << 30)
        self._max_capacity_bytes = int(config.max_size_gb * (1 << 30))

    def _store_objects(self, keys, objects):
        time.sleep(sum(memory.get_size() for memory in objects) / self._rate)
        return super()._store_objects(keys, objects)

    def _load(self, keys, objects):
        time.sleep(sum(memory.get_size() for memory in objects) / self._rate)
        return super()._load(keys, objects)

    def debug_get_stored_object_count(self):
        return self._store.stats()["objects"]

    def debug_get_locked_key_count(self):
        return self._locks.count()

    def debug_has_key(self, key):
        return any(self._store.exists(self._names.all_of(key)))

    def close(self):
        super().close()
        shutil.rmtree(self._home, ignore_errors=True)


mock_l2_adapter.MockL2Adapter = MockL2Adapter
# They require a GPU, but do not access its memory.
lmcache.torch_dev.is_available = lambda: True
