//! Limits of namespaces as settings: how an entry of the list is read, and the rules for the list.

use std::collections::HashSet;
use std::fmt;

use pagelith_layouts::ids::NamespaceId;
use serde::{Serialize, Serializer};

use super::choice::WhenFull;
use super::node::{Node, quoted};
use super::size::Size;

/// Most namespaces with limits: as many as can be counted separately.
pub(super) const LIMITS_MAX: usize = 512;
/// Ten years.
const IDLE_DAYS_MAX: u32 = 3650;
/// The keys of an entry, in the order of the reference.
const KEYS: [&str; 5] = ["namespace", "dram_bytes", "ssd_bytes", "when_full", "idle_days"];

/// The limits of one namespace.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct NamespaceLimits {
    /// Its identifier, 32 hexadecimal digits, as `pagelith inspect` prints it. No default.
    #[serde(serialize_with = "as_text")]
    pub namespace: NamespaceId,
    /// Most bytes of the arena for its objects, each rounded up to 4096. Default none; at most
    /// `dram.bytes`.
    pub dram_bytes: Option<Size>,
    /// Most bytes of its records in the log, headers included. Default none; at least a segment and
    /// at most `ssd.bytes`.
    pub ssd_bytes: Option<Size>,
    /// What happens to a put that exceeds a limit: `refuse` (default), its outcome is `Refused`; or
    /// `evict-own`, the namespace's own oldest objects leave first.
    pub when_full: WhenFull,
    /// Days without a request after which reclaim no longer writes its objects again. Default none;
    /// 1 to 3650.
    pub idle_days: Option<u32>,
}

fn as_text<S: Serializer>(id: &NamespaceId, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(id)
}

impl NamespaceLimits {
    /// Those of a namespace without any limit.
    pub fn of(namespace: NamespaceId) -> NamespaceLimits {
        NamespaceLimits {
            namespace,
            dram_bytes: None,
            ssd_bytes: None,
            when_full: WhenFull::Refuse,
            idle_days: None,
        }
    }
}

impl fmt::Display for NamespaceLimits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let NamespaceLimits { namespace, dram_bytes, ssd_bytes, when_full, idle_days } = self;
        write!(f, "{namespace}")?;
        dram_bytes.iter().try_for_each(|bytes| write!(f, " dram_bytes={bytes}"))?;
        ssd_bytes.iter().try_for_each(|bytes| write!(f, " ssd_bytes={bytes}"))?;
        write!(f, " when_full={}", when_full.name())?;
        idle_days.iter().try_for_each(|days| write!(f, " idle_days={days}"))
    }
}

/// The limits of a list, or all its faults other than a wrong type.
pub(super) fn read(node: &Node) -> Result<Vec<NamespaceLimits>, String> {
    let Node::List(nodes) = node else { return Err(String::new()) };
    if nodes.len() > LIMITS_MAX {
        // The rule's own message states the number of entries.
        return Err(String::new());
    }
    let mut limits = Vec::with_capacity(nodes.len());
    let mut all_faults = Vec::new();
    for (number, node) in nodes.iter().enumerate() {
        match read_entry(node) {
            Ok(entry) => limits.push(entry),
            Err(faults) => {
                all_faults.extend(faults.iter().map(|fault| format!("entry {number} {fault}")));
            }
        }
    }
    if all_faults.is_empty() { Ok(limits) } else { Err(all_faults.join(", ")) }
}

fn read_entry(node: &Node) -> Result<NamespaceLimits, Vec<String>> {
    let Node::Table(fields) = node else { return Err(vec![format!("is {node}")]) };
    let mut entry = NamespaceLimits::of(NamespaceId([0; 16]));
    let (mut faults, mut is_named) = (Vec::new(), false);
    for (key, value) in fields {
        let mut must = |what: &str| {
            faults.push(format!("has as {} {value}, which must be {what}", quoted(key)));
        };
        match (key.as_str(), value) {
            // As if it were left out.
            ("dram_bytes" | "ssd_bytes" | "idle_days", Node::Null) => {}
            ("namespace", Node::Text(text)) if NamespaceId::from_hex(text).is_some() => {
                entry.namespace = NamespaceId::from_hex(text).unwrap_or(entry.namespace);
                is_named = true;
            }
            ("namespace", _) => {
                must("32 hexadecimal digits");
                is_named = true;
            }
            ("dram_bytes" | "ssd_bytes", value) => match read_size(value) {
                Some(size) if key == "dram_bytes" => entry.dram_bytes = Some(size),
                Some(size) => entry.ssd_bytes = Some(size),
                None => must("a size above 0"),
            },
            ("when_full", Node::Text(text)) if WhenFull::of_name(text).is_some() => {
                entry.when_full = WhenFull::of_name(text).unwrap_or_default();
            }
            ("when_full", _) => must(&format!("one of {}", WhenFull::NAMES.join(", "))),
            ("idle_days", Node::Integer(days)) if u32::try_from(*days).is_ok() => {
                entry.idle_days = u32::try_from(*days).ok();
            }
            ("idle_days", _) => must("a number of days"),
            _ => faults.push(format!("has {}, and may have {}", quoted(key), KEYS.join(", "))),
        }
    }
    if !is_named {
        faults.push("has no namespace".to_owned());
    }
    if faults.is_empty() { Ok(entry) } else { Err(faults) }
}

fn read_size(node: &Node) -> Option<Size> {
    let size = match node {
        Node::Integer(bytes) => Size::from_bytes(u64::try_from(*bytes).ok()?),
        Node::Text(text) => text.parse().ok()?,
        _ => return None,
    };
    (size > Size::ZERO).then_some(size)
}

/// Faults of limits of the right type.
pub(super) fn faults(limits: &[NamespaceLimits]) -> Vec<String> {
    if limits.len() > LIMITS_MAX {
        return vec![format!("there are {}", limits.len())];
    }
    let (mut faults, mut seen) = (Vec::new(), HashSet::new());
    for (number, entry) in limits.iter().enumerate() {
        let NamespaceLimits { namespace, dram_bytes, ssd_bytes, idle_days, .. } = entry;
        if !seen.insert(namespace) {
            faults.push(format!("entry {number} repeats the namespace {namespace}"));
        }
        if dram_bytes.is_none() && ssd_bytes.is_none() && idle_days.is_none() {
            faults.push(format!("entry {number} has no dram_bytes, ssd_bytes or idle_days"));
        }
        if let Some(days) = idle_days.filter(|days| !(1..=IDLE_DAYS_MAX).contains(days)) {
            faults.push(format!(
                "entry {number} has as idle_days {days}, which must be between 1 and {IDLE_DAYS_MAX}"
            ));
        }
    }
    faults
}
