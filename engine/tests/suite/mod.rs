//! The required behaviours of a store, one function each. `behaviour.rs` and `seccomp.rs` run them
//! over every I/O backend and transport.
#![allow(clippy::disallowed_methods)] // Tests make files and threads of their own.
#![allow(dead_code)] // Each test program uses its own part.

pub mod absence;
pub mod admission;
pub mod attached;
pub mod backpressure;
pub mod bases;
pub mod batches_in_flight;
pub mod damage;
pub mod damage_after_crash;
pub mod deadlines;
pub mod device;
pub mod env;
pub mod events;
pub mod eviction;
pub mod failing_device;
pub mod failing_segments;
#[path = "../../../io/tests/verbs/fake.rs"]
pub mod fake;
#[path = "../../../io/tests/devices/fake.rs"]
pub mod fake_device;
pub mod first_writer;
pub mod free_space;
pub mod gauges;
pub mod group_changes;
pub mod group_parts;
pub mod groups;
pub mod harness;
pub mod headers;
pub mod helpers;
pub mod hints;
pub mod hits;
pub mod open_groups;
pub mod pins;
pub mod prefetch;
pub mod put_runs;
pub mod random_queries;
pub mod rdma;
pub mod reclaim;
pub mod recompute;
pub mod removal;
pub mod round_trip;
pub mod scrub;
pub mod staging;
pub mod stats;
pub mod tenants;
pub mod tier_combinations;
pub mod tombstones;

