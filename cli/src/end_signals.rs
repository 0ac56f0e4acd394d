//! The signals that end a command.

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

/// The signals that end a command after it has cleaned up. SIGHUP only if it is not ignored, as
/// under `nohup`.
pub(crate) fn end_signals() -> Vec<i32> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mut signals = vec![SIGTERM, SIGINT];
    signals.extend((!is_ignored(SIGHUP, &status)).then_some(SIGHUP));
    signals
}

/// Whether the process of this `/proc/PID/status` ignores a signal.
fn is_ignored(signal: i32, status: &str) -> bool {
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    ignored >> (signal - 1) & 1 == 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signal_in_the_ignore_mask_is_ignored() {
        let status = |mask: &str| format!("Name:\tx\nSigBlk:\t0000000000000001\nSigIgn:\t{mask}\n");
        assert!(is_ignored(SIGHUP, &status("0000000000001001")));
        assert!(!is_ignored(SIGHUP, &status("0000000000001002")) && !is_ignored(SIGHUP, ""));
    }
}
