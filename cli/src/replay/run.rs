//! A whole replay: open, request by request, reopen on the way if asked to, close, report.

use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use indicatif::{ProgressBar, ProgressStyle};
use pagelith::Store;
use pagelith::config::ValidConfig;
use pagelith::transport::address::Address;
use pagelith::transport::auth::Key;

use super::live::{Counted, Live};
use super::pages::Pages;
use super::report::{Costs, Report};
use super::request::Harness;
use super::series::Series;
use super::source::Source;
use crate::content::Content;
use crate::meter::rss_peak_bytes;
use crate::output::log;
use crate::peers;

/// What to replay, and how.
pub(crate) struct Plan {
    pub(crate) on: On,
    pub(crate) pages: Pages,
    pub(crate) content: Content,
    pub(crate) reopen_at: Option<u64>,
}

/// Whose store it is.
pub(crate) enum On {
    /// This process's own.
    Own(Box<ValidConfig>),
    /// A store process's, and what this process is known by there.
    Attached(Address, Option<Key>),
}

/// What the stores of a replay say, together: each counts from its own open, and one that was open before had counted
/// something already.
#[derive(Default)]
struct Totals {
    before: Counted,
    sum: Counted,
}

impl Totals {
    fn add(&mut self, counted: Counted) {
        // A store process that was started again counts from there.
        let since = |now: u64, before: u64| now.checked_sub(before).unwrap_or(now);
        self.sum.bytes_to_device += since(counted.bytes_to_device, self.before.bytes_to_device);
        self.sum.dram_peak_bytes = self.sum.dram_peak_bytes.max(counted.dram_peak_bytes);
        self.sum.groups_dropped += since(counted.groups_dropped, self.before.groups_dropped);
        self.before = Counted::default();
    }
}

/// Replay every request of `source`.
pub(crate) fn replay(plan: &Plan, source: Source) -> anyhow::Result<(Report, Series)> {
    let mut live = open(plan)?;
    let io = match &live {
        Live::Own { store, .. } => crate::open_report::io_backend(store.opened()),
        Live::Attached(_) => "attached".to_owned(),
    };
    let mut harness = Harness::new(plan);
    let mut totals = Totals { before: live.counted(), sum: Counted::default() };
    let mut reopen: Option<Duration> = None;
    let bar = progress_bar();
    let mut source = source;
    let mut requests = 0;
    while let Some(request) = source.next() {
        requests += 1;
        let request = request?;
        // A model's page is stored when it is whole.
        let pages = if plan.pages.model.is_some() { request.whole_blocks } else { request.hash_ids.len() };
        harness.dies = plan.reopen_at == Some(requests);
        let ids = &request.hash_ids[..pages];
        harness.request(&mut live, ids).with_context(|| format!("request={requests}"))?;
        if plan.reopen_at == Some(requests) {
            totals.add(live.counted());
            let Live::Own { session, store } = live else { bail!("only a store of one's own is reopened") };
            drop(session);
            store.abandon();
            let start = Instant::now();
            live = open(plan).context("cannot reopen")?;
            reopen = Some(start.elapsed());
        }
        let (at, of) = source.progress();
        bar.set_length(of);
        bar.set_position(at);
    }
    bar.finish_and_clear();
    if requests == 0 {
        bail!("there is no request to replay source={}", source.name());
    }
    if reopen.is_none() && plan.reopen_at.is_some() {
        log!("there were fewer requests than --reopen-at requests={requests}");
    }
    let flushed = harness.meter.call(|| live.flush()).0;
    unless_unavailable(flushed).context("cannot flush")?;
    totals.add(live.counted());
    let closed = harness.meter.call(|| live.close()).0;
    unless_unavailable(closed).context("cannot close")?;
    if harness.out_of_reach > 0 {
        log!("the store process was out of reach times={}", harness.out_of_reach);
    }
    let totals = totals.sum;
    harness.tally.groups.waiting_dropped = totals.groups_dropped;
    let costs = Costs {
        bytes_to_device: totals.bytes_to_device,
        cpu: harness.meter.store_cpu(),
        dram_peak_bytes: totals.dram_peak_bytes,
        rss_peak_bytes: rss_peak_bytes(),
        reopen,
        io,
    };
    Ok((Report::new(&harness.tally, &plan.pages, costs), harness.tally.series))
}

fn open(plan: &Plan) -> anyhow::Result<Live> {
    match &plan.on {
        On::Own(config) => {
            let store = Store::open(ValidConfig::clone(config)).context("cannot open the store")?;
            crate::open_report::log_opened(store.opened());
            let session = Box::new(store.session().context("cannot begin a session")?);
            Ok(Live::Own { session, store })
        }
        On::Attached(address, key) => Ok(Live::Attached(peers::attach(address, key.as_ref())?)),
    }
}

/// Drawn on stderr, and only if that is a terminal.
fn progress_bar() -> ProgressBar {
    let bar = ProgressBar::new(1);
    let style = ProgressStyle::with_template("{elapsed_precise} {wide_bar} {percent:>3} % {eta} left");
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar
}

/// A device that went bad is a part of what a replay measures: it is said, and the replay ends like any other.
fn unless_unavailable<T>(ended: pagelith::Result<T>) -> pagelith::Result<()> {
    match ended {
        Err(error) if error.kind == pagelith::ErrorKind::Unavailable => {
            log!("not everything is durable: {error}");
            Ok(())
        }
        ended => ended.map(|_| ()),
    }
}
