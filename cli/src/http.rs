//! HTTP server of a store process, on loopback: `/metrics` in the OpenMetrics format, and
//! `/healthz`.

mod connection;
mod request;
mod response;
mod server;
#[cfg(test)]
mod tests;

use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use pagelith::io::staging::StagingPool;
use pagelith::io::system::SystemClock;
use pagelith::transport::address::Endpoint;
use pagelith::transport::limits::LinkLimits;
use pagelith::transport::resolve::Resolver;
use pagelith::{Stats, Store};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use serde_json::Value;

use self::request::Request;
use self::response::Response;
use self::server::Server;

/// The fields of [`Stats`] that are gauges; all others are counters.
const GAUGES: [&str; 18] = [
    "objects",
    "dram_objects",
    "dram_bytes",
    "dram_peak_bytes",
    "ssd_bytes",
    "index_bytes",
    "prefetch_waiting",
    "groups_waiting",
    "waiting_bytes",
    "segments_suspect",
    "segments_quarantined",
    "unflushed_bytes",
    "objects_pinned",
    "objects_leased",
    "readers",
    "rdma_rails",
    "rdma_rails_up",
    "rdma_registered_bytes",
];
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Time without a pass of the accept loop after which `/healthz` fails.
const ACCEPT_STALL: Duration = Duration::from_secs(10);
/// Interval at which it is checked, at the end of the process, whether clients are still served.
const LINKS_STEP: Duration = Duration::from_millis(10);

/// The HTTP server of a store process.
pub(crate) struct Http {
    server: Server,
    address: SocketAddr,
}

impl Http {
    /// Check that the address can be bound.
    pub(crate) fn check(endpoint: &Endpoint) -> anyhow::Result<()> {
        Http::bind(endpoint).map(drop)
    }

    /// Listen on loopback, at the first address of `endpoint` that can be bound.
    pub(crate) fn listen(endpoint: &Endpoint) -> anyhow::Result<Http> {
        let server = Server::new(Http::bind(endpoint)?);
        let listening = server.and_then(|server| Ok(Http { address: server.address()?, server }));
        listening.with_context(|| format!("cannot listen --metrics={endpoint}"))
    }

    fn bind(endpoint: &Endpoint) -> anyhow::Result<TcpListener> {
        let addresses = Resolver::default()
            .addresses(endpoint, LinkLimits::default().handshake)
            .with_context(|| format!("--metrics={endpoint}"))?;
        if !addresses.iter().all(|address| address.ip().is_loopback()) {
            bail!(
                "the address is not loopback, other hosts could read the metrics --metrics={endpoint}"
            );
        }
        TcpListener::bind(addresses.as_slice())
            .with_context(|| format!("cannot listen --metrics={endpoint}"))
    }

    /// The address of the listener, with the port in use if none was given.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serve requests until `stop` is set, which is checked at least every `wait`.
    pub(crate) fn run(
        &mut self,
        store: &Store,
        serving: &ServeState,
        stop: &AtomicBool,
        wait: Duration,
    ) {
        let clock = SystemClock::new();
        while !stop.load(Ordering::Relaxed) {
            self.server.poll(&clock, wait, &mut |request| respond(request, store, serving));
        }
    }
}

fn respond(request: Request<'_>, store: &Store, serving: &ServeState) -> Response {
    match (request.method, request.path) {
        ("GET" | "HEAD", "/metrics") => {
            let body = metrics(&store.stats(), &serving.gauges());
            Response { status: "200 OK", kind: OPEN_METRICS, body }
        }
        ("GET" | "HEAD", "/healthz") => {
            health(serving.since_accept_poll(), &store.stats().ssd_state)
        }
        ("GET" | "HEAD", _) => Response::text("404 Not Found", "try /metrics or /healthz\n"),
        _ => Response::text("405 Method Not Allowed", "only GET and HEAD\n"),
    }
}

