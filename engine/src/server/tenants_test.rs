//! Isolation of tenants of one store: a tenant takes nothing from another and learns nothing about
//! it.
#![allow(clippy::disallowed_methods, reason = "a test sets up and looks at real files")]

use std::collections::BTreeSet;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::sync::Arc;

use pagelith_io::buffer::Part;
use pagelith_io::clock::Clock;
use pagelith_io::system::SystemClock;
use pagelith_layouts::checksum::{BLOCK_BYTES, checksum};
use pagelith_layouts::ids::{NamespaceId, PrefixHash};
use pagelith_layouts::key::{ObjectKey, Role};
use pagelith_layouts::shard::Shard;
use pagelith_layouts::wire::put::PutBuilder;
use pagelith_layouts::wire::request::{RequestBody, RequestOptions};
use pagelith_transport::rights::{Namespaces, Rights};

use super::Server;
use crate::api::error::{ErrorKind, Result};
use crate::api::outcome::{FlushReport, PutOutcome};
use crate::api::request::{Options, PutSlice};
use crate::config::{Config, MachineLimits, NamespaceLimits};
use crate::rpc::client::RpcClient;
use crate::rpc::{ControlReply, Response};
use crate::server::tests::{Pair, TIMEOUT};
use crate::store::embedded::Store;

const NAMESPACES_MAX: u32 = 8;

fn id(n: u32) -> NamespaceId {
    NamespaceId((u128::from(n) + 1).to_le_bytes())
}

fn store(dir: Option<&std::path::Path>) -> Store {
    store_with(dir, Vec::new())
}

fn store_with(dir: Option<&std::path::Path>, limits: Vec<NamespaceLimits>) -> Store {
    let mut config = Config::default();
    config.namespaces.limits = limits;
    config.dram.bytes = crate::Size::mib(4);
    config.index.max_objects = Some(1000);
    config.namespaces_max = NAMESPACES_MAX;
    if let Some(dir) = dir {
        config.ssd.bytes = crate::Size::mib(32);
        config.ssd.dirs = vec![dir.to_owned()];
    }
    Store::open(config.validate(&MachineLimits::of_this_machine().expect("facts")).expect("valid"))
        .expect("opened")
}

fn put(store: &Store, namespace: NamespaceId) {
    let key = ObjectKey::new(namespace, PrefixHash([1; 32]), Role::Target, "kv", "k", Shard::Whole)
        .expect("a key");
    store
        .put_batch(&[PutSlice { key, pieces: &[b"x"] }], Options::default())
        .remove(0)
        .expect("put");
}

struct Tenant {
    server: Server,
    caller: RpcClient,
    clock: Arc<dyn Clock>,
}

impl Tenant {
    fn of(store: &Store, rights: Rights) -> Tenant {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        let address = "tcp:127.0.0.1:0".parse().expect("an address");
        let (server, caller) = Pair::connect(store, &clock, address, rights, &[]);
        Tenant { server, caller, clock }
    }

    fn in_namespace(store: &Store, namespace: NamespaceId) -> Tenant {
        Tenant::of(store, Rights::of(Namespaces::Listed(BTreeSet::from([namespace]))))
    }

    fn ask(&mut self, ask: &RequestBody<'_>) -> Result<ControlReply> {
        self.caller
            .send_control(1, ask, RequestOptions::default(), self.clock.now().after(TIMEOUT))
            .expect("link capacity");
        match self.reply() {
            Response::Control(reply) => reply,
            other => panic!("unexpected reply {other:?}"),
        }
    }

    /// Put an object of 4096 bytes.
    fn put(&mut self, namespace: NamespaceId, page: u8) -> Result<PutOutcome> {
        let hash = PrefixHash([page; 32]);
        let key = ObjectKey::new(namespace, hash, Role::Target, "kv", "k", Shard::Whole);
        let (bytes, mut draft) = ([page; 4096], PutBuilder::new(BLOCK_BYTES));
        draft.group(None);
        draft.object(key.expect("a key"), 4096, &[checksum(&bytes)]);
        let lend = Box::new(move |_: u32| vec![Part::from_shared(Arc::from(&bytes[..]))]);
        let deadline = self.clock.now().after(TIMEOUT);
        let options = RequestOptions::default();
        self.caller.put(1, &draft, lend, options, deadline).expect("link capacity");
        match self.reply() {
            Response::Put(mut outcomes) => outcomes.remove(0),
            other => panic!("unexpected reply {other:?}"),
        }
    }

    fn reply(&mut self) -> Response {
        let mut replies = Vec::new();
        while replies.is_empty() {
            self.server.poll();
            self.caller.poll(self.clock.now(), &mut replies);
        }
        replies.remove(0).1
    }

    fn flush(&mut self) -> FlushReport {
        match self.ask(&RequestBody::Flush) {
            Ok(ControlReply::Flushed(report)) => report,
            other => panic!("{other:?}"),
        }
    }
}

