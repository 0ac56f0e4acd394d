//! The embedded store, as calls with devices use it.

use std::time::Duration;

use pagelith_io::clock::Mono;
use pagelith_io::signal::Signal;
use pagelith_io::staging::StagingPool;
use pagelith_layouts::checksum::BLOCK_BYTES;
use pagelith_layouts::key::ObjectKey;

use crate::api::borrowed::BorrowedGroup;
use crate::api::device::bound::Devices;
use crate::api::device::pieces::DeviceGet;
use crate::api::device::store::{DeviceStore, InPlace};
use crate::api::error::Result;
use crate::api::outcome::{CompletedBatch, CompletedGet, PutOutcome};
use crate::api::request::{Get, Options};
use crate::memory::namespaces::NamespaceCounts;
use crate::read::view;
use crate::state::session_io;
use crate::state::stats::Counters;
use crate::store::embedded::Store;
use crate::store::{blocking_calls, put_parts};

impl DeviceStore for Store {
    fn now(&self) -> Mono {
        self.shared.now()
    }

    fn deadline(&self, options: &Options) -> Mono {
        self.shared.deadline(options.timeout)
    }

    fn pause(&self, longest: Duration) {
        let never = Signal::default();
        self.shared.env.runtime.pause(&never, never.value(), longest);
    }

    fn devices(&self) -> &Devices {
        &self.shared.devices
    }

    fn staging(&self) -> Result<&StagingPool> {
        Ok(&self.shared.ssd.staging)
    }

    fn staging_setting(&self) -> &'static str {
        "staging.bytes"
    }

    /// A range is read in whole blocks.
    fn range_margin(&self) -> u64 {
        2 * u64::from(BLOCK_BYTES)
    }

    fn arena_bytes(&self) -> u64 {
        self.shared.config.arena_bytes()
    }

    fn begin(&self, options: Options) -> Result<Options> {
        self.shared.check_open()?;
        let request = options.request.unwrap_or_else(|| session_io::begin_request(&self.shared));
        Ok(options.request(request))
    }

    fn in_place(
        &self,
        get: &DeviceGet<'_>,
        wanted: u64,
        options: &Options,
    ) -> Result<Option<InPlace>> {
        let fits = |length: u64| match &get.range {
            None => length == wanted,
            Some(range) => {
                range.start < range.end && range.end <= length && range.end - range.start == wanted
            }
        };
        let at = session_io::recency(&self.shared, options);
        let view = view::of_hit(&self.shared, &get.key, at, fits)?;
        Ok(view.map(|view| {
            let start = get.range.as_ref().map_or(0, |range| range.start as usize);
            let part = view.part().split(start).1.split(wanted as usize).0;
            InPlace { part, bytes: view.pinned_bytes(), owner: Box::new(view) }
        }))
    }

    /// A read into staging memory counts its own.
    fn count_in_place(&self, hits: &[(ObjectKey, u64)]) {
        let mut counters = Counters::default();
        for (key, bytes) in hits {
            counters.hits_memory += 1;
            counters.bytes_memory += bytes;
            let counts = self.shared.read_view.namespaces.counts(key.namespace());
            counts.into_iter().for_each(|counts: &NamespaceCounts| counts.count_hit(*bytes));
        }
        self.shared.reads.counters.add(0, &counters);
    }

    fn get_owned(&self, gets: Vec<Get>, options: Options) -> Result<Vec<CompletedGet>> {
        let done = self.pool.with_session(options.timeout, |session| {
            let ticket = session.begin_get(gets, options);
            loop {
                if let Some(done) = session.wait(ticket, Duration::from_secs(1)) {
                    break done;
                }
            }
        })?;
        match done {
            CompletedBatch::Get(done) => Ok(done),
            _ => Ok(Vec::new()),
        }
    }

    fn put_borrowed(
        &self,
        groups: &[BorrowedGroup<'_>],
        required: &[ObjectKey],
        options: Options,
    ) -> Vec<Result<PutOutcome>> {
        if required.is_empty() {
            return blocking_calls::put(&self.pool, groups, options);
        }
        let parts: Vec<_> = groups.iter().map(|(_, part)| *part).collect();
        put_parts::put(&self.pool, required, &parts, options)
    }
}
