//! Runs every behaviour over every backend and transport, with true fingerprints and with a
//! constant one.

use std::io::Write as _;
use std::sync::atomic::{AtomicUsize, Ordering};

#[macro_use]
mod suite;

use suite::env::{IoKind, TestEnv, unavailable};
use suite::harness::{EMBEDDED_ONLY, Transport};

static SHOWN: AtomicUsize = AtomicUsize::new(0);
static SKIPPED: AtomicUsize = AtomicUsize::new(0);

fn show(name: &str, transport: Transport, kind: IoKind, constant: bool, behaviour: fn(&TestEnv)) {
    // Bypasses the test harness's capture, so that skipped behaviours are reported.
    let say = |line: String| {
        let _ = writeln!(std::io::stderr(), "{line}");
    };
    let embedded_only = || {
        let rows = EMBEDDED_ONLY.iter().filter(|_| transport != Transport::Embedded);
        rows.filter(|(prefix, _)| name.starts_with(prefix)).map(|(_, why)| (*why).to_owned()).next()
    };
    let no_devices =
        || if transport == Transport::Rdma { suite::rdma::unavailable() } else { None };
    match unavailable(kind).or_else(embedded_only).or_else(no_devices) {
        Some(why) => {
            SKIPPED.fetch_add(1, Ordering::Relaxed);
            say(format!("skipped: {name} on {kind:?} over {transport:?}: {why}"));
        }
        None => {
            behaviour(&TestEnv::over(transport, kind, constant, 1));
            if transport == Transport::Rdma && name == OF_EVERY_SIZE {
                let (placed, read) = suite::rdma::counts();
                assert!(placed > 0 && read > 0, "bytes by RDMA: placed={placed} read={read}");
            }
        }
    }
    if SHOWN.fetch_add(1, Ordering::Relaxed) + 1 == suite::ALL.len() * SIDES {
        let skipped = SKIPPED.load(Ordering::Relaxed);
        say(format!("behaviours: shown={} skipped={skipped}", suite::ALL.len() * SIDES - skipped));
    }
}

/// A behaviour whose objects RDMA carries.
const OF_EVERY_SIZE: &str = "round_trip::objects_of_every_size_are_got_from_memory_and_ssd";

/// Number of modules below.
const SIDES: usize = 10;

macro_rules! tests {
    ($side:ident, $transport:ident, $kind:ident, $constant:literal, $($module:ident :: $name:ident,)+) => {
        mod $side {
            $(
                #[test]
                #[allow(non_snake_case)]
                fn $name() {
                    let name = concat!(stringify!($module), "::", stringify!($name));
                    super::show(name, super::Transport::$transport, super::IoKind::$kind, $constant, super::suite::$module::$name);
                }
            )+
        }
    };
}

for_all_behaviours!(tests, uring, Embedded, Uring, false);
for_all_behaviours!(tests, blocking, Embedded, Blocking, false);
for_all_behaviours!(tests, sim, Embedded, Sim, false);
for_all_behaviours!(tests, uring_constant_fingerprint, Embedded, Uring, true);
for_all_behaviours!(tests, sim_constant_fingerprint, Embedded, Sim, true);
for_all_behaviours!(tests, tcp, Tcp, Blocking, false);
for_all_behaviours!(tests, rdma, Rdma, Blocking, false);
for_all_behaviours!(tests, shared_memory, SharedRings, Blocking, false);
for_all_behaviours!(tests, shown, SharedArena, Blocking, false);
for_all_behaviours!(tests, sim_link, Sim, Sim, false);

/// Behaviours that run again with gets and puts out of memory of a device: those about bytes, and
/// about what of a batch is stored. The others test nothing more there.
macro_rules! for_device_behaviours {
    ($then:ident $(, $arg:tt)*) => {
        $then! { $($arg,)*
            round_trip::objects_of_every_size_are_got_from_memory_and_ssd,
            round_trip::ranges,
            round_trip::invalid_ranges_are_refused,
            round_trip::batches_of_any_size_with_repeated_keys_are_answered,
            put_runs::page_repeated_in_a_batch_is_put_as_if_one_by_one,
            put_runs::groups_of_one_batch_adopt_objects_in_memory_and_on_ssd,
            put_runs::batch_larger_than_the_arena_is_stored,
            put_runs::refused_object_does_not_stop_its_batch,
            first_writer::second_put_of_a_key_is_not_stored,
            first_writer::first_put_on_ssd_wins,
            first_writer::first_put_wins_after_reopen,
            first_writer::put_of_another_length_is_invalid,
            groups::group_is_visible_whole_or_not_at_all,
            groups::group_of_ten_objects_is_one_record_on_ssd,
            groups::group_is_evicted_whole,
            groups::invalid_groups_are_refused,
            groups::group_put_adopts_standalone_objects,
            groups::group_is_whole_or_gone_after_a_crash,
            group_parts::last_part_makes_a_page_visible,
            group_parts::invalid_part_is_named_and_other_parts_are_put,
            attached::attached_group_is_visible_with_its_base,
            attached::attached_group_waits_for_its_base,
            attached::attached_group_is_removed_with_its_base,
            attached::mismatched_attached_groups_are_refused,
            removal::removed_object_is_absent_at_once,
            removal::clear_affects_one_namespace,
            removal::object_put_again_after_remove_survives,
            eviction::least_recently_used_page_is_evicted_first,
            eviction::ssd_hits_are_promoted_whole,
            tier_combinations::store_without_ssd_works,
            tier_combinations::store_without_dram_works,
            reclaim::log_laps_keep_the_youngest_pages,
            stats::hits_and_misses_add_up_to_gets,
            gauges::gauges_return_to_rest,
            damage::damage_in_a_payload_is_a_miss,
            damage::damage_in_a_header_is_a_miss,
            damage::damage_in_a_group_drops_the_whole_group,
            damage::misplaced_record_is_a_miss,
        }
    };
}

macro_rules! device_tests {
    ($side:ident, $transport:ident, $kind:ident, $($module:ident :: $name:ident,)+) => {
        mod $side {
            $(
                #[test]
                fn $name() {
                    let (transport, kind) = (super::Transport::$transport, super::IoKind::$kind);
                    let env = super::TestEnv::over(transport, kind, false, 1).with_device();
                    super::suite::$module::$name(&env);
                }
            )+
        }
    };
}

for_device_behaviours!(device_tests, device, Embedded, Blocking);
for_device_behaviours!(device_tests, device_sim, Embedded, Sim);
for_device_behaviours!(device_tests, device_tcp, Tcp, Blocking);
for_device_behaviours!(device_tests, device_shown, SharedArena, Blocking);
for_device_behaviours!(device_tests, device_sim_link, Sim, Sim);
