//! A store's memory is populated at open if configured, and on use otherwise. The only test of its
//! process, whose memory it measures.
#![allow(clippy::disallowed_methods, reason = "the test reads this process's memory use")]

use pagelith::{Config, MachineLimits, Size, Store};

/// Resident bytes of this process, counted page by page: `VmRSS` lags on hosts with many cores.
fn resident() -> u64 {
    let maps = std::fs::read_to_string("/proc/self/smaps_rollup").expect("Linux 4.14");
    let kib = maps.lines().find_map(|line| line.strip_prefix("Rss:")?.strip_suffix("kB"));
    kib.and_then(|kib| kib.trim().parse::<u64>().ok()).expect("KiB") << 10
}

/// Bytes that an open makes resident, and the memory plan without staging.
fn taken(prefault: bool, dram: Size) -> (u64, u64) {
    let home = tempfile::tempdir().unwrap();
    let mut config = Config::default();
    config.dram.bytes = dram;
    config.dram.prefault = prefault;
    config.index.max_objects = Some(1 << 21);
    config.ssd.bytes = Size::mib(256);
    config.ssd.segment_bytes = Some(Size::mib(16));
    config.ssd.headers_bytes = Size::mib(48);
    config.ssd.dirs = vec![home.path().join("store")];
    let config = config.validate(&MachineLimits::of_this_machine().unwrap()).unwrap();
    let plan = config.memory_plan();
    assert!([plan.arena, plan.index, plan.headers].iter().all(|part| *part >= 32 << 20), "{plan}");
    let before = resident();
    let store = Store::open(config).unwrap();
    let taken = resident() - before;
    store.close().unwrap();
    (taken, plan.total - plan.staging)
}

#[test]
fn prefault_populates_memory_at_open() {
    for dram in [Size::mib(64), Size::ZERO] {
        let (lazy, all) = taken(false, dram);
        assert!(lazy < all / 4, "taken={lazy} of={all}");
        let (taken, all) = taken(true, dram);
        assert!(taken >= all / 64 * 63, "taken={taken} of={all}");
    }
}
