//! The hit ratio over time, in a bounded number of windows for runs of any length.

/// Maximum number of windows; beyond that neighbours are merged. A plot has about that many
/// columns.
const WINDOWS_MAX: usize = 128;

/// Pages requested and found in one window of the run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Window {
    /// Pages requested.
    pub(crate) pages: u64,
    /// Prefix hits in DRAM.
    pub(crate) dram: u64,
    /// Prefix hits on SSD.
    pub(crate) ssd: u64,
    /// Prefix hits at peers.
    pub(crate) remote: u64,
}

/// Windows of equal numbers of requests; the last may be shorter.
#[derive(Clone, Debug)]
pub(crate) struct Series {
    windows: Vec<Window>,
    /// Requests per window.
    width: u64,
    /// Requests in the last window.
    filled: u64,
}

impl Series {
    pub(crate) fn new() -> Series {
        Series { windows: Vec::new(), width: 1, filled: 1 }
    }

    /// Add a request.
    pub(crate) fn add(&mut self, request: Window) {
        if self.filled == self.width {
            if self.windows.len() == WINDOWS_MAX {
                self.merge();
            }
            self.windows.push(Window::default());
            self.filled = 0;
        }
        if let Some(last) = self.windows.last_mut() {
            last.pages += request.pages;
            last.dram += request.dram;
            last.ssd += request.ssd;
            last.remote += request.remote;
        }
        self.filled += 1;
    }

    fn merge(&mut self) {
        let sum = |pair: &[Window]| {
            pair.iter().fold(Window::default(), |a, b| Window {
                pages: a.pages + b.pages,
                dram: a.dram + b.dram,
                ssd: a.ssd + b.ssd,
                remote: a.remote + b.remote,
            })
        };
        self.windows = self.windows.chunks(2).map(sum).collect();
        self.width *= 2;
    }

    /// Requests per window.
    pub(crate) fn width(&self) -> u64 {
        self.width
    }

    /// The windows so far.
    pub(crate) fn windows(&self) -> &[Window] {
        &self.windows
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn merged_windows_keep_all_counts() {
        let mut series = Series::new();
        for n in 1..=1000 {
            series.add(Window { pages: 3, dram: 2, ssd: n % 2, remote: 1 });
            let windows = series.windows();
            assert!(windows.len() <= WINDOWS_MAX, "n={n}");
            assert_eq!(windows.iter().map(|w| w.pages).sum::<u64>(), 3 * n);
            assert_eq!(windows.iter().map(|w| w.dram).sum::<u64>(), 2 * n);
            let full = &windows[..windows.len() - 1];
            assert!(full.iter().all(|w| w.pages == 3 * series.width()), "n={n}");
        }
        assert_eq!(series.width(), 8);
    }
}