/// The response to `/healthz`. An SSD tier that is off is no failure: DRAM still serves.
fn health(since_accept_poll: Duration, ssd_state: &str) -> Response {
    if since_accept_poll < ACCEPT_STALL {
        return Response::text("200 OK", format!("ok ssd_state={ssd_state}\n"));
    }
    let text =
        format!("the accept loop is stalled accept_loop_idle_s={}\n", since_accept_poll.as_secs());
    Response::text("503 Service Unavailable", text)
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Named {
    name: String,
}

/// State of a process that serves clients, for metrics and health.
pub(crate) struct ServeState {
    links: AtomicU64,
    pub(crate) staging: StagingPool,
    started: Instant,
    /// Time of the accept loop's last pass, in milliseconds since `started`.
    accept_poll_ms: AtomicU64,
}

/// Counts a client until it is dropped.
pub(crate) struct LinkCount<'a>(&'a AtomicU64);

impl Drop for LinkCount<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl ServeState {
    pub(crate) fn new(staging: StagingPool) -> ServeState {
        let (links, accept_poll_ms) = (AtomicU64::new(0), AtomicU64::new(0));
        ServeState { links, staging, started: Instant::now(), accept_poll_ms }
    }

    /// Count a client.
    pub(crate) fn count_link(&self) -> LinkCount<'_> {
        self.links.fetch_add(1, Ordering::Relaxed);
        LinkCount(&self.links)
    }

    /// Clients that are served now.
    pub(crate) fn links(&self) -> u64 {
        self.links.load(Ordering::Relaxed)
    }

    /// Wait until no client is served, at most `timeout`. False if some still are.
    pub(crate) fn wait_for_no_links(&self, timeout: Duration) -> bool {
        let began = Instant::now();
        while self.links() > 0 {
            if began.elapsed() >= timeout {
                return false;
            }
            std::thread::sleep(LINKS_STEP);
        }
        true
    }

    /// Record a pass of the accept loop.
    pub(crate) fn note_accept_poll(&self) {
        let now = u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.accept_poll_ms.store(now, Ordering::Relaxed);
    }

    /// Time since the last pass of the accept loop.
    fn since_accept_poll(&self) -> Duration {
        let last = Duration::from_millis(self.accept_poll_ms.load(Ordering::Relaxed));
        self.started.elapsed().saturating_sub(last)
    }

    fn gauges(&self) -> [(&'static str, &'static str, u64); 2] {
        [
            ("links", "clients", self.links()),
            ("transfer_bytes", "bytes of transfer memory in use", self.staging.in_use() as u64),
        ]
    }
}

fn metrics(stats: &Stats, serving: &[(&'static str, &'static str, u64)]) -> String {
    let mut registry = Registry::with_prefix("pagelith");
    for (name, help, value) in serving {
        let gauge = Gauge::<i64>::default();
        gauge.set(i64::try_from(*value).unwrap_or(i64::MAX));
        registry.register(*name, *help, gauge);
    }
    let fields = serde_json::to_value(stats).unwrap_or_default();
    for (name, value) in fields.as_object().into_iter().flatten() {
        let help = name.replace('_', " ");
        match value {
            Value::Number(number) if GAUGES.contains(&&**name) => {
                let gauge = Gauge::<i64>::default();
                gauge.set(number.as_i64().unwrap_or(i64::MAX));
                registry.register(name, help, gauge);
            }
            Value::Number(number) => {
                let counter = Counter::<u64>::default();
                counter.inc_by(number.as_u64().unwrap_or(0));
                registry.register(name, help, counter);
            }
            Value::Object(rows) if rows.values().any(Value::is_object) => {
                register_rows(&mut registry, name, rows);
            }
            Value::Object(named) => {
                let counters = Family::<Named, Counter>::default();
                for (cause, count) in named {
                    counters
                        .get_or_create(&Named { name: cause.clone() })
                        .inc_by(count.as_u64().unwrap_or(0));
                }
                registry.register(name, help, counters);
            }
            Value::String(state) => {
                let states = Family::<Named, Gauge>::default();
                states.get_or_create(&Named { name: state.clone() }).set(1);
                registry.register(name, help, states);
            }
            Value::Null | Value::Bool(_) | Value::Array(_) => {}
        }
    }
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = encode(&mut text, &registry);
    text
}

