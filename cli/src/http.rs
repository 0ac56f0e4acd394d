//! What a store process says of itself over HTTP, on loopback: `/metrics`, as Prometheus reads them, and `/healthz`.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use pagelith::io::staging::StagingPool;
use pagelith::{Stats, Store};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use serde_json::Value;
use tiny_http::{Header, Method, Request, Response, Server};

/// What [`Stats`] says of this moment; all else only grows.
const NOW: [&str; 13] = [
    "objects",
    "dram_objects",
    "dram_bytes",
    "dram_peak_bytes",
    "index_bytes",
    "groups_waiting",
    "waiting_bytes",
    "segments_suspect",
    "segments_quarantined",
    "unflushed_bytes",
    "objects_pinned",
    "objects_leased",
    "readers",
];
const TEXT: &str = "text/plain; charset=utf-8";
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// A server of HTTP.
pub(crate) struct Http {
    server: Server,
    address: SocketAddr,
}

impl Http {
    /// Listen on loopback.
    pub(crate) fn listen(address: SocketAddr) -> anyhow::Result<Http> {
        if !address.ip().is_loopback() {
            bail!("it would be answered to other hosts --metrics={address}");
        }
        let server = Server::http(address).map_err(|error| anyhow!("{error} --metrics={address}"))?;
        let address = server.server_addr().to_ip().context("an address of another kind")?;
        Ok(Http { server, address })
    }

    /// Where it listens: the port that was found, if none was said.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Answer until told to stop; that is looked at each `wait`.
    pub(crate) fn answer(&self, store: &Store, serving: &Serving, stop: &AtomicBool, wait: Duration) {
        while !stop.load(Ordering::Relaxed) {
            match self.server.recv_timeout(wait) {
                Ok(Some(request)) => respond(request, store, serving),
                Ok(None) => {}
                Err(error) => {
                    eprintln!("metrics are not answered any more: {error}");
                    return;
                }
            }
        }
    }
}

fn respond(request: Request, store: &Store, serving: &Serving) {
    let (status, kind, body) = match (request.method(), request.url()) {
        (Method::Get, "/metrics") => (200, OPEN_METRICS, metrics(&store.stats(), &serving.now())),
        // That it answers is what is asked; a tier that is off is no reason to be ended, DRAM serves on.
        (Method::Get, "/healthz") => (200, TEXT, format!("ok ssd_state={}\n", store.stats().ssd_state)),
        (Method::Get, _) => (404, TEXT, "there are /metrics and /healthz\n".to_owned()),
        _ => (405, TEXT, "only GET\n".to_owned()),
    };
    let response = Response::from_string(body).with_status_code(status);
    let header = Header::from_bytes("Content-Type", kind).ok();
    // Whoever asked may be gone.
    let _ = request.respond(header.into_iter().fold(response, Response::with_header));
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Named {
    name: String,
}

/// What a process does for its clients now.
pub(crate) struct Serving {
    pub(crate) links: AtomicU64,
    pub(crate) staging: StagingPool,
}

impl Serving {
    fn now(&self) -> [(&'static str, &'static str, u64); 2] {
        [
            ("links", "clients", self.links.load(Ordering::Relaxed)),
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
            Value::Number(number) if NOW.contains(&&**name) => {
                let gauge = Gauge::<i64>::default();
                gauge.set(number.as_i64().unwrap_or(i64::MAX));
                registry.register(name, help, gauge);
            }
            Value::Number(number) => {
                let counter = Counter::<u64>::default();
                counter.inc_by(number.as_u64().unwrap_or(0));
                registry.register(name, help, counter);
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
    // Writing into a string does not fail.
    let _ = encode(&mut text, &registry);
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_figure_is_told_and_those_of_this_moment_are_gauges() {
        let mut stats =
            Stats { objects: 3, puts_stored: 7, ssd_state: "read-only".into(), ..Stats::default() };
        stats.misses.insert("absent".into(), 5);
        let text = metrics(&stats, &[("links", "clients", 2)]);
        for line in [
            "# TYPE pagelith_objects gauge",
            "pagelith_objects 3",
            "# TYPE pagelith_puts_stored counter",
            "pagelith_puts_stored_total 7",
            "pagelith_misses_total{name=\"absent\"} 5",
            "pagelith_ssd_state{name=\"read-only\"} 1",
            "pagelith_links 2",
        ] {
            assert!(text.lines().any(|l| l == line), "{line} is not in\n{text}");
        }
        let fields = serde_json::to_value(&stats).expect("JSON");
        for name in fields.as_object().expect("an object").keys() {
            assert!(text.contains(&format!("# TYPE pagelith_{name} ")), "{name}");
        }
        assert!(NOW.iter().all(|name| fields[*name].is_u64()), "a gauge that is no figure");
    }
}
