//! The work of a child: several threads put, get, remove, clear and flush until the process is
//! killed.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use pagelith::config::{SsdIo, SsdPolicy};
use pagelith::io::probe::{BackendChoice, open_disk};
use pagelith::io::runtime::Env;
use pagelith::io::system::{SystemClock, SystemEntropy, Threads};
use pagelith::{
    Config, GetSlice, MachineLimits, Options, PutOutcome, PutSlice, Result, Size, Store,
};

use super::content::{COMPONENTS, Rng, content, key, length, namespace, version_of};
use super::kill_disk::{KillDisk, KillPoint};
use super::{CHILD, LogEntry, LogWriter, Page};

/// Threads of a child.
pub const THREADS: u32 = 3;
/// Namespaces: the last one is cleared now and then, the others never.
pub const NAMESPACES: u8 = 2;

/// A store, and the work to do on it.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Its directory.
    pub dir: PathBuf,
    /// Its size.
    pub ssd_mib: u32,
    /// Largest single write.
    pub write_kib: u32,
    /// Most writes in flight.
    pub write_depth: u32,
    /// Seed of the work.
    pub seed: u64,
    /// Pages of a namespace.
    pub pages: u32,
    /// Most bytes to write; after that there are only gets and flushes.
    pub budget: u64,
    /// `uring`, `blocking` or `auto`.
    pub io: &'static str,
    /// Whether reclaim copies used pages forward.
    pub reinsert: bool,
    /// Only put.
    pub only_put: bool,
    /// The point at which the child kills itself.
    pub aim: Option<KillPoint>,
}

impl Plan {
    /// The store's configuration.
    pub fn config(&self) -> Config {
        let mut config = Config::default();
        config.deadline_ms = 60_000;
        config.dram.bytes = Size::mib(8);
        config.staging.bytes = Size::mib(4);
        config.staging.chunk_bytes = Size::kib(256);
        config.index.max_objects = Some(1 << 16);
        config.namespaces_max = 16;
        config.ssd.bytes = Size::mib(self.ssd_mib);
        config.ssd.segment_bytes = Some(Size::mib(4));
        config.ssd.write_bytes = Size::kib(self.write_kib);
        config.ssd.write_depth = self.write_depth;
        config.ssd.checkpoint_segments = 2;
        config.ssd.dirs = vec![self.dir.clone()];
        config.ssd.policy = if self.reinsert { SsdPolicy::Recency } else { SsdPolicy::Fifo };
        config.ssd.io = match self.io {
            "uring" => SsdIo::Uring,
            "blocking" => SsdIo::Blocking,
            _ => SsdIo::Auto,
        };
        config
    }

    /// Open its store, or create it.
    pub fn open(&self) -> Result<Store> {
        let facts = MachineLimits::of_this_machine().expect("facts");
        Store::open(self.config().validate(&facts).expect("a valid configuration"))
    }

    /// Open its store over a disk that kills this process where [`Plan::aim`] says.
    fn open_trapped(&self, aim: KillPoint) -> Result<Store> {
        let side = match self.config().ssd.io {
            SsdIo::Auto => BackendChoice::Auto,
            SsdIo::Uring => BackendChoice::Uring,
            SsdIo::Blocking => BackendChoice::Blocking,
        };
        let trap = KillDisk::new(open_disk(std::slice::from_ref(&self.dir), side)?, aim);
        let opened = trap.opened();
        let env = Env {
            disk: Some(Arc::new(trap)),
            clock: Arc::new(SystemClock::new()),
            entropy: Arc::new(SystemEntropy),
            runtime: Arc::new(Threads),
        };
        let facts = MachineLimits::of_this_machine().expect("facts");
        let store =
            Store::open_in(self.config().validate(&facts).expect("a valid configuration"), env)?;
        opened();
        Ok(store)
    }

