//! The table of settings, one row each. Reading, checking, suggestions, names of environment
//! variables and the reference that `pagelith` prints all use this table, so a setting missing here
//! cannot be set.

use pagelith_layouts::checksum::BLOCK_BYTES;
use pagelith_tiers::dram::arena::ARENA_BYTES_MAX;

use super::Config;
use super::SEGMENT_MAX;
use super::choice::{DramPin, DramPolicy, Promote, SsdAdmissionRule, SsdIo, SsdPolicy};
use super::node::Node;
use super::rule::{Rule, SizeConstraint, Value};
use super::setting::Setting;
use super::size::Size;

/// Prefix of every environment variable that is a setting.
pub const ENV_PREFIX: &str = "PAGELITH_";

/// One setting.
pub struct Field {
    path: &'static str,
    rule: Rule,
    read: fn(&mut Config, &Node) -> Result<(), String>,
    value: for<'a> fn(&'a Config) -> Value<'a>,
}

/// A row for a member of [`Config`]; the path is spelled like the member.
macro_rules! row {
    ($section:ident . $name:ident, $rule:expr) => {
        row!(@ concat!(stringify!($section), ".", stringify!($name)), [$section.$name], $rule)
    };
    ($name:ident, $rule:expr) => { row!(@ stringify!($name), [$name], $rule) };
    (@ $path:expr, [$($member:tt)+], $rule:expr) => {
        Field {
            path: $path,
            rule: $rule,
            read: |config, node| {
                config.$($member)+ = Setting::read(node)?;
                Ok(())
            },
            value: |config| config.$($member)+.value(),
        }
    };
}

const TIB: Size = Size::gib(1024);
const DRAM_MAX: Size = Size::gib(8 << 10);
const MEMORY_MAX: Size = Size::gib(64 << 10);
const SSD_MAX: Size = Size::gib(64 << 10);
const SEGMENT_BYTES_MAX: Size = Size::mib(256);
/// More than a drive of today can write.
const WRITES_A_DAY_MAX: Size = Size::gib(1 << 20);
const KIB_64: Size = Size::kib(64);

const _: () = assert!(DRAM_MAX.bytes() <= ARENA_BYTES_MAX);
// The other files take the space of at least one segment.
const _: () = assert!(SSD_MAX.bytes() / SEGMENT_BYTES_MAX.bytes() <= SEGMENT_MAX as u64 + 1);

