//! The log line of an opened store: its content, its I/O backend and the reason for that, its
//! memory.

use pagelith::OpenReport;

use crate::output::log;

/// The I/O backend of the SSD tier, spelled as for `--io`; `off` without an SSD tier.
pub(crate) fn io_backend(report: &OpenReport) -> String {
    report.backend.map_or_else(|| "off".to_owned(), |backend| format!("{backend:?}").to_lowercase())
}

/// Log an opened store on stderr.
pub(crate) fn log_opened(report: &OpenReport) {
    log!(
        "store {} io={} reason={:?} {} segments={} segment_bytes={} objects={} torn_records={} open_ms={:.1}",
        if report.made { "made" } else { "opened" },
        io_backend(report),
        report.backend_reason,
        report.memory,
        report.segments,
        report.segment_bytes,
        report.objects,
        report.torn_records,
        report.recovery.as_secs_f64() * 1e3,
    );
}
