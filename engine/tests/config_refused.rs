//! A wrong configuration is refused, and the message names the setting and the expected value. One
//! row per wrong value; the whole message is compared.

use pagelith::config::{Config, ConfigError, ConfigFormat, MachineLimits, PeerConfig, fields};
use pagelith::transport::address::Address;

const SSD: &str = "ssd.bytes = \"1GiB\"\nssd.dirs = [\"/a\"]\n";

/// (TOML after [`SSD`], the setting, the message). The tier has segments of 16 MiB.
#[rustfmt::skip]
const TOML_ROWS: &[(&str, &str, &str)] = &[
    ("deadline_ms = 0", "deadline_ms", "must be an integer between 1 and 3600000, got=0"),
    ("deadline_ms = 3_600_001", "deadline_ms", "must be an integer between 1 and 3600000, got=3600001"),
    ("deadline_ms = -1", "deadline_ms", "must be an integer between 1 and 3600000, got=-1 type=integer"),
    ("deadline_ms = \"30s\"", "deadline_ms", "must be an integer between 1 and 3600000, got=\"30s\" type=string"),
    ("deadline_ms = 1.5", "deadline_ms", "must be an integer between 1 and 3600000, got=1.5 type=float"),
    ("deadline_ms = 1979-05-27", "deadline_ms", "must be an integer between 1 and 3600000, got=1979-05-27 type=date"),
    ("close_timeout_ms = 0", "close_timeout_ms", "must be an integer between 1 and 3600000, got=0"),
    ("namespaces_max = 0", "namespaces_max", "must be an integer between 1 and 65536, got=0"),
    ("namespaces_max = 65537", "namespaces_max", "must be an integer between 1 and 65536, got=65537"),
    ("namespaces_max = 4294967297", "namespaces_max", "must be an integer between 1 and 65536, got=4294967297 type=integer"),
    ("namespaces_max = true", "namespaces_max", "must be an integer between 1 and 65536, got=true type=boolean"),
    ("namespaces.limits = 7", "namespaces.limits", "must be a list of at most 512 tables of namespace, dram_bytes, ssd_bytes, when_full and idle_days, got=7 type=integer"),
    ("namespaces.limits = [7, {}]", "namespaces.limits", "must be a list of at most 512 tables of namespace, dram_bytes, ssd_bytes, when_full and idle_days: entry 0 is 7 type=integer, entry 1 has no namespace, got=[..] type=list entries=2"),
    ("namespaces.limits = [{namespace = \"00112233445566778899AABBCCDDEEFF\", dram = 1}]", "namespaces.limits", "must be a list of at most 512 tables of namespace, dram_bytes, ssd_bytes, when_full and idle_days: entry 0 has \"dram\", and may have namespace, dram_bytes, ssd_bytes, when_full, idle_days, entry 0 has as \"namespace\" \"00112233445566778899AABBCCDDEEFF\" type=string, which must be 32 hexadecimal digits, got=[..] type=list entries=1"),
    ("namespaces.limits = [{namespace = \"00112233445566778899aabbccddeeff\", dram_bytes = 0, when_full = \"drop\", idle_days = -1}]", "namespaces.limits", "must be a list of at most 512 tables of namespace, dram_bytes, ssd_bytes, when_full and idle_days: entry 0 has as \"dram_bytes\" 0 type=integer, which must be a size above 0, entry 0 has as \"idle_days\" -1 type=integer, which must be a number of days, entry 0 has as \"when_full\" \"drop\" type=string, which must be one of refuse, evict-own, got=[..] type=list entries=1"),
    ("namespaces.limits = [{namespace = \"00112233445566778899aabbccddeeff\"}, {namespace = \"00112233445566778899aabbccddeeff\", idle_days = 4000}]", "namespaces.limits", "must be a list of at most 512 tables of namespace, dram_bytes, ssd_bytes, when_full and idle_days, but entry 0 has no dram_bytes, ssd_bytes or idle_days, entry 1 repeats the namespace 00112233445566778899aabbccddeeff, entry 1 has as idle_days 4000, which must be between 1 and 3650"),
    ("namespaces.limits = [{namespace = \"00112233445566778899aabbccddeeff\", dram_bytes = \"1GiB\"}]", "namespaces.limits", "entry 0 must have as dram_bytes at most dram.bytes, got=1GiB dram.bytes=256MiB"),
    ("namespaces.limits = [{namespace = \"00112233445566778899aabbccddeeff\", ssd_bytes = \"1MiB\"}]", "namespaces.limits", "entry 0 must have as ssd_bytes at least a segment and at most ssd.bytes, got=1MiB ssd.segment_bytes=16MiB ssd.bytes=1GiB"),
    ("namespaces.limits = [{namespace = \"00112233445566778899aabbccddeeff\", ssd_bytes = \"2GiB\"}]", "namespaces.limits", "entry 0 must have as ssd_bytes at least a segment and at most ssd.bytes, got=2GiB ssd.segment_bytes=16MiB ssd.bytes=1GiB"),
    ("read.prefill_tokens_per_s = 1000000001", "read.prefill_tokens_per_s", "must be an integer between 0 and 1000000000, got=1000000001"),
    ("read.page_tokens = 65537", "read.page_tokens", "must be an integer between 0 and 65536, got=65537"),
    ("read.prefill_tokens_per_s = 9", "read.page_tokens", "must be above 0 with read.prefill_tokens_per_s, got=0 read.prefill_tokens_per_s=9"),
    ("namespaces.counted = 513", "namespaces.counted", "must be an integer between 0 and 512, got=513"),
    ("dram.bytes = -1", "dram.bytes", "must be 0 or a size between 64KiB and 8TiB, got=-1 type=integer"),
    ("dram.bytes = 65535", "dram.bytes", "must be 0 or a size between 64KiB and 8TiB, got=65535B"),
    ("dram.bytes = \"65TiB\"", "dram.bytes", "must be 0 or a size between 64KiB and 8TiB, got=65TiB"),
    ("dram.bytes = 1.5", "dram.bytes", "must be 0 or a size between 64KiB and 8TiB, got=1.5 type=float"),
    ("dram.bytes = nan", "dram.bytes", "must be 0 or a size between 64KiB and 8TiB, got=NaN type=float"),
    ("dram.bytes = \"lots\"", "dram.bytes", "must be 0 or a size between 64KiB and 8TiB: no decimal number before the unit, got=\"lots\" type=string"),
    ("dram.bytes = \"1G\"", "dram.bytes", "must be 0 or a size between 64KiB and 8TiB: \"G\" is no unit (B; KB, MB, GB, TB are powers of 1000; KiB, MiB, GiB, TiB are powers of 1024), got=\"1G\" type=string"),
    ("dram.bytes = \"100000.3KiB\"", "dram.bytes", "must be 0 or a size between 64KiB and 8TiB: not a whole number of bytes, got=\"100000.3KiB\" type=string"),
    ("dram.bytes = \"16777216TiB\"", "dram.bytes", "must be 0 or a size between 64KiB and 8TiB: more than 2^64 - 1 bytes, got=\"16777216TiB\" type=string"),
    ("dram.bytes = []", "dram.bytes", "must be 0 or a size between 64KiB and 8TiB, got=[..] type=list entries=0"),
    ("dram.bytes.min = 1", "dram.bytes", "must be 0 or a size between 64KiB and 8TiB, got={..} type=table entries=1"),
    ("dram.bytes = \"15MiB\"", "dram.bytes", "must be 0 or at least a segment (16MiB) with an SSD tier, got=15MiB ssd.segment_bytes=16MiB"),
    ("dram.pin = \"gpu\"", "dram.pin", "must be one of \"off\", \"cuda\", \"ascend\", got=\"gpu\" type=string"),
    ("dram.policy = \"LRU\"", "dram.policy", "must be one of \"lru\", \"fifo\", \"s3fifo\", got=\"LRU\" type=string"),
    ("dram.policy = 1", "dram.policy", "must be one of \"lru\", \"fifo\", \"s3fifo\", got=1 type=integer"),
    ("dram.promote = true", "dram.promote", "must be one of \"always\", \"never\", got=true type=boolean"),
    ("dram.promote = \"\"", "dram.promote", "must be one of \"always\", \"never\", got=\"\" type=string"),
    ("dram.verify_ratio = 1.5", "dram.verify_ratio", "must be a number between 0 and 1, got=1.5"),
    ("dram.verify_ratio = nan", "dram.verify_ratio", "must be a number between 0 and 1, got=NaN"),
    ("dram.verify_ratio = true", "dram.verify_ratio", "must be a number between 0 and 1, got=true type=boolean"),
    ("dram.shared = 1", "dram.shared", "must be true or false, got=1 type=integer"),
    ("dram.prefault = 1", "dram.prefault", "must be true or false, got=1 type=integer"),
    ("ssd.segment_bytes = \"3MiB\"", "ssd.segment_bytes", "must be a power of two between 1MiB and 256MiB, got=3MiB"),
    ("ssd.segment_bytes = 524288", "ssd.segment_bytes", "must be a power of two between 1MiB and 256MiB, got=512KiB"),
    ("ssd.segment_bytes = \"512MiB\"", "ssd.segment_bytes", "must be a power of two between 1MiB and 256MiB, got=512MiB"),
    ("ssd.segment_bytes = 0", "ssd.segment_bytes", "must be a power of two between 1MiB and 256MiB, got=0B"),
    ("ssd.segment_bytes = \"auto\"", "ssd.segment_bytes", "must be a power of two between 1MiB and 256MiB: no decimal number before the unit, got=\"auto\" type=string"),
    ("ssd.policy = \"lru\"", "ssd.policy", "must be one of \"fifo\", \"recency\", got=\"lru\" type=string"),
    ("ssd.admission = \"all\"", "ssd.admission", "must be one of \"through\", \"worth\", \"second-touch\", got=\"all\" type=string"),
    ("ssd.min_reuse = 1.1", "ssd.min_reuse", "must be a number between 0 and 1, got=1.1"),
    ("hints.trust = 1.5", "hints.trust", "must be a number between 0 and 1, got=1.5"),
    ("ssd.thrift = 2.1", "ssd.thrift", "must be a number between 0 and 2, got=2.1"),
    ("ssd.write_budget = \"1KiB\"", "ssd.write_budget", "must be 0 or a size between 1MiB and 1024TiB, got=1KiB"),
    ("ssd.reinsert_ratio = 0.26", "ssd.reinsert_ratio", "must be a number between 0 and 0.25, got=0.26"),
    ("ssd.reinsert_ratio = -0.1", "ssd.reinsert_ratio", "must be a number between 0 and 0.25, got=-0.1"),
    ("ssd.reinsert_ratio = nan", "ssd.reinsert_ratio", "must be a number between 0 and 0.25, got=NaN"),
    ("ssd.reinsert_ratio = 1", "ssd.reinsert_ratio", "must be a number between 0 and 0.25, got=1"),
    ("ssd.reinsert_ratio = \"0.1\"", "ssd.reinsert_ratio", "must be a number between 0 and 0.25, got=\"0.1\" type=string"),
    ("ssd.io = \"io_uring\"", "ssd.io", "must be one of \"auto\", \"uring\", \"blocking\", got=\"io_uring\" type=string"),
    ("ssd.io = false", "ssd.io", "must be one of \"auto\", \"uring\", \"blocking\", got=false type=boolean"),
    ("ssd.write_depth = 0", "ssd.write_depth", "must be an integer between 1 and 64, got=0"),
    ("ssd.write_depth = 65", "ssd.write_depth", "must be an integer between 1 and 64, got=65"),
    ("ssd.write_depth = \"8\"", "ssd.write_depth", "must be an integer between 1 and 64, got=\"8\" type=string"),
    ("ssd.write_depth_reading = 0", "ssd.write_depth_reading", "must be an integer between 1 and 64, got=0"),
    ("ssd.write_bytes = 65537", "ssd.write_bytes", "must be a multiple of 4096 between 64KiB and 16MiB, got=65537B"),
    ("ssd.write_bytes = \"32KiB\"", "ssd.write_bytes", "must be a multiple of 4096 between 64KiB and 16MiB, got=32KiB"),
    ("ssd.write_bytes = \"32MiB\"", "ssd.write_bytes", "must be a multiple of 4096 between 64KiB and 16MiB, got=32MiB"),
    ("ssd.segment_bytes = \"1MiB\"\nssd.write_bytes = \"2MiB\"", "ssd.write_bytes", "must be at most a segment, got=2MiB ssd.segment_bytes=1MiB"),
    ("ssd.headers_bytes = 1", "ssd.headers_bytes", "must be 0 or a size between 64KiB and 64TiB, got=1B"),
    ("ssd.checkpoint_segments = -1", "ssd.checkpoint_segments", "must be an integer between 0 and 4294967295, got=-1 type=integer"),
    ("ssd.checkpoint_segments = 4294967296", "ssd.checkpoint_segments", "must be an integer between 0 and 4294967295, got=4294967296 type=integer"),
    ("ssd.probe_ms = 0", "ssd.probe_ms", "must be an integer between 1 and 3600000, got=0"),
    ("ssd.probe_ms = \"1s\"", "ssd.probe_ms", "must be an integer between 1 and 3600000, got=\"1s\" type=string"),
    ("ssd.probe_max_ms = 3600001", "ssd.probe_max_ms", "must be an integer between 1 and 3600000, got=3600001"),
    ("ssd.probe_ms = 5000\nssd.probe_max_ms = 4999", "ssd.probe_max_ms", "must be at least ssd.probe_ms, got=4999 ssd.probe_ms=5000"),
    ("ssd.quarantine_after = 0", "ssd.quarantine_after", "must be an integer between 1 and 1000000, got=0"),
    ("ssd.scrub_bytes_per_s = 1", "ssd.scrub_bytes_per_s", "must be 0 or a size between 4KiB and 1TiB, got=1B"),
    ("ssd.scrub_bytes_per_s = \"2TiB\"", "ssd.scrub_bytes_per_s", "must be 0 or a size between 4KiB and 1TiB, got=2TiB"),
    ("ssd.quarantine_after = true", "ssd.quarantine_after", "must be an integer between 1 and 1000000, got=true type=boolean"),
    ("remote.peers = \"tcp:127.0.0.1:1\"", "remote.peers", "must be a list of at most 64 peers, each an address or a table of address, transport, name, weight and preferred, got=\"tcp:127.0.0.1:1\" type=string"),
    ("remote.peers = [7, \"here\"]", "remote.peers", "must be a list of at most 64 peers, each an address or a table of address, transport, name, weight and preferred: entry 0 is 7 type=integer, entry 1 has as address \"here\": an address begins with tcp:, rdma: or unix:, got=[..] type=list entries=2"),
    ("remote.peers = [{}, {address = \"tcp:a\", weight = \"2\", nam = \"a\"}]", "remote.peers", "must be a list of at most 64 peers, each an address or a table of address, transport, name, weight and preferred: entry 0 has no address, entry 1 has as address \"tcp:a\": tcp: is followed by HOST:PORT, where HOST is a host name or an IP address (of IPv6 in brackets) and PORT a number up to 65535, entry 1 has \"nam\", and may have address, transport, name, weight, preferred, entry 1 has as weight \"2\" type=string, which must be a number, got=[..] type=list entries=2"),
    ("remote.peers = [{address = 1, name = 2, preferred = 3}]", "remote.peers", "must be a list of at most 64 peers, each an address or a table of address, transport, name, weight and preferred: entry 0 has as address 1 type=integer, which must be a string, entry 0 has as name 2 type=integer, which must be a string, entry 0 has as preferred 3 type=integer, which must be true or false, got=[..] type=list entries=1"),
    ("remote.peers = [\"unix:/a\", {address = \"unix:/b\", name = \"unix:/a\", weight = 0}, {address = \"unix:/c\", name = \"\", weight = nan}]", "remote.peers", "must be a list of at most 64 peers, each an address or a table of address, transport, name, weight and preferred, but entry 1 repeats the name \"unix:/a\", entry 1 has the weight 0, which must be finite and above 0, entry 2 has an empty name, entry 2 has the weight NaN, which must be finite and above 0"),
    ("remote.peers = [{address = \"unix:/a\", preferred = true}, \"unix:/b\", {address = \"unix:/c\", preferred = true}]", "remote.peers", "must be a list of at most 64 peers, each an address or a table of address, transport, name, weight and preferred, but entry 2 is preferred, and so is entry 0"),
    ("remote.peers = [\"unix:/a\", {address = \"unix:/b\", weight = inf}, {address = \"unix:/c\", weight = -1}]", "remote.peers", "must be a list of at most 64 peers, each an address or a table of address, transport, name, weight and preferred, but entry 1 has the weight inf, which must be finite and above 0, entry 2 has the weight -1, which must be finite and above 0"),
    ("remote.peers = [\"here\", {address = \"unix:/a\", weight = 0}, {address = 7, name = \"\", preferred = true}, \"unix:/a\", {address = \"unix:/b\", name = 7, preferred = true}]", "remote.peers", "must be a list of at most 64 peers, each an address or a table of address, transport, name, weight and preferred: entry 0 has as address \"here\": an address begins with tcp:, rdma: or unix:, entry 1 has the weight 0, which must be finite and above 0, entry 2 has as address 7 type=integer, which must be a string, entry 2 has an empty name, entry 3 repeats the name \"unix:/a\", entry 4 has as name 7 type=integer, which must be a string, entry 4 is preferred, and so is entry 2, got=[..] type=list entries=5"),
    ("remote.peers = []\nremote.key = 7", "remote.key", "must be the path of a file, got=7 type=integer"),
    ("remote.peers = [\"unix:/a\"]\nremote.key = \"\"", "remote.key", "must be the path of a file, got=\"\""),
    ("remote.key = \"/a\"", "remote.key", "must be unset without remote.peers, to which it identifies this store"),
    ("remote.peers = [{address = \"tcp:a:1\", transport = \"RDMA\"}, {address = \"unix:/a\", transport = \"rdma\"}, {address = \"rdma:a:1\", name = \"b\", transport = \"auto\"}]", "remote.peers", "must be a list of at most 64 peers, each an address or a table of address, transport, name, weight and preferred: entry 0 has as transport \"RDMA\" type=string, which must be one of tcp, auto, rdma, entry 1 is wrong: transport rdma needs an address tcp:HOST:PORT address=unix:/a, entry 2 is wrong: transport auto needs an address tcp:HOST:PORT address=rdma:a:1, got=[..] type=list entries=3"),
    ("remote.local_hostname = \"\"", "remote.local_hostname", "must be 1 to 253 letters, digits, dots, hyphens and underscores, got=\"\""),
    ("remote.local_hostname = \"a b\"", "remote.local_hostname", "must be 1 to 253 letters, digits, dots, hyphens and underscores, got=\"a b\""),
    ("remote.local_hostname = 7", "remote.local_hostname", "must be 1 to 253 letters, digits, dots, hyphens and underscores, got=7 type=integer"),
    ("rdma.serve = 1", "rdma.serve", "must be true or false, got=1 type=integer"),
    ("rdma.devices = \"mlx5_0,,mlx5_2\"", "rdma.devices", "must be one device name, or several separated by commas: the list of RDMA devices has an empty entry; name one device for all GPUs, or one for each GPU in the order of `nvidia-smi` gpu=1 entry=1 list=mlx5_0,,mlx5_2"),
    ("rdma.devices = [\"mlx5_0\"]", "rdma.devices", "must be one device name, or several separated by commas, got=[..] type=list entries=1"),
    ("rdma.gpu = 1024", "rdma.gpu", "must be an integer between 0 and 1023, got=1024"),
    ("rdma.gpu = -1", "rdma.gpu", "must be an integer between 0 and 1023, got=-1 type=integer"),
    ("rdma.gid_index = 256", "rdma.gid_index", "must be an integer between 0 and 255, got=256"),
    ("rdma.gid_idx = 3", "rdma.gid_idx", "is not a setting; did you mean rdma.gid_index?"),
    ("remote.peer = []", "remote.peer", "is not a setting; did you mean remote.peers?"),
    ("staging.bytes = \"32KiB\"", "staging.bytes", "must be a size between 64KiB and 1TiB, got=32KiB"),
    ("staging.bytes = \"2TiB\"", "staging.bytes", "must be a size between 64KiB and 1TiB, got=2TiB"),
    ("staging.bytes = false", "staging.bytes", "must be a size between 64KiB and 1TiB, got=false type=boolean"),
    ("staging.bytes = 1056768", "staging.bytes", "must leave a budget (bytes x ratio) of at least one chunk + 8192 = 1056768 bytes, got=1032KiB budget=951091 staging.ratio=0.9 staging.chunk_bytes=1MiB"),
    ("staging.bytes = 1056767\nstaging.ratio = 1", "staging.bytes", "must leave a budget (bytes x ratio) of at least one chunk + 8192 = 1056768 bytes, got=1056767B budget=1052672 staging.ratio=1 staging.chunk_bytes=1MiB"),
    ("staging.ratio = 0", "staging.ratio", "must be a number above 0 and at most 1, got=0"),
    ("staging.ratio = 1.01", "staging.ratio", "must be a number above 0 and at most 1, got=1.01"),
    ("staging.ratio = inf", "staging.ratio", "must be a number above 0 and at most 1, got=inf"),
    ("staging.ratio = \"90%\"", "staging.ratio", "must be a number above 0 and at most 1, got=\"90%\" type=string"),
    ("staging.chunk_bytes = \"32KiB\"", "staging.chunk_bytes", "must be a multiple of 32768 between 64KiB and 256MiB, got=32KiB"),
    ("staging.chunk_bytes = \"80KiB\"", "staging.chunk_bytes", "must be a multiple of 32768 between 64KiB and 256MiB, got=80KiB"),
    ("staging.chunk_bytes = \"257MiB\"", "staging.chunk_bytes", "must be a multiple of 32768 between 64KiB and 256MiB, got=257MiB"),
    ("groups.deadline_ms = 0", "groups.deadline_ms", "must be an integer between 1 and 3600000, got=0"),
    ("groups.deadline_ms = \"1s\"", "groups.deadline_ms", "must be an integer between 1 and 3600000, got=\"1s\" type=string"),
    ("groups.deadline = 1", "groups.deadline", "is not a setting; did you mean groups.deadline_ms?"),
    ("events.max = -1", "events.max", "must be an integer between 0 and 1048576, got=-1 type=integer"),
    ("events.max = 1048577", "events.max", "must be an integer between 0 and 1048576, got=1048577"),
    ("index.max_objects = 0", "index.max_objects", "must be an integer between 1 and 4294967296, got=0"),
    ("index.max_objects = 4294967297", "index.max_objects", "must be an integer between 1 and 4294967296, got=4294967297"),
    ("index.max_objects = \"1M\"", "index.max_objects", "must be an integer between 1 and 4294967296, got=\"1M\" type=string"),
    ("read.depth = 0", "read.depth", "must be an integer between 1 and 1024, got=0"),
    ("read.depth = 1025", "read.depth", "must be an integer between 1 and 1024, got=1025"),
    ("memory.reserve = \"-1GiB\"", "memory.reserve", "must be a size between 0B and 64TiB: no decimal number before the unit, got=\"-1GiB\" type=string"),
    ("memory.reserve = \"65TiB\"", "memory.reserve", "must be a size between 0B and 64TiB, got=65TiB"),
    ("log.batch_summary = \"true\"", "log.batch_summary", "must be true or false, got=\"true\" type=string"),
    ("log.batch_summary = 1", "log.batch_summary", "must be true or false, got=1 type=integer"),
    ("dram = 5", "dram", "must be a table of settings, got=5 type=integer"),
    ("[[dram]]\nbytes = 1", "dram", "must be a table of settings, got=[..] type=list entries=1"),
    ("dram.byts = 1", "dram.byts", "is not a setting; did you mean dram.bytes?"),
    ("dram.segment_bytes = 1", "dram.segment_bytes", "is not a setting; did you mean ssd.segment_bytes?"),
    ("segment_bytes = 1", "segment_bytes", "is not a setting; did you mean ssd.segment_bytes?"),
    ("SSD.io = \"auto\"", "SSD.io", "is not a setting; did you mean ssd.io?"),
    ("staging.chunk-bytes = 1", "staging.chunk-bytes", "is not a setting; did you mean staging.chunk_bytes?"),
    ("ssd.ring = \"deferred\"", "ssd.ring", "was removed in version 0.1.0: leave it out, every ring is what \"plain\" was"),
    ("read.zzz = 1", "read.zzz", "is not a setting; read has depth, prefill_tokens_per_s, page_tokens"),
    ("qqqq = 1", "qqqq", "is not a setting; top-level keys are deadline_ms, close_timeout_ms, namespaces_max, dram, ssd, remote, rdma, staging, groups, events, index, read, memory, log, namespaces, hints"),
    ("[qqqq]", "qqqq", "is not a setting; top-level keys are deadline_ms, close_timeout_ms, namespaces_max, dram, ssd, remote, rdma, staging, groups, events, index, read, memory, log, namespaces, hints"),
    ("\"dram.bytes\" = 1", "\"dram.bytes\"", "is not a setting; did you mean dram.bytes, a key inside a table?"),
    ("\"a\\nb\" = 1", "\"a\\nb\"", "is not a setting; top-level keys are deadline_ms, close_timeout_ms, namespaces_max, dram, ssd, remote, rdma, staging, groups, events, index, read, memory, log, namespaces, hints"),
    ("dram.bytes", "(file)", "is not TOML: key with no value, expected `=` line=3 column=11"),
    ("read.depth = 1\nread.depth = 2", "(file)", "is not TOML: duplicate key line=4 column=6"),
];

