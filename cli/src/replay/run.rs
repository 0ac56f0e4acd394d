//! A whole replay: open, request by request, reopen on the way if asked to, close, report.

use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use indicatif::{ProgressBar, ProgressStyle};
use pagelith::config::ValidConfig;
use pagelith::transport::address::Address;
use pagelith::transport::auth::Key;
use pagelith::{Options, Stats, Store};

use super::pages::Pages;
use super::report::{Costs, Report};
use super::request::{Harness, Live};
use super::series::Series;
use super::source::Source;
use crate::content::Content;
use crate::meter::rss_peak_bytes;
use crate::peers;

/// What to replay on.
pub(crate) struct Plan {
    pub(crate) config: ValidConfig,
    pub(crate) pages: Pages,
    pub(crate) content: Content,
    pub(crate) reopen_at: Option<u64>,
    /// Where the store's peers listen.
    pub(crate) remote: Vec<Address>,
    /// What it is known by there.
    pub(crate) key: Option<Key>,
}

/// What the stores of a replay say, together: each counts from its own open.
#[derive(Default)]
struct Totals {
    bytes_to_device: u64,
    dram_peak_bytes: u64,
    groups_dropped: u64,
}

impl Totals {
    fn add(&mut self, stats: &Stats) {
        self.bytes_to_device += stats.bytes_to_device;
        self.dram_peak_bytes = self.dram_peak_bytes.max(stats.dram_peak_bytes);
        self.groups_dropped += stats.groups_dropped;
    }
}

/// Replay every request of `source`.
pub(crate) fn replay(plan: &Plan, source: Source) -> anyhow::Result<(Report, Series)> {
    let mut live = open(plan)?;
    let io = crate::said::io(live.store.opened());
    let mut harness = Harness::new(plan);
    let mut totals = Totals::default();
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
            totals.add(&live.store.stats());
            let Live { session, store } = live;
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
        eprintln!("there were fewer requests than --reopen-at requests={requests}");
    }
    let flushed = harness.meter.call(|| live.store.flush(Options::default())).0;
    unless_unavailable(flushed).context("cannot flush")?;
    totals.add(&live.store.stats());
    let Live { session, store } = live;
    drop(session);
    let closed = harness.meter.call(|| store.close()).0;
    unless_unavailable(closed).context("cannot close")?;
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
    let peers = peers::of(&plan.remote, plan.key.as_ref());
    let store = Store::open_with_peers(plan.config.clone(), peers).context("cannot open the store")?;
    crate::said::opened(store.opened());
    let session = store.session().context("cannot begin a session")?;
    Ok(Live { session, store })
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
            eprintln!("not everything is durable: {error}");
            Ok(())
        }
        ended => ended.map(|_| ()),
    }
}
