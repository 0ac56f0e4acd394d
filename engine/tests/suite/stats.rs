//! Counters on which callers rely.

use pagelith::{ErrorKind, FlushReport, Options, PutOutcome, Size};

use super::env::TestEnv;
use super::helpers::*;

const LEN: usize = 9000;

pub fn flush_reports_what_it_made_durable(world: &TestEnv) {
    let config = world.config();
    let store = world.open(&config);
    let flush = |store: &pagelith::Store| store.flush(Options::default()).expect("flushed");
    assert_eq!(flush(&store), FlushReport::default(), "nothing was put");
    store_pages(&store, 0..10, LEN);
    assert_eq!(put_group(&store, &group(50, 4)), Ok(PutOutcome::Stored));
    let of_group: usize = group(50, 4).iter().map(|o| o.1.len()).sum();
    let expected = FlushReport::durable(14, (10 * LEN + of_group) as u64);
    assert_eq!(flush(&store), expected);
    assert_eq!(flush(&store), FlushReport::default(), "it is reported once");
    store_page(&store, 20, LEN);
    assert_eq!(put(&store, key(20), &bytes(1, LEN)), Ok(PutOutcome::AlreadyPresent));
    assert_eq!(store.close(), Ok(FlushReport::durable(1, LEN as u64)));
}

pub fn hits_and_misses_add_up_to_gets(world: &TestEnv) {
    let config = world.config();
    let store = world.open(&config);
    store_pages(&store, 0..10, LEN);
    let store = world.reopen(store, &config);
    store_pages(&store, 10..15, LEN);
    for n in 0..20 {
        is_page_present(&store, n, LEN);
    }
    let stats = store.stats();
    assert_eq!((stats.hits_ssd, stats.hits_memory), (10, 5));
    assert_eq!(stats.misses.into_iter().collect::<Vec<_>>(), [("absent".to_string(), 5)]);
    assert_eq!((stats.bytes_ssd, stats.bytes_memory), (10 * LEN as u64, 5 * LEN as u64));
    // A refused request is no get, and neither is a lookup.
    let mut short = vec![0; LEN - 1];
    assert_eq!(get_into(&store, key(12), &mut short).map_err(|e| e.kind), Err(ErrorKind::Invalid));
    store.exists_batch(&[key(1), key(99)], Options::default());
    let stats = store.stats();
    assert_eq!(stats.hits_ssd + stats.hits_memory + stats.misses.values().sum::<u64>(), 20);
}

pub fn put_counters_add_up(world: &TestEnv) {
    let mut config = world.memory_config(Size::kib(512));
    config.index.max_objects = Some(20);
    let store = world.open(&config);
    let mut outcomes = std::collections::BTreeMap::new();
    let mut pins = Vec::new();
    for n in 0..60 {
        let page = n % 40;
        let outcome = match put_with(&store, key(page), &bytes(page, 20_000), NOW) {
            Ok(outcome) => format!("{outcome:?}"),
            Err(error) => format!("{:?}", error.kind),
        };
        *outcomes.entry(outcome).or_insert(0) += 1;
        if world.tells_keys_apart() && n < 18 {
            pins.push(store.pin(&[key(page)]));
        }
    }
    let stats = store.stats();
    let count = |name: &str| outcomes.get(name).copied().unwrap_or(0);
    assert_eq!(
        (stats.puts_stored, stats.puts_present, stats.puts_refused, stats.puts_busy),
        (count("Stored"), count("AlreadyPresent"), count("Refused"), count("Busy")),
        "{outcomes:?}"
    );
    assert_eq!(stats.bytes_put, 20_000 * stats.puts_stored);
    assert_eq!(outcomes.values().sum::<u64>(), 60);
    assert!(stats.objects <= 20 && stats.dram_bytes <= 512 << 10, "{stats:?}");
}
