//! The per-batch tier summary (`log.batch_summary`).

use std::collections::BTreeMap;

use crate::api::outcome::Tier;
use crate::read::item::{BatchItem, ItemOutcome};

/// Log how many objects came from each tier, and how many missed for each cause.
pub(crate) fn log_gets(items: &[BatchItem]) {
    let (mut memory, mut ssd, mut remote, mut failed) = (0u64, 0u64, 0u64, 0u64);
    let mut miss: BTreeMap<String, u64> = BTreeMap::new();
    for item in items {
        match item.outcome() {
            Some(ItemOutcome::Hit(hit)) => match hit.tier() {
                Tier::Memory => memory += 1,
                Tier::Ssd => ssd += 1,
                _ => remote += 1,
            },
            Some(ItemOutcome::Miss(cause)) => *miss.entry(cause.to_string()).or_default() += 1,
            Some(ItemOutcome::Failed(_)) | None => failed += 1,
        }
    }
    tracing::info!(objects = items.len(), memory, ssd, remote, ?miss, failed, "get batch");
}