/// (TOML, the setting, the message) if the SSD tier itself is concerned.
#[rustfmt::skip]
const SSD_ROWS: &[(&str, &str, &str)] = &[
    ("dram.bytes = 0", "dram.bytes", "must be above 0, or ssd.bytes must be: embedded with no capacity, got=0B ssd.bytes=0B"),
    ("namespaces.limits = [{namespace = \"00112233445566778899aabbccddeeff\", idle_days = 1}]", "namespaces.limits", "entry 0 must have no idle_days without an SSD tier, got ssd.bytes=0B"),
    ("ssd.bytes = \"1GiB\"", "ssd.dirs", "must name a directory, got=[] ssd.bytes=1GiB"),
    ("ssd.dirs = [\"/a\", \"/b\"]", "ssd.bytes", "must be above 0, or ssd.dirs empty, got=0B ssd.dirs=2 directories"),
    ("ssd = { bytes = \"1000KiB\", dirs = [\"/a\"] }", "ssd.bytes", "must be 0 or a size between 1MiB and 64TiB, got=1000KiB"),
    ("ssd = { bytes = \"1025TiB\", dirs = [\"/a\"] }", "ssd.bytes", "must be 0 or a size between 1MiB and 64TiB, got=1025TiB"),
    ("ssd = { bytes = \"16MiB\", dirs = [\"/a\"] }", "ssd.bytes", "must be at least 18MiB (4 segments, two manifests and two checkpoints), got=16MiB ssd.segment_bytes=4MiB index.max_objects=65536 namespaces_max=4096"),
    ("ssd = { bytes = \"1TiB\", dirs = [\"/a\"], segment_bytes = \"1MiB\" }", "ssd.segment_bytes", "must be at least 4MiB for a tier of that size, got=1MiB ssd.bytes=1TiB"),
    ("ssd = { bytes = \"17MiB\", dirs = [\"/a\", \"/b\", \"/c\", \"/d\", \"/e\"] }", "ssd.bytes", "must be at least 22MiB (5 segments, two manifests and two checkpoints), got=17MiB ssd.segment_bytes=4MiB index.max_objects=65536 namespaces_max=4096"),
    ("ssd = { bytes = \"4TiB\", dirs = \"/a\" }", "ssd.dirs", "must be a list of at most 64 different directories, got=\"/a\" type=string"),
    ("ssd = { bytes = \"1GiB\", dirs = [\"/a\", 1, true] }", "ssd.dirs", "must be a list of at most 64 different directories: entry 1 is 1 type=integer, entry 2 is true type=boolean, got=[..] type=list entries=3"),
    ("ssd = { bytes = \"1GiB\", dirs = [\"/a\", \"/b\", \"/a/./\", \"\"] }", "ssd.dirs", "must be a list of at most 64 different directories, but entry 2 repeats \"/a/./\", entry 3 is empty"),
    ("ssd = { bytes = \"1GiB\", dirs = [\"a\", \"./a\"] }", "ssd.dirs", "must be a list of at most 64 different directories, but entry 1 repeats \"./a\""),
    ("ssd = { bytes = \"1GiB\", dirs = [\"/a\\u0000\"] }", "ssd.dirs", "must be a list of at most 64 different directories, but entry 0 contains a NUL"),
    ("ssd = { bytes = \"1GiB\", dirs = [\"~/kv\", \"/a\", \"$HOME\"] }", "ssd.dirs", "must be a list of at most 64 different directories, but entry 0 is \"~/kv\": only a shell expands that, give the whole path (./ before a name that begins so), entry 2 is \"$HOME\": only a shell expands that, give the whole path (./ before a name that begins so)"),
    ("remote = { peers = [\"unix:/a\"], key = \"~/key\" }", "remote.key", "must be the path of a file, got=\"~/key\": only a shell expands that, give the whole path (./ before a name that begins so)"),
];