/// So a limit of the namespaces to which a key is restricted is a limit of that key.
#[test]
fn client_restricted_to_a_limited_namespace_puts_no_more_than_the_limit() {
    let mut limits = NamespaceLimits::of(id(1));
    limits.dram_bytes = Some(crate::Size::kib(64));
    let store = store_with(None, vec![limits]);
    let (mut limited, mut other) =
        (Tenant::in_namespace(&store, id(1)), Tenant::in_namespace(&store, id(2)));
    let stored = |tenant: &mut Tenant, namespace| {
        (0..20)
            .map(|page| tenant.put(namespace, page))
            .filter(|o| *o == Ok(PutOutcome::Stored))
            .count()
    };
    assert_eq!(stored(&mut limited, id(1)), 16);
    assert_eq!(limited.put(id(1), 50), Ok(PutOutcome::Refused));
    assert_eq!(limited.put(id(2), 50).map_err(|error| error.kind), Err(ErrorKind::Denied));
    assert_eq!(stored(&mut other, id(2)), 20);
}

/// Whether a clear gives the namespace another generation than the first.
fn raises_generation(tenant: &mut Tenant, namespace: NamespaceId) -> bool {
    let cleared = tenant.ask(&RequestBody::Clear(namespace));
    matches!(cleared, Ok(ControlReply::Number(n)) if n > 1)
}

#[test]
fn clear_of_an_empty_namespace_uses_no_row() {
    let dir = tempfile::tempdir().expect("a directory");
    for dir in [None, Some(dir.path())] {
        let store = store(dir);
        put(&store, id(1000));
        let mut tenant = Tenant::of(&store, Rights::all());
        for n in 0..3 * NAMESPACES_MAX {
            assert_eq!(
                tenant.ask(&RequestBody::Clear(id(n))),
                Ok(ControlReply::Number(1)),
                "n={n}"
            );
        }
        assert!(store.shared.lock().visibility.generations().is_empty());
        // Each namespace with objects has a row, even if they are written and not in memory.
        put(&store, id(1001));
        store.flush(Options::default()).expect("flushed");
        for n in 1000..1000 + NAMESPACES_MAX {
            put(&store, id(n));
            assert!(raises_generation(&mut tenant, id(n)), "n={n}");
        }
        put(&store, id(2000));
        assert_eq!(
            tenant.ask(&RequestBody::Clear(id(2000))).expect_err("full").kind,
            ErrorKind::NoSpace
        );
        assert_eq!(
            tenant.ask(&RequestBody::Clear(id(3000))),
            Ok(ControlReply::Number(1)),
            "the namespace is still empty"
        );
    }
}

#[test]
fn clear_after_reopen_leaves_rows_for_known_namespaces() {
    let dir = tempfile::tempdir().expect("a directory");
    let first = store(Some(dir.path()));
    put(&first, id(1000));
    first.close().expect("closed");
    let store = store(Some(dir.path()));
    let mut tenant = Tenant::of(&store, Rights::all());
    let taken =
        (0..NAMESPACES_MAX).filter(|n| tenant.ask(&RequestBody::Clear(id(*n))).is_ok()).count();
    assert_eq!(taken as u32, NAMESPACES_MAX / 2);
    put(&store, id(2000));
    assert!(raises_generation(&mut tenant, id(2000)));
}

#[test]
fn flush_reports_only_losses_in_the_namespaces_of_the_tenant() {
    let store = store(None);
    let lost = FlushReport::lost;
    let (mut a, mut b) = (Tenant::in_namespace(&store, id(1)), Tenant::in_namespace(&store, id(2)));
    let mut all = Tenant::of(&store, Rights::all());
    for (namespace, objects) in [(id(1), 3), (id(2), 5), (id(3), 7)] {
        store.shared.lock().count_lost(namespace, objects);
    }
    assert_eq!([a.flush(), a.flush()], [lost(3), lost(0)]);
    assert_eq!([b.flush(), b.flush()], [lost(5), lost(0)]);
    assert_eq!([all.flush(), all.flush()], [lost(15), lost(0)]);
    assert_eq!(
        store.flush(Options::default()),
        Ok(lost(15)),
        "the process gets the losses of all namespaces"
    );
    // A client that connects later gets losses from then on only.
    assert_eq!(Tenant::of(&store, Rights::all()).flush(), lost(0));
}

#[test]
fn stats_of_a_key_with_namespaces_need_the_operate_right() {
    let secret = "ab".repeat(32);
    let own = "01".repeat(16);
    for (entry, operates) in [
        (String::new(), true),
        (format!("namespaces = [\"{own}\"]"), false),
        (format!("namespaces = [\"{own}\"]\nrights = [\"read\"]"), false),
        (format!("namespaces = [\"{own}\"]\nrights = [\"operate\"]"), true),
        ("rights = [\"read\"]".to_owned(), false),
    ] {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("keys");
        let mut file = std::fs::OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&path)
            .expect("made");
        write!(file, "[[key]]\nname = \"a\"\nsecret = \"{secret}\"\n{entry}\n").expect("written");
        let (_, rights) = crate::store::key_file::ring(&path).expect("a ring").remove(0);
        let store = store(None);
        let reply = Tenant::of(&store, rights).ask(&RequestBody::Stats);
        assert_eq!(reply.is_ok(), operates, "{entry} {reply:?}");
    }
}
