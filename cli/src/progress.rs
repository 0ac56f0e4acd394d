//! The progress bar of long commands.

use indicatif::{ProgressBar, ProgressStyle};

/// A bar of this length, drawn on stderr, only if that is a terminal.
pub(crate) fn progress_bar(length: u64) -> ProgressBar {
    let bar = ProgressBar::new(length);
    let style =
        ProgressStyle::with_template("{elapsed_precise} {wide_bar} {percent:>3} % {eta} left");
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar
}