#[rustfmt::skip]
const JSON_ROWS: &[(&str, &str, &str)] = &[
    ("", "(file)", "is not JSON: EOF while parsing a value line=1 column=0"),
    ("[]", "(file)", "must be a table of settings, got=[..] type=list entries=0"),
    ("null", "(file)", "must be a table of settings, got=null"),
    (r#"{"read": {"depth": 1, "depth": 2}}"#, "(file)", "is not JSON: duplicate key \"depth\" line=1 column=33"),
    (r#"{"read": null}"#, "read", "must be a table of settings, got=null"),
    (r#"{"read": {"depth": null}}"#, "read.depth", "must be an integer between 1 and 1024, got=null"),
    (r#"{"read": {"depth": 64.0}}"#, "read.depth", "must be an integer between 1 and 1024, got=64 type=float"),
    (r#"{"dram": {"bytes": 18446744073709551616}}"#, "dram.bytes", "must be 0 or a size between 64KiB and 8TiB, got=18446744073709552000 type=float"),
    (r#"{"dram.bytes": 1}"#, "\"dram.bytes\"", "is not a setting; did you mean dram.bytes, a key inside a table?"),
    (r#"{"remote": {"peers": [{"address": "unix:/a", "address": "unix:/b"}]}}"#, "(file)", "is not JSON: duplicate key \"address\" line=1 column=66"),
    (r#"{"remote": {"peers": [null, {"address": "unix:/a", "name": null}]}}"#, "remote.peers", "must be a list of at most 64 peers, each an address or a table of address, transport, name, weight and preferred: entry 0 is null, entry 1 has as name null, which must be a string, got=[..] type=list entries=2"),
    (r#"{"ssd": {"iopoll": null}}"#, "ssd.iopoll", "was removed in version 0.1.0: leave it out, reads complete by interrupt"),
    (r#"{"log": {"batch_sumary": true}}"#, "log.batch_sumary", "is not a setting; did you mean log.batch_summary?"),
];

/// (variable, its text, the setting, the message)
#[rustfmt::skip]
const ENV_ROWS: &[(&str, &str, &str, &str)] = &[
    ("PAGELITH_LOG__BATCH_SUMMARY", "yes", "log.batch_summary", "must be true or false, got=\"yes\" type=string env=PAGELITH_LOG__BATCH_SUMMARY"),
    ("PAGELITH_LOG__BATCH_SUMMARY", "", "log.batch_summary", "must be true or false, got=\"\" type=string env=PAGELITH_LOG__BATCH_SUMMARY"),
    ("PAGELITH_DRAM__BYTES", "2GiB ", "dram.bytes", "must be 0 or a size between 64KiB and 8TiB: \"GiB \" is no unit (B; KB, MB, GB, TB are powers of 1000; KiB, MiB, GiB, TiB are powers of 1024), got=\"2GiB \" type=string env=PAGELITH_DRAM__BYTES"),
    ("PAGELITH_DRAM__BYTES", "1", "dram.bytes", "must be 0 or a size between 64KiB and 8TiB, got=1B env=PAGELITH_DRAM__BYTES"),
    ("PAGELITH_READ__DEPTH", "+8", "read.depth", "must be an integer between 1 and 1024, got=\"+8\" type=string env=PAGELITH_READ__DEPTH"),
    ("PAGELITH_READ__DEPTH", "0", "read.depth", "must be an integer between 1 and 1024, got=0 env=PAGELITH_READ__DEPTH"),
    ("PAGELITH_STAGING__RATIO", "nan", "staging.ratio", "must be a number above 0 and at most 1, got=\"nan\" type=string env=PAGELITH_STAGING__RATIO"),
    ("PAGELITH_STAGING__RATIO", "2", "staging.ratio", "must be a number above 0 and at most 1, got=2 env=PAGELITH_STAGING__RATIO"),
    ("PAGELITH_SSD__DIRS", "", "ssd.dirs", "must be a list of at most 64 different directories, got=\"\" type=string env=PAGELITH_SSD__DIRS"),
    ("PAGELITH_SSD__DIRS", "/a,", "ssd.dirs", "must be a list of at most 64 different directories, but entry 1 is empty env=PAGELITH_SSD__DIRS"),
    ("PAGELITH_SSD__DIRS", "[\"/a\"", "ssd.dirs", "must be a list of at most 64 different directories, got=\"[\\\"/a\\\"\" type=string env=PAGELITH_SSD__DIRS"),
    ("PAGELITH_REMOTE__PEERS", "", "remote.peers", "must be a list of at most 64 peers, each an address or a table of address, transport, name, weight and preferred, got=\"\" type=string env=PAGELITH_REMOTE__PEERS"),
    ("PAGELITH_REMOTE__PEERS", "unix:/a,unix:/a", "remote.peers", "must be a list of at most 64 peers, each an address or a table of address, transport, name, weight and preferred, but entry 1 repeats the name \"unix:/a\" env=PAGELITH_REMOTE__PEERS"),
    ("PAGELITH_REMOTE__PEERS", "unix:/a,,here", "remote.peers", "must be a list of at most 64 peers, each an address or a table of address, transport, name, weight and preferred: entry 1 has as address \"\": an address begins with tcp:, rdma: or unix:, entry 2 has as address \"here\": an address begins with tcp:, rdma: or unix:, got=[..] type=list entries=3 env=PAGELITH_REMOTE__PEERS"),
    ("PAGELITH_REMOTE__PEERS", "[\"unix:/a\"", "remote.peers", "must be a list of at most 64 peers, each an address or a table of address, transport, name, weight and preferred, got=\"[\\\"unix:/a\\\"\" type=string env=PAGELITH_REMOTE__PEERS"),
    ("PAGELITH_DRAM__BYTS", "1", "PAGELITH_DRAM__BYTS", "is not a setting; did you mean PAGELITH_DRAM__BYTES?"),
    ("PAGELITH_DRAM_BYTES", "1", "PAGELITH_DRAM_BYTES", "is not a setting; did you mean PAGELITH_DRAM__BYTES?"),
    ("PAGELITH_dram__bytes", "1", "PAGELITH_dram__bytes", "is not a setting; did you mean PAGELITH_DRAM__BYTES?"),
    ("PAGELITH_SSD__SQPOLL_IDLE_MS", "10", "PAGELITH_SSD__SQPOLL_IDLE_MS", "was removed in version 0.1.0: leave it out, no kernel thread polls the rings"),
    ("PAGELITH_QQQQ", "1", "PAGELITH_QQQQ", "is not a setting; a setting is PAGELITH_ and its path with __ for dots, such as PAGELITH_DRAM__BYTES"),
];

fn facts() -> MachineLimits {
    MachineLimits::new(1 << 50, "test".to_owned())
}

/// The only problem of `result`.
fn only(result: Result<impl std::fmt::Debug, ConfigError>, row: &str) -> (String, String) {
    let error = result.expect_err(row);
    assert_eq!(error.problems.len(), 1, "row={row} problems:\n{error}");
    (error.problems[0].field.clone(), error.problems[0].message.clone())
}

#[test]
fn wrong_values_in_toml() {
    for (text, field, message) in TOML_ROWS {
        let text = format!("{SSD}{text}");
        let result = Config::builder().file(ConfigFormat::Toml, &text).validate(&facts());
        assert_eq!(only(result, &text), (field.to_string(), message.to_string()), "row={text}");
    }
    for (text, field, message) in SSD_ROWS {
        let result = Config::builder().file(ConfigFormat::Toml, text).validate(&facts());
        assert_eq!(only(result, text), (field.to_string(), message.to_string()), "row={text}");
    }
}

#[test]
fn wrong_values_in_json() {
    for (text, field, message) in JSON_ROWS {
        let result = Config::builder().file(ConfigFormat::Json, text).validate(&facts());
        assert_eq!(only(result, text), (field.to_string(), message.to_string()), "row={text}");
    }
}

#[test]
fn wrong_values_in_the_environment() {
    for (name, text, field, message) in ENV_ROWS {
        let result = Config::builder().env([(*name, *text)]).validate(&facts());
        assert_eq!(
            only(result, name),
            (field.to_string(), message.to_string()),
            "row={name}={text}"
        );
    }
}

#[test]
fn more_than_64_peers_are_refused() {
    let of = |count: usize| {
        let peers: Vec<String> = (0..count).map(|number| format!("unix:/{number}")).collect();
        Config::builder().env([("PAGELITH_REMOTE__PEERS", peers.join(","))]).validate(&facts())
    };
    assert_eq!(of(64).expect("valid").peers().len(), 64);
    let (field, message) = only(of(65), "65 peers");
    assert!(field == "remote.peers" && message.contains("entries=65"), "{message}");
    let mut config = Config::default();
    let peer = |number| {
        PeerConfig::from(format!("unix:/{number}").parse::<Address>().expect("an address"))
    };
    config.remote.peers = (0..65).map(peer).collect();
    let (field, message) = only(config.validate(&facts()), "65 peers of code");
    assert!(field == "remote.peers" && message.ends_with("but there are 65"), "{message}");
}

#[test]
fn peer_name_above_255_bytes_is_refused() {
    let of = |bytes: usize| {
        let text =
            format!("remote.peers = [{{address = \"unix:/a\", name = \"{}\"}}]", "n".repeat(bytes));
        Config::from_toml_str(&text)
    };
    assert_eq!(of(255).expect("valid").remote.peers[0].name.len(), 255);
    let (field, message) = only(of(256), "256 bytes");
    let why = "but entry 0 has a name of 256 bytes, and 255 are the most";
    assert!(field == "remote.peers" && message.ends_with(why), "{message}");
}

#[test]
fn every_setting_has_rows() {
    assert!(TOML_ROWS.len() + SSD_ROWS.len() + JSON_ROWS.len() + ENV_ROWS.len() >= 80);
    for field in fields() {
        let rows = TOML_ROWS.iter().chain(SSD_ROWS).filter(|row| row.1 == field.path()).count();
        assert!(rows > 0, "no wrong value is tried for {}", field.path());
    }
}
