//! A whole replay: open, all requests with an optional reopen in between, close, report.

use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use pagelith::config::ValidConfig;
use pagelith::{Options, Store};

use super::buffers::Buffers;
use super::plan::{ReplayPlan, Target};
use super::report::{Costs, Report};
use super::request::RequestRunner;
use super::series::Series;
use super::source::RequestSource;
use super::target::{OpenTarget, StoreCounters};
use crate::meter::rss_peak_bytes;
use crate::output::log;
use crate::peers;
use crate::progress::progress_bar;

/// The sum of the counters of all stores of a replay. Each store counts from its open, so the
/// counters of a store that was open before are subtracted.
#[derive(Default)]
struct Totals {
    before: StoreCounters,
    sum: StoreCounters,
}

impl Totals {
    fn add(&mut self, counters: StoreCounters) {
        // A restarted store process counts from zero.
        let since = |now: u64, before: u64| now.checked_sub(before).unwrap_or(now);
        self.sum.bytes_to_device += since(counters.bytes_to_device, self.before.bytes_to_device);
        self.sum.dram_peak_bytes = self.sum.dram_peak_bytes.max(counters.dram_peak_bytes);
        self.sum.groups_dropped += since(counters.groups_dropped, self.before.groups_dropped);
        for (cause, now) in counters.absent {
            let before = self.before.absent.get(&cause).copied().unwrap_or(0);
            *self.sum.absent.entry(cause).or_default() += since(now, before);
        }
        self.before = StoreCounters::default();
    }
}

/// Replay every request of `source`.
pub(crate) fn replay(plan: &ReplayPlan, source: RequestSource) -> anyhow::Result<(Report, Series)> {
    let mut target = open(plan)?;
    let io = match &target {
        OpenTarget::Embedded { store, .. } => crate::open_report::io_backend(store.opened()),
        OpenTarget::Attached { .. } => "attached".to_owned(),
    };
    let mut harness = RequestRunner::new(plan);
    harness.buffers = Buffers::registered_with(target.rdma().cloned());
    let mut totals = Totals { before: target.counters(), sum: StoreCounters::default() };
    let mut reopen: Option<Duration> = None;
    let bar = progress_bar(1);
    let mut source = source;
    let mut requests = 0;
    while let Some(request) = source.next() {
        requests += 1;
        let request = request?;
        // A page of a model is stored only if its block is complete.
        let pages =
            if plan.pages.model.is_some() { request.whole_blocks } else { request.hash_ids.len() };
        harness.crash_now = plan.reopen_at == Some(requests);
        let ids = &request.hash_ids[..pages];
        harness.request(&mut target, ids).with_context(|| format!("request={requests}"))?;
        if plan.reopen_at == Some(requests) {
            totals.add(target.counters());
            let OpenTarget::Embedded { session, store } = target else {
                bail!("only a store of this process can be reopened")
            };
            drop(session);
            store.abandon();
            let start = Instant::now();
            target = open(plan).context("cannot reopen")?;
            reopen = Some(start.elapsed());
            harness.buffers = Buffers::registered_with(target.rdma().cloned());
        }
        let (at, of) = source.progress();
        bar.set_length(of);
        bar.set_position(at);
    }
    bar.finish_and_clear();
    if requests == 0 {
        bail!("there is no request to replay, the source is empty source={}", source.name());
    }
    if reopen.is_none() && plan.reopen_at.is_some() {
        log!("there were fewer requests than --reopen-at requests={requests}");
    }
    let flushed = harness.meter.call(|| target.pages().flush(Options::default())).0;
    unless_unavailable(flushed).context("cannot flush")?;
    totals.add(target.counters());
    let closed = harness.meter.call(|| target.close()).0;
    unless_unavailable(closed).context("cannot close")?;
    if harness.unreachable > 0 {
        log!("the store process was unreachable times={}", harness.unreachable);
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
        absent: totals.absent,
    };
    Ok((Report::new(&harness.tally, &plan.pages, costs), harness.tally.series))
}

fn open(plan: &ReplayPlan) -> anyhow::Result<OpenTarget> {
    match &plan.target {
        Target::Embedded(config) => {
            let store = Store::open(ValidConfig::clone(config)).context("cannot open the store")?;
            crate::open_report::log_opened(store.opened());
            let session = Box::new(store.session().context("cannot begin a session")?);
            Ok(OpenTarget::Embedded { session, store })
        }
        Target::Attached(address, key) => {
            let client = peers::attach(address, key.as_ref())?;
            Ok(OpenTarget::Attached { session: Box::new(client.session()), client })
        }
    }
}

/// A failed device is a valid result of a replay: it is logged, and the replay ends normally.
fn unless_unavailable<T>(ended: pagelith::Result<T>) -> pagelith::Result<()> {
    match ended {
        Err(error) if error.kind == pagelith::ErrorKind::Unavailable => {
            log!("not everything is durable: {error}");
            Ok(())
        }
        ended => ended.map(|_| ()),
    }
}
