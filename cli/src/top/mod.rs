//! `pagelith top`: rates of a store process, by tier and namespace, until a key ends it.

mod frame;
mod terminal;

use std::io::{IsTerminal, stdin, stdout};
use std::time::Duration;

use anyhow::bail;
use clap::Args;

use self::frame::Frame;
use self::terminal::Terminal;
use crate::attached_stats::{AttachedStats, Sample, StoreAddress};
use crate::exit::RunStatus;
use crate::output::{columns, out};

/// Show what a store process does, by tier and namespace, and refresh it.
///
/// `q` or Ctrl-C ends it. If input or output is not a terminal, or with --once, it prints one frame
/// and ends. Rates are those of the last interval. Exit status: 0; 2 if the store process does not
/// answer at the start or refuses this one.
#[derive(Args, Debug)]
#[command(after_help = "Example: pagelith top tcp:127.0.0.1:7411 --interval 5")]
pub(crate) struct TopArgs {
    #[command(flatten)]
    store: StoreAddress,
    /// Seconds between two frames, 0.1 to 3600
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = interval)]
    interval: Duration,
    /// Print one frame, after one interval
    #[arg(long)]
    once: bool,
}

fn interval(text: &str) -> anyhow::Result<Duration> {
    let seconds: f64 = text.parse()?;
    if !(0.1..=3600.0).contains(&seconds) {
        bail!("must be between 0.1 and 3600");
    }
    Ok(Duration::from_secs_f64(seconds))
}

pub(crate) fn run(args: &TopArgs) -> anyhow::Result<RunStatus> {
    let store = args.store.attach()?;
    let before = store.take()?;
    let address = args.store.address.to_string();
    if args.once || !stdin().is_terminal() || !stdout().is_terminal() {
        std::thread::sleep(args.interval);
        let now = store.take()?;
        let frame = Frame { address: &address, before: &before, now: &now, error: None };
        out!("{}", frame.lines(columns(), None).join("\n"))?;
    } else {
        refresh(&store, &address, before, args.interval)?;
    }
    Ok(RunStatus::Clean)
}

/// Draw frames until a key or a signal ends it. While the store process does not answer, the last
/// frame stays, with the error.
fn refresh(
    store: &AttachedStats,
    address: &str,
    first: Sample,
    interval: Duration,
) -> anyhow::Result<()> {
    let mut terminal = Terminal::open()?;
    let (mut before, mut now, mut error) = (first.clone(), first, None);
    loop {
        let frame = Frame { address, before: &before, now: &now, error: error.as_deref() };
        let (columns, rows) = terminal.size();
        terminal.draw(&frame.lines(Some(columns), Some(rows)))?;
        if terminal.ends_within(interval)? {
            return Ok(());
        }
        match store.take() {
            Ok(sample) => (before, now, error) = (now, sample, None),
            Err(why) => error = Some(format!("{why:#}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interval_has_bounds() {
        assert_eq!(interval("0.5").unwrap(), Duration::from_millis(500));
        for wrong in ["0", "0.09", "3601", "-1", "nan", "inf", "x"] {
            assert!(interval(wrong).is_err(), "{wrong}");
        }
    }
}