    /// The value for the child's environment.
    pub fn to_text(&self) -> String {
        let Plan {
            dir,
            ssd_mib,
            write_kib,
            write_depth,
            seed,
            pages,
            budget,
            io,
            reinsert,
            only_put,
            aim,
        } = self;
        let dir = dir.to_str().expect("a path that is text");
        let aim = aim.map_or("-".to_owned(), |aim| format!("{} {}", aim.point, aim.nth));
        format!(
            "{ssd_mib}\n{write_kib}\n{write_depth}\n{seed}\n{pages}\n{budget}\n{io}\n{reinsert}\n{only_put}\n\
             {aim}\n{dir}"
        )
    }

    fn from_text(text: &str) -> Option<Plan> {
        let mut lines = text.splitn(11, '\n');
        let mut next = || lines.next();
        Some(Plan {
            ssd_mib: next()?.parse().ok()?,
            write_kib: next()?.parse().ok()?,
            write_depth: next()?.parse().ok()?,
            seed: next()?.parse().ok()?,
            pages: next()?.parse().ok()?,
            budget: next()?.parse().ok()?,
            io: match next()? {
                "uring" => "uring",
                "blocking" => "blocking",
                _ => "auto",
            },
            reinsert: next()? == "true",
            only_put: next()? == "true",
            aim: match next()?.split_once(' ') {
                Some((point, nth)) => {
                    Some(KillPoint { point: point.parse().ok()?, nth: nth.parse().ok()? })
                }
                None => None,
            },
            dir: next()?.into(),
        })
    }
}

/// The whole life of a child, if this process is one.
pub fn child() {
    let Ok(text) = std::env::var(CHILD) else { return };
    let plan = Plan::from_text(&text).expect("a plan");
    let log_writer = LogWriter::new();
    log_writer.write_entry(LogEntry::Opening);
    let opened = plan.aim.map_or_else(|| plan.open(), |aim| plan.open_trapped(aim));
    let store = match opened {
        Ok(store) => store,
        Err(error) => fail(&log_writer, &format!("open: {error}")),
    };
    log_writer.write_entry(LogEntry::Opened);
    let spent = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let worker = Worker {
                plan: &plan,
                store: &store,
                log_writer: &log_writer,
                spent: &spent,
                thread,
            };
            scope.spawn(move || worker.work());
        }
    });
}

fn fail(log_writer: &LogWriter, what: &str) -> ! {
    eprintln!("child: {what}");
    log_writer.write_entry(LogEntry::Failed);
    std::process::exit(1)
}

struct Worker<'a> {
    plan: &'a Plan,
    store: &'a Store,
    log_writer: &'a LogWriter,
    spent: &'a AtomicU64,
    thread: u32,
}

