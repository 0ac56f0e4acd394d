//! What is said aloud when a store is opened: what it found, what moves the bytes and why, and the memory it
//! took. On stderr: stdout is for results.

use pagelith::OpenReport;

use crate::output::log;

/// Which side moves the bytes to and from the SSD, as `--io` spells it; `off` without an SSD tier.
pub(crate) fn io(report: &OpenReport) -> String {
    report.side.map_or_else(|| "off".to_owned(), |side| format!("{side:?}").to_lowercase())
}

/// Say it.
pub(crate) fn opened(report: &OpenReport) {
    log!(
        "store {} io={} reason={:?} {} segments={} segment_bytes={} objects={} torn_records={} open_ms={:.1}",
        if report.made { "made" } else { "opened" },
        io(report),
        report.side_reason,
        report.memory,
        report.segments,
        report.segment_bytes,
        report.objects,
        report.torn_records,
        report.recovery.as_secs_f64() * 1e3,
    );
}