/// Register each column of a table as a metric of its own, with a label for the row.
fn register_rows(registry: &mut Registry, table: &str, rows: &serde_json::Map<String, Value>) {
    let table = table.strip_suffix('s').unwrap_or(table);
    let columns = rows.values().next().and_then(Value::as_object);
    for column in columns.into_iter().flat_map(|columns| columns.keys()) {
        let (name, help) = (format!("{table}_{column}"), column.replace('_', " "));
        let values = rows.iter().map(|(row, values)| (row, values[column].as_u64().unwrap_or(0)));
        if GAUGES.contains(&&**column) {
            let gauges = Family::<Named, Gauge>::default();
            for (row, value) in values {
                let value = i64::try_from(value).unwrap_or(i64::MAX);
                gauges.get_or_create(&Named { name: row.clone() }).set(value);
            }
            registry.register(name, help, gauges);
        } else {
            let counters = Family::<Named, Counter>::default();
            for (row, value) in values {
                counters.get_or_create(&Named { name: row.clone() }).inc_by(value);
            }
            registry.register(name, help, counters);
        }
    }
}

#[cfg(test)]
mod response_tests {
    use pagelith::{LimitStats, NamespaceStats};

    use super::*;

    #[test]
    fn health_fails_when_the_accept_loop_stalls() {
        let after = |seconds| health(Duration::from_secs(seconds), "on");
        assert_eq!(after(9), Response::text("200 OK", "ok ssd_state=on\n"));
        let text = "the accept loop is stalled accept_loop_idle_s=10\n";
        assert_eq!(after(10), Response::text("503 Service Unavailable", text));
    }

    #[test]
    fn every_field_of_stats_is_a_gauge_or_a_counter() {
        let mut stats = Stats::default();
        (stats.objects, stats.puts_stored, stats.ssd_state) = (3, 7, "read-only".into());
        stats.misses.insert("absent".into(), 5);
        stats.absent.insert("refused".into(), 5);
        stats.exists_absent.insert("unknown".into(), 1);
        let mut tenant = NamespaceStats::default();
        (tenant.hits, tenant.dram_bytes) = (9, 4096);
        stats.namespaces.insert("others".into(), tenant);
        let mut limits = LimitStats::default();
        limits.ssd_bytes = 8192;
        limits.evicted = 3;
        stats.limits.insert("a1".into(), limits);
        stats.rdma_links_without.insert("peer".into(), 1);
        stats.rdma_stream_bytes.insert("small".into(), 1);
        let text = metrics(&stats, &[("links", "clients", 2)]);
        for line in [
            "# TYPE pagelith_objects gauge",
            "pagelith_objects 3",
            "# TYPE pagelith_puts_stored counter",
            "pagelith_puts_stored_total 7",
            "pagelith_misses_total{name=\"absent\"} 5",
            "pagelith_namespace_hits_total{name=\"others\"} 9",
            "pagelith_namespace_dram_bytes{name=\"others\"} 4096",
            "pagelith_limit_ssd_bytes{name=\"a1\"} 8192",
            "pagelith_limit_evicted_total{name=\"a1\"} 3",
            "pagelith_absent_total{name=\"refused\"} 5",
            "pagelith_ssd_state{name=\"read-only\"} 1",
            "pagelith_links 2",
        ] {
            assert!(text.lines().any(|l| l == line), "{line} is not in\n{text}");
        }
        let fields = serde_json::to_value(&stats).expect("JSON");
        let names = fields.as_object().expect("an object").keys();
        for name in names.filter(|name| !matches!(name.as_str(), "namespaces" | "limits")) {
            assert!(text.contains(&format!("# TYPE pagelith_{name} ")), "{name}");
        }
        let is_number = |name: &str| fields[name].is_u64() || fields["limits"]["a1"][name].is_u64();
        assert!(GAUGES.iter().all(|name| is_number(name)), "a gauge without a number");
    }
}