impl Worker<'_> {
    fn work(&self) -> ! {
        let mut rng = Rng(self.plan.seed ^ u64::from(self.thread) << 32);
        for step in 0.. {
            let may_write = self.spent.load(Ordering::Relaxed) < self.plan.budget;
            // Each thread has its own pages, so that the order of calls on a page is known.
            let number =
                rng.below(u64::from(self.plan.pages / THREADS)) as u32 * THREADS + self.thread;
            let page = Page { namespace: rng.below(NAMESPACES.into()) as u8, number };
            // Versions are never reused: the seed differs in every round.
            let version = self.plan.seed << 32 | u64::from(self.thread) << 28 | step;
            match rng.below(1000) {
                _ if self.plan.only_put => self.put(page, version),
                0..650 if may_write => self.put(page, version),
                650..700 if may_write => self.remove(page),
                700..703 if may_write && self.thread == 0 => self.clear(NAMESPACES - 1),
                980.. => self.flush(version),
                _ => self.get(page),
            }
        }
        unreachable!("a child works until it is killed")
    }

    fn check<T>(&self, what: &str, outcome: Result<T>) -> T {
        outcome.unwrap_or_else(|error| fail(self.log_writer, &format!("{what}: {error}")))
    }

    fn put(&self, page: Page, version: u64) {
        let bytes = [0, 1].map(|c| content(page, c, version));
        let pieces: [[&[u8]; 1]; 2] = [[&bytes[0]], [&bytes[1]]];
        let group = [0, 1].map(|c| PutSlice { key: key(page, c), pieces: &pieces[c] });
        self.log_writer.write_entry(LogEntry::PutBegins(page, version));
        let mut outcomes = self.store.put_groups(&[&group], Options::default());
        match self.check("put", outcomes.pop().expect("an outcome")) {
            PutOutcome::Stored => self.log_writer.write_entry(LogEntry::Stored(page, version)),
            PutOutcome::AlreadyPresent => {
                return self.log_writer.write_entry(LogEntry::Present(page, version));
            }
            other => fail(self.log_writer, &format!("put: {other:?}")),
        }
        // A header and padding are written too.
        let written = bytes.iter().map(|b| b.len() as u64 + 4096).sum::<u64>() + 4096;
        self.spent.fetch_add(written, Ordering::Relaxed);
    }

    fn remove(&self, page: Page) {
        self.log_writer.write_entry(LogEntry::RemoveBegins(page));
        // Its group member goes with it.
        self.check("remove", self.store.remove(&[key(page, 0)], Options::default()));
        self.log_writer.write_entry(LogEntry::Removed(page));
        self.spent.fetch_add(8192, Ordering::Relaxed);
        let here = self.store.exists_batch(&[key(page, 0), key(page, 1)], Options::default());
        if here != [false, false] {
            fail(self.log_writer, &format!("removed page is still there {page:?} {here:?}"));
        }
    }

    fn clear(&self, number: u8) {
        self.log_writer.write_entry(LogEntry::ClearBegins(number));
        self.check("clear", self.store.clear(namespace(number), Options::default()));
        self.log_writer.write_entry(LogEntry::Cleared(number));
    }

    fn flush(&self, number: u64) {
        self.log_writer.write_entry(LogEntry::FlushBegins(number));
        let report = self.check("flush", self.store.flush(Options::default()));
        if report.lost_objects > 0 {
            fail(self.log_writer, &format!("flush lost objects: {report:?}"));
        }
        self.log_writer.write_entry(LogEntry::Flushed(number));
        if self.store.stats().segments_reclaimed > 0 {
            self.log_writer.write_entry(LogEntry::Reclaimed);
        }
    }

    fn get(&self, page: Page) {
        let here = self.store.exists_batch(&[key(page, 0), key(page, 1)], Options::default());
        if here[0] != here[1] {
            fail(
                self.log_writer,
                &format!("half a group {page:?} {here:?} {:?}", self.store.stats()),
            );
        }
        for (component, bytes) in read_page(self.store, page).into_iter().enumerate() {
            let Some(bytes) = bytes else { continue };
            // A version too short to be recognised is checked by the parent.
            if bytes.len() >= 8 && version_of(page, component, &bytes, &[]).is_none() {
                fail(self.log_writer, &format!("wrong bytes {page:?} {}", COMPONENTS[component]));
            }
        }
    }
}

/// The components of a page that are present.
pub fn read_page(store: &Store, page: Page) -> [Option<Vec<u8>>; 2] {
    let mut bytes = [0, 1].map(|c| vec![0; length(page, c)]);
    let [k, v] = &mut bytes;
    let (mut k, mut v) = ([&mut k[..]], [&mut v[..]]);
    let mut gets = [
        GetSlice { key: key(page, 0), range: None, pieces: &mut k },
        GetSlice { key: key(page, 1), range: None, pieces: &mut v },
    ];
    let outcomes = store.get_batch(&mut gets, Options::default());
    let mut hits = outcomes.into_iter().map(|o| o.expect("get").is_hit());
    bytes.map(|b| hits.next().expect("an outcome").then_some(b))
}