/// Hands the list of behaviours to a macro.
macro_rules! for_all_behaviours {
    ($then:ident $(, $arg:tt)*) => {
        $then! { $($arg,)*
            absence::object_never_stored_is_unknown_or_of_another_namespace,
            absence::removed_and_cleared_objects_are_known_as_removed,
            absence::evicted_objects_are_known_by_their_last_tier,
            absence::refused_object_that_left_memory_is_known_as_refused,
            absence::put_that_was_busy_is_known_as_not_taken,
            absence::pending_and_dropped_groups_are_known,
            absence::objects_after_a_hole_and_without_a_base_are_stranded,
            absence::damaged_object_is_known_as_damaged_at_the_next_miss,
            admission::refused_page_is_served_from_memory_and_not_written,
            admission::flush_writes_refused_pages_that_memory_has,
            admission::close_writes_refused_pages_that_memory_has,
            admission::flush_reports_refused_pages_that_left_memory,
            admission::refused_page_that_is_hit_is_written,
            admission::state_is_written_unless_its_page_is_refused,
            admission::removed_page_counts_as_new,
            admission::learned_state_survives_crash_and_close,
            admission::damaged_learned_state_is_not_used,
            admission::group_that_replaces_durable_objects_is_written,
            round_trip::objects_of_every_size_are_got_from_memory_and_ssd,
            round_trip::aligned_destinations_are_read_without_staging,
            round_trip::scatter_lists,
            round_trip::ranges,
            round_trip::invalid_ranges_are_refused,
            round_trip::batches_of_any_size_with_repeated_keys_are_answered,
            round_trip::object_of_75_mb_round_trips,
            put_runs::page_repeated_in_a_batch_is_put_as_if_one_by_one,
            put_runs::groups_of_one_batch_adopt_objects_in_memory_and_on_ssd,
            put_runs::batch_larger_than_the_arena_is_stored,
            put_runs::refused_object_does_not_stop_its_batch,
            staging::object_larger_than_the_budget_is_got_whole,
            staging::batch_larger_than_the_budget_is_got_whole,
            staging::four_threads_share_a_small_staging,
            batches_in_flight::several_batches_in_flight_complete_in_any_order,
            batches_in_flight::owned_buffers_are_returned,
            batches_in_flight::session_dropped_with_batches_in_flight_leaks_nothing,
            batches_in_flight::closed_store_answers_closed,
            first_writer::second_put_of_a_key_is_not_stored,
            first_writer::first_put_on_ssd_wins,
            first_writer::first_put_wins_after_reopen,
            first_writer::put_of_another_length_is_invalid,
            groups::group_is_visible_whole_or_not_at_all,
            groups::group_of_ten_objects_is_one_record_on_ssd,
            groups::group_is_evicted_whole,
            groups::group_larger_than_a_segment_is_invalid,
            groups::invalid_groups_are_refused,
            groups::group_put_adopts_standalone_objects,
            groups::group_is_whole_or_gone_after_a_crash,
            groups::groups_without_index_room_after_a_crash_are_dropped_whole,
            open_groups::begun_group_is_visible_only_after_commit,
            open_groups::group_is_put_by_several_threads,
            open_groups::standalone_object_counts_as_put_and_keeps_its_bytes,
            open_groups::second_base_set_of_a_page_is_refused,
            open_groups::object_that_cannot_be_put_is_named,
            open_groups::incomplete_group_is_dropped_at_its_deadline,
            open_groups::uncommitted_group_is_absent_after_close_and_crash,
            open_groups::clear_drops_waiting_groups,
            open_groups::waiting_groups_take_at_most_half_of_the_arena,
            group_parts::last_part_makes_a_page_visible,
            group_parts::invalid_part_is_named_and_other_parts_are_put,
            group_changes::waiting_group_yields_to_a_concurrent_put,
            group_changes::attached_puts_may_name_any_member_of_the_base,
            group_changes::attached_group_with_evicted_base_does_not_block_put,
            group_changes::object_removed_or_cleared_while_a_group_adopts_it_stays_gone,
            group_changes::object_cleared_while_a_one_call_group_adopts_it_stays_gone,
            group_changes::remove_drops_waiting_groups,
            group_changes::groups_are_committed_by_several_threads,
            group_changes::oldest_of_many_waiting_groups_can_complete,
            group_changes::pin_of_an_attached_object_keeps_its_base,
            group_changes::checkpoint_has_room_for_every_link,
            attached::attached_group_is_visible_with_its_base,
            attached::attached_group_waits_for_its_base,
            attached::attached_group_without_base_is_dropped_at_its_deadline,
            attached::attached_group_is_removed_with_its_base,
            attached::attached_group_is_evicted_from_memory_with_its_base,
            attached::attached_group_is_reclaimed_with_its_base,
            attached::mismatched_attached_groups_are_refused,
            attached::attached_group_may_have_a_standalone_base,
            hints::pages_of_ended_session_leave_first_until_requested,
            hints::caller_whose_hints_are_wrong_is_not_followed,
            hints::hint_is_wrong_if_what_left_is_put_again,
            hints::hint_is_wrong_if_any_object_of_its_last_page_is_requested,
            hints::demoted_page_leaves_memory_and_stays_on_ssd,
            hints::retained_pages_stay_and_take_at_most_a_quarter,
            hints::pages_retained_before_their_put_stay_and_take_at_most_a_quarter,
            hints::group_retained_before_its_put_is_leased_whole,
            hints::page_put_after_its_retention_ended_is_not_kept,
            hints::pages_expected_back_stay_until_then,
            hints::caller_whose_sessions_do_not_return_is_not_followed,
            hints::page_of_low_priority_leaves_first_and_one_of_high_priority_later,
            hints::hint_for_several_namespaces_is_refused,
            hits::hit_rules_match_the_model_for_any_residency,
            hits::page_counts_only_with_all_its_objects,
            hits::query_of_thousands_of_pages_is_answered,
            hits::only_usable_pages_count_as_used,
            hits::superseded_state_does_not_count_as_used,
            hits::superseded_state_leaves_first,
            hits::superseded_state_in_one_group_with_its_page_stays,
            hits::state_with_two_continuations_is_not_superseded,
            hits::query_counts_each_key_once,
            hits::session_answers_queries_at_once,
            hits::empty_and_invalid_queries_are_answered,
            removal::removed_object_is_absent_at_once,
            removal::removed_object_stays_absent_after_a_crash,
            removal::removed_object_stays_absent_after_close,
            removal::object_put_again_after_remove_survives,
            removal::removal_of_a_member_removes_its_group,
            removal::clear_affects_one_namespace,
            removal::cleared_object_stays_absent_after_a_crash,
            removal::cleared_object_stays_absent_after_close,
            removal::clear_holds_after_an_undone_one,
            removal::object_put_again_after_clear_survives,
            tombstones::tombstones_survive_reclaim_under_fifo,
            tombstones::tombstones_survive_reclaim_under_recency,
            tombstones::tombstones_survive_several_crashes,
            tombstones::tombstones_are_not_undone_by_a_segment_without_a_head,
            tombstones::lost_head_before_a_long_record_header_loses_no_object,
            pins::pin_holds_while_its_segment_is_reclaimed,
            pins::unpinned_object_can_be_evicted,
            pins::pin_holds_in_memory,
            pins::lease_holds_until_it_expires,
            pins::expired_lease_holds_nothing,
            pins::pin_that_outlives_its_store_holds_nothing,
            pins::view_stays_valid_under_memory_pressure,
            pins::view_outlives_its_frame_without_dram,
            pins::remove_overrides_a_pin,
            reclaim::log_laps_keep_the_youngest_pages,
            reclaim::recency_policy_keeps_used_pages_within_its_budget,
            reclaim::reclaim_keeps_the_heads_of_a_request,
            reclaim::survivors_are_appended_the_most_recent_last,
            reclaim::group_moved_out_of_a_quarantined_segment_is_written_again,
            reclaim::group_moved_into_a_quarantined_segment_stays_where_it_was,
            reclaim::fifo_policy_rewrites_nothing,
            reclaim::files_never_exceed_the_cap,
            events::events_report_where_every_object_is,
            events::no_events_without_events_max,
            events::unread_events_are_dropped_and_counted,
            events::many_events_are_read_in_one_call,
            events::events_begin_with_the_open,
            events::damage_is_reported_by_event,
            eviction::eviction_takes_the_tail_of_a_chain_first,
            eviction::least_recently_used_page_is_evicted_first,
            eviction::exists_prefix_stops_at_the_first_hole,
            eviction::ssd_hits_are_promoted_whole,
            eviction::promotion_can_be_switched_off,
            prefetch::prefetched_pages_are_got_from_memory,
            prefetch::group_is_prefetched_whole_or_not_at_all,
            prefetch::prefetch_is_bounded_and_evicts_nothing_in_use,
            prefetch::removal_during_prefetch_stays_effective,
            prefetch::prefetch_of_a_damaged_page_keeps_nothing,
            prefetch::closed_store_stops_prefetching,
            eviction::full_index_refuses_puts,
            eviction::full_index_makes_room_by_reclaim,
            backpressure::full_arena_answers_busy_at_once,
            backpressure::put_without_wait_is_answered_at_once,
            backpressure::waiting_writer_stores_everything,
            backpressure::abandoned_writer_leaves_nothing_torn,
            headers::headers_are_read_once_and_cached,
            headers::cached_headers_never_replace_verification,
            deadlines::put_into_a_pinned_arena_ends_busy,
            deadlines::calls_with_zero_timeout_return_at_once,
            deadlines::flush_and_remove_end_while_syncs_hang,
            deadlines::staged_get_ends_while_reads_hang,
            deadlines::reads_are_staged_while_a_direct_read_is_late,
            deadlines::get_with_a_deadline_below_recent_latency_ends_in_time,
            deadlines::every_call_ends_while_the_device_hangs,
            deadlines::open_ends_while_reads_hang,
            tier_combinations::store_without_ssd_works,
            tier_combinations::store_without_dram_works,
            tier_combinations::store_with_two_directories_works,
            tier_combinations::reordered_directories_are_refused,
            tier_combinations::missing_directory_is_refused,
            tier_combinations::directory_of_another_store_is_refused,
            recompute::load_that_is_slower_than_recomputing_is_a_miss,
            recompute::pages_in_memory_are_never_recomputed,
            recompute::get_with_a_prefill_rate_decides_by_that_rate,
            tenants::counts_of_each_namespace_add_up,
            tenants::put_beyond_a_limit_of_memory_is_refused,
            tenants::namespace_that_evicts_its_own_displaces_no_other_from_memory,
            tenants::put_that_is_attached_or_invalid_evicts_no_base_of_its_own,
            tenants::one_put_passes_over_a_bounded_number_of_requested_pages,
            tenants::limit_of_memory_holds_for_promoted_pages,
            tenants::put_beyond_a_limit_of_the_log_is_refused_also_after_a_reopen,
            tenants::limit_of_the_log_counts_a_segment_whose_footer_is_damaged,
            tenants::limit_of_the_log_is_exact_for_puts_without_flush,
            tenants::namespace_that_evicts_its_own_displaces_no_other_from_the_log,
            tenants::idle_pages_are_not_written_again_by_reclaim,
            bases::state_written_before_its_base_is_refused_with_it,
            bases::state_of_a_base_that_a_limit_refused_is_not_written,
            bases::state_of_a_refused_base_that_left_memory_is_refused,
            bases::state_that_reclaim_drops_before_its_base_is_durable_is_refused,
            bases::state_that_is_removed_and_put_again_is_durable_once,
            bases::cleared_state_whose_base_was_not_durable_is_in_no_report,
            bases::state_of_a_removed_base_is_in_no_report,
            bases::state_is_durable_with_a_base_that_a_group_has_replaced,
            stats::flush_reports_what_it_made_durable,
            stats::hits_and_misses_add_up_to_gets,
            stats::put_counters_add_up,
            gauges::gauges_return_to_rest,
            gauges::retried_put_counts_as_one_busy_put,
            damage::damage_in_a_payload_is_a_miss,
            damage::damage_in_a_header_is_a_miss,
            damage::damaged_footer_loses_no_object,
            damage::damaged_segment_head_loses_no_object,
            damage::damage_in_a_group_drops_the_whole_group,
            damage::damage_is_found_only_by_ranges_that_contain_it,
            damage::misplaced_record_is_a_miss,
            damage::damage_found_during_promotion_loses_no_object,
            damage_after_crash::damage_found_by_gets_stays_gone_after_flush_and_crash,
            damage_after_crash::damage_in_the_open_segment_stays_gone_after_flush_and_crash,
            damage_after_crash::damaged_group_stays_gone_after_flush_and_crash,
            damage_after_crash::damaged_base_that_is_put_again_keeps_its_attached_objects,
            damage_after_crash::quarantined_segment_stays_gone_after_flush_and_crash,
            damage_after_crash::damage_found_by_scrub_stays_gone_after_flush_and_crash,
            damage_after_crash::damage_found_by_prefetch_stays_gone_after_flush_and_crash,
            damage_after_crash::damage_found_by_reclaim_stays_gone_after_flush_and_crash,
            damage_after_crash::segment_quarantined_during_a_checkpoint_stays_gone_after_flush_and_crash,
            damage_after_crash::flush_takes_a_checkpoint_only_after_damage,
            damage_after_crash::failed_checkpoint_of_damage_is_retried_by_the_next_flush,
            damage_after_crash::damage_found_while_read_only_is_kept_until_the_tier_is_on,
            failing_device::failed_sync_makes_tier_read_only_until_a_probe_succeeds,
            failing_device::pages_purged_before_a_failed_sync_are_reported_as_lost,
            failing_device::pages_put_while_read_only_are_written_the_last_first,
            failing_device::attached_object_whose_base_is_synced_later_is_durable_with_it,
            failing_device::removed_file_makes_tier_read_only_for_good,
            failing_device::second_failed_sync_turns_tier_off_until_a_probe_succeeds,
            failing_device::third_round_of_failing_writes_makes_tier_read_only,
            failing_device::failed_write_seals_segment_after_its_last_good_record,
            failing_device::failed_manifest_write_is_repeated_later,
            failing_device::stalled_device_blocks_no_call,
            failing_device::failed_sync_during_a_move_loses_no_durable_object,
            failing_device::crash_during_a_manifest_rewrite_leaves_one_valid_copy,
            failing_device::lost_tombstone_write_is_detected,
            scrub::scrub_reads_intact_records_and_changes_nothing,
            scrub::scrub_drops_damage_and_rewrites_it_from_memory,
            scrub::scrub_retries_failed_reads_once,
            scrub::scrub_rereads_a_record_that_failed_verification,
            scrub::scrub_obeys_its_rate_and_timeout,
            scrub::background_scrub_runs_while_the_tier_is_idle,
            failing_device::segment_without_a_footer_is_reclaimed,
            failing_segments::segment_whose_first_write_failed_is_reused,
            failing_segments::reused_segment_has_no_stale_entries,
            failing_segments::no_checkpoint_is_taken_while_tier_is_off,
            failing_segments::failed_sync_of_a_probe_counts_once,
            failing_segments::group_written_while_an_off_tier_is_purged_is_whole_or_gone,
            failing_segments::no_partial_group_is_visible_while_its_segment_is_emptied,
            free_space::cleared_object_is_not_held_by_a_pin,
            free_space::index_full_of_pins_is_not_rewritten_repeatedly,
            free_space::single_removals_do_not_fill_the_log,
            free_space::tier_without_readable_victim_stops_writing,
            free_space::manifest_copies_are_merged_block_by_block,
            failing_device::segment_with_too_many_failed_reads_is_quarantined,
            failing_device::many_quarantined_segments_make_tier_read_only,
        }
    };
}

macro_rules! table {
    ($($module:ident :: $name:ident,)+) => {
        /// Every behaviour by name.
        pub const ALL: &[(&str, fn(&env::TestEnv))] =
            &[$((concat!(stringify!($module), "::", stringify!($name)), $module::$name),)+];
    };
}
for_all_behaviours!(table);