static FIELDS: [Field; 50] = [
    row!(deadline_ms, Rule::Count { min: 1, max: 3_600_000 }),
    row!(close_timeout_ms, Rule::Count { min: 1, max: 3_600_000 }),
    row!(namespaces_max, Rule::Count { min: 1, max: 65_536 }),
    row!(dram.bytes, Rule::SizeOrZero { min: KIB_64, max: DRAM_MAX }),
    row!(dram.policy, Rule::Choice(DramPolicy::NAMES)),
    row!(dram.promote, Rule::Choice(Promote::NAMES)),
    row!(dram.verify_ratio, Rule::Ratio { min: 0.0, max: 1.0 }),
    row!(dram.shared, Rule::Flag),
    row!(dram.prefault, Rule::Flag),
    row!(dram.pin, Rule::Choice(DramPin::NAMES)),
    row!(ssd.bytes, Rule::SizeOrZero { min: Size::mib(1), max: SSD_MAX }),
    row!(ssd.dirs, Rule::Dirs),
    row!(
        ssd.segment_bytes,
        Rule::Size { min: Size::mib(1), max: SEGMENT_BYTES_MAX, grain: SizeConstraint::PowerOfTwo }
    ),
    row!(ssd.policy, Rule::Choice(SsdPolicy::NAMES)),
    row!(ssd.reinsert_ratio, Rule::Ratio { min: 0.0, max: 0.25 }),
    row!(ssd.admission, Rule::Choice(SsdAdmissionRule::NAMES)),
    row!(ssd.min_reuse, Rule::Ratio { min: 0.0, max: 1.0 }),
    row!(ssd.thrift, Rule::Ratio { min: 0.0, max: 2.0 }),
    row!(ssd.write_budget, Rule::SizeOrZero { min: Size::mib(1), max: WRITES_A_DAY_MAX }),
    row!(ssd.io, Rule::Choice(SsdIo::NAMES)),
    row!(ssd.write_depth, Rule::Count { min: 1, max: 64 }),
    row!(ssd.write_depth_reading, Rule::Count { min: 1, max: 64 }),
    row!(
        ssd.write_bytes,
        Rule::Size { min: KIB_64, max: Size::mib(16), grain: SizeConstraint::MultipleOf(4096) }
    ),
    row!(ssd.headers_bytes, Rule::SizeOrZero { min: KIB_64, max: MEMORY_MAX }),
    row!(ssd.checkpoint_segments, Rule::Count { min: 0, max: u32::MAX as u64 }),
    row!(ssd.probe_ms, Rule::Count { min: 1, max: 3_600_000 }),
    row!(ssd.probe_max_ms, Rule::Count { min: 1, max: 3_600_000 }),
    row!(ssd.quarantine_after, Rule::Count { min: 1, max: 1_000_000 }),
    row!(ssd.scrub_bytes_per_s, Rule::SizeOrZero { min: Size::kib(4), max: TIB }),
    row!(remote.peers, Rule::Peers),
    row!(remote.key, Rule::File),
    row!(remote.local_hostname, Rule::HostName),
    row!(rdma.serve, Rule::Flag),
    row!(rdma.devices, Rule::RdmaDevices),
    row!(rdma.gpu, Rule::Count { min: 0, max: 1023 }),
    row!(rdma.gid_index, Rule::Count { min: 0, max: 255 }),
    row!(staging.bytes, Rule::Size { min: KIB_64, max: TIB, grain: SizeConstraint::Any }),
    row!(staging.ratio, Rule::RatioAboveZero { max: 1.0 }),
    // Whole checksum blocks, so that each chunk can be verified separately.
    row!(
        staging.chunk_bytes,
        Rule::Size {
            min: KIB_64,
            max: Size::mib(256),
            grain: SizeConstraint::MultipleOf(BLOCK_BYTES as u64)
        }
    ),
    row!(groups.deadline_ms, Rule::Count { min: 1, max: 3_600_000 }),
    row!(events.max, Rule::Count { min: 0, max: 1 << 20 }),
    row!(index.max_objects, Rule::Count { min: 1, max: 1 << 32 }),
    row!(read.depth, Rule::Count { min: 1, max: 1024 }),
    row!(read.prefill_tokens_per_s, Rule::Count { min: 0, max: 1_000_000_000 }),
    row!(read.page_tokens, Rule::Count { min: 0, max: 65_536 }),
    row!(
        memory.reserve,
        Rule::Size { min: Size::ZERO, max: MEMORY_MAX, grain: SizeConstraint::Any }
    ),
    row!(log.batch_summary, Rule::Flag),
    row!(namespaces.counted, Rule::Count { min: 0, max: 512 }),
    row!(namespaces.limits, Rule::Limits),
    row!(hints.trust, Rule::Ratio { min: 0.0, max: 1.0 }),
];

/// Every setting, in the order of the reference.
pub fn fields() -> &'static [Field] {
    &FIELDS
}

pub(super) fn field_at(path: &str) -> Option<&'static Field> {
    FIELDS.iter().find(|field| field.path == path)
}

/// Whether `path` names a table of settings rather than a setting.
pub(super) fn is_section(path: &str) -> bool {
    FIELDS
        .iter()
        .any(|field| field.path.split_once('.').is_some_and(|(section, _)| section == path))
}

/// The environment variable of the setting at `path`.
pub(super) fn env_name(path: &str) -> String {
    format!("{ENV_PREFIX}{}", path.replace('.', "__").to_ascii_uppercase())
}

impl Field {
    /// The path in a file, such as `ssd.segment_bytes`.
    pub fn path(&self) -> &'static str {
        self.path
    }

    /// The environment variable, such as `PAGELITH_SSD__SEGMENT_BYTES`.
    pub fn env_name(&self) -> String {
        env_name(self.path)
    }

    /// The allowed values, such as `a power of two between 1MiB and 256MiB`.
    pub fn expects(&self) -> String {
        self.rule.to_string()
    }

    /// The value in `config` as text.
    pub fn format_value(&self, config: &Config) -> String {
        (self.value)(config).to_string()
    }

    /// Set the node's value in `config`; a message if it is not of the setting's type. A value of
    /// the right type but out of range is set, and [`Field::check`] reports it.
    pub(super) fn put(&self, config: &mut Config, node: &Node) -> Result<(), String> {
        (self.read)(config, node).map_err(|detail| {
            let colon = if detail.is_empty() { "" } else { ": " };
            format!("must be {}{colon}{detail}, got={node}", self.rule)
        })
    }

    /// Whether the value in `config` is within its range; if not, the message.
    pub(super) fn check(&self, config: &Config) -> Result<(), String> {
        self.rule.check(&(self.value)(config))
    }

    pub(super) fn node_of_text(&self, text: &str) -> Node {
        self.rule.node_of_text(text)
    }
}
