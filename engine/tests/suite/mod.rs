//! What a store must do, whichever side moves its bytes: one function a behaviour, run by `behaviour.rs` and
//! `seccomp.rs` over every side there is.
#![allow(clippy::disallowed_methods)] // Tests make files and threads of their own.
#![allow(dead_code)] // Each test program uses its own part.

pub mod attached;
pub mod damage;
pub mod deadlines;
pub mod events;
pub mod eviction;
pub mod face;
pub mod first_writer;
pub mod found_damage;
pub mod gauges;
pub mod group_changes;
pub mod groups;
pub mod groups_begun;
pub mod headers;
pub mod hits;
pub mod hits_drawn;
pub mod kit;
pub mod making_room;
pub mod parts;
pub mod pins;
pub mod prefetch;
pub mod pressure;
pub mod reclaim;
pub mod removal;
pub mod round_trip;
pub mod runs;
pub mod scrub;
pub mod shapes;
pub mod sick;
pub mod sick_segments;
pub mod staging;
pub mod stats;
pub mod tickets;
pub mod tombstones;
pub mod world;

/// Hands the list of behaviours to a macro.
macro_rules! for_all_behaviours {
    ($then:ident $(, $arg:tt)*) => {
        $then! { $($arg,)*
            round_trip::every_size_from_memory_and_cold,
            round_trip::aligned_destinations_are_read_straight_into,
            round_trip::scatter_lists,
            round_trip::ranges,
            round_trip::ranges_that_do_not_fit,
            round_trip::batches_of_any_size_and_a_key_twice,
            round_trip::an_object_of_75_mb,
            runs::a_page_several_times_in_a_batch_is_as_if_put_one_by_one,
            runs::a_batch_larger_than_the_arena_is_stored,
            runs::what_is_refused_stops_nothing,
            staging::an_object_larger_than_the_budget_arrives_whole,
            staging::a_batch_larger_than_the_budget_arrives_whole,
            staging::four_threads_share_a_small_staging,
            tickets::several_in_flight_and_out_of_order,
            tickets::owned_buffers_come_back,
            tickets::a_session_dropped_in_flight_is_clean,
            tickets::a_closed_store_says_so,
            first_writer::the_second_put_is_not_stored,
            first_writer::the_first_on_ssd_wins,
            first_writer::the_first_wins_after_reopen,
            first_writer::another_length_is_invalid,
            groups::visible_whole_or_not,
            groups::ten_objects_lie_together_on_ssd,
            groups::evicted_whole,
            groups::larger_than_a_segment_is_invalid,
            groups::what_is_no_group_is_invalid,
            groups::a_group_takes_in_what_was_put_alone,
            groups::whole_or_gone_after_a_crash,
            groups::groups_that_a_small_index_has_no_room_for_after_a_crash_go_whole,
            groups_begun::visible_at_commit_and_not_before,
            groups_begun::from_several_threads,
            groups_begun::what_is_here_by_itself_counts_as_put_and_keeps_its_bytes,
            groups_begun::two_base_sets_are_refused,
            groups_begun::what_cannot_be_put_is_named,
            groups_begun::dropped_at_its_deadline,
            groups_begun::what_was_not_committed_is_not_there_after_an_end,
            groups_begun::a_clear_takes_what_waits,
            groups_begun::what_waits_takes_half_of_the_arena_at_most,
            parts::the_last_part_makes_a_page_visible,
            parts::a_part_that_is_wrong_is_named_and_the_others_are_put,
            group_changes::what_waits_gives_way_to_what_is_put_meanwhile,
            group_changes::another_member_names_the_same_base,
            group_changes::what_lost_its_base_is_no_obstacle,
            group_changes::removed_or_cleared_while_it_is_taken_in,
            group_changes::cleared_while_a_group_in_one_call_takes_it_in,
            group_changes::what_waits_is_removed_too,
            group_changes::several_threads_commit,
            group_changes::the_oldest_of_many_becomes_complete,
            group_changes::a_pin_keeps_the_base_too,
            group_changes::a_checkpoint_has_room_for_every_link,
            attached::with_its_base,
            attached::before_its_base,
            attached::a_base_that_never_comes,
            attached::removed_with_its_base,
            attached::evicted_from_memory_with_its_base,
            attached::reclaimed_with_its_base,
            attached::what_does_not_fit_together_is_refused,
            attached::to_a_page_that_is_one_object,
            hits::any_residency_in_any_pools,
            hits::a_page_counts_with_all_its_objects,
            hits::thousands_of_pages_in_one_call,
            hits::what_can_be_used_counts_as_asked_for,
            hits::a_session_answers_at_once,
            hits::no_pages_and_no_query,
            removal::removed_is_gone_at_once,
            removal::removed_stays_gone_after_a_crash,
            removal::removed_stays_gone_after_close,
            removal::put_again_after_remove_survives,
            removal::one_member_takes_its_group_along,
            removal::clear_takes_one_namespace,
            removal::cleared_stays_gone_after_a_crash,
            removal::cleared_stays_gone_after_close,
            removal::put_again_after_clear_survives,
            tombstones::survive_reclaim_under_fifo,
            tombstones::survive_reclaim_under_recency,
            tombstones::survive_several_crashes,
            tombstones::are_not_undone_by_a_segment_without_a_head,
            pins::a_pin_holds_while_its_segment_is_reclaimed,
            pins::what_was_pinned_goes_when_the_pin_does,
            pins::a_pin_holds_in_memory,
            pins::a_lease_holds,
            pins::a_lease_ends,
            pins::a_pin_that_outlives_its_store_holds_nothing,
            pins::a_view_survives_pressure,
            pins::a_view_outlives_its_frame_without_dram,
            pins::remove_is_stronger_than_a_pin,
            reclaim::laps_leave_the_youngest,
            reclaim::recency_keeps_what_is_asked_for_within_its_budget,
            reclaim::fifo_writes_nothing_again,
            reclaim::files_never_exceed_the_cap,
            events::say_where_every_object_is,
            events::nothing_is_told_unless_asked_for,
            events::what_nobody_takes_is_counted,
            events::many_are_told_in_one_call,
            events::begin_with_the_open,
            events::damage_is_told_of,
            eviction::tail_before_head,
            eviction::the_least_recently_asked_for_goes_first,
            eviction::exists_prefix_stops_at_the_first_hole,
            eviction::ssd_hits_are_promoted_whole,
            eviction::promotion_can_be_switched_off,
            prefetch::what_is_named_is_in_memory_when_it_is_asked_for,
            prefetch::a_group_goes_whole_or_not_at_all,
            prefetch::what_is_read_ahead_is_bounded_and_pushes_out_nothing_in_use,
            prefetch::what_changes_meanwhile_stays_changed,
            prefetch::damage_is_nobodys_page,
            prefetch::a_store_that_ends_reads_nothing_more,
            eviction::a_full_index_refuses_and_does_not_panic,
            eviction::a_full_index_makes_room_by_reclaim,
            pressure::a_full_arena_is_busy_at_once,
            pressure::who_does_not_wait_for_room_is_answered_at_once,
            pressure::a_waiting_writer_gets_everything_in,
            pressure::an_abandoned_writer_leaves_nothing_torn,
            headers::are_read_once_and_known_then,
            headers::vouch_for_nothing_but_what_is_there,
            deadlines::a_put_into_a_pinned_arena_ends_busy,
            deadlines::no_time_at_all,
            deadlines::flush_and_remove_end_while_syncs_hang,
            deadlines::a_staged_get_ends_while_reads_hang,
            deadlines::while_a_direct_read_is_late_others_are_staged,
            deadlines::a_get_whose_deadline_is_shorter_than_reads_lately_took_ends_in_time,
            deadlines::every_call_ends_while_the_device_hangs,
            deadlines::an_open_ends_while_reads_hang,
            shapes::without_ssd,
            shapes::without_dram,
            shapes::two_directories,
            shapes::directories_in_another_order_are_refused,
            shapes::a_missing_directory_is_refused,
            shapes::a_directory_of_another_store_is_refused,
            stats::flush_reports_what_it_made_durable,
            stats::hits_and_misses_are_all_gets,
            stats::puts_add_up,
            gauges::every_gauge_is_at_rest_again_when_what_it_counts_is_over,
            gauges::a_put_that_is_tried_until_its_time_is_up_is_one_busy_put,
            damage::in_the_payload,
            damage::in_the_header,
            damage::in_the_footer,
            damage::in_the_head_of_a_segment_costs_nothing,
            damage::in_a_group_takes_all_of_it,
            damage::of_a_range_is_found_where_it_is_read,
            damage::by_the_record_of_another_place,
            damage::met_while_another_get_promotes_it_costs_nothing,
            found_damage::damage_found_by_gets_stays_gone_after_a_flush_and_a_crash,
            found_damage::damage_in_the_open_segment_stays_gone_after_a_flush_and_a_crash,
            found_damage::damage_of_a_group_keeps_all_of_it_gone_after_a_flush_and_a_crash,
            found_damage::damage_of_a_base_costs_nothing_that_is_attached_to_it,
            found_damage::damage_that_quarantines_a_segment_stays_gone_after_a_flush_and_a_crash,
            found_damage::damage_found_by_a_scrub_stays_gone_after_a_flush_and_a_crash,
            found_damage::damage_found_by_reading_ahead_stays_gone_after_a_flush_and_a_crash,
            found_damage::damage_found_by_reclaim_stays_gone_after_a_flush_and_a_crash,
            found_damage::segment_quarantined_while_a_checkpoint_is_taken_stays_gone_after_a_flush_and_a_crash,
            found_damage::damage_costs_one_checkpoint_a_flush_and_none_without_it,
            found_damage::damage_whose_checkpoint_cannot_be_written_is_left_to_the_next_flush,
            found_damage::damage_found_while_the_tier_is_read_only_is_remembered_until_it_is_on,
            sick::a_failed_sync_makes_it_read_only_until_a_trial_succeeds,
            sick::a_file_that_was_removed_makes_it_read_only_for_good,
            sick::a_second_failed_sync_turns_it_off_and_a_trial_on_again,
            sick::two_rounds_of_failing_writes_are_borne_and_three_are_not,
            sick::a_failed_write_seals_the_segment_at_its_last_good_record,
            sick::a_manifest_that_could_not_be_written_is_written_later,
            sick::a_device_that_ends_nothing_is_not_waited_for,
            sick::what_was_durable_is_not_lost_by_a_sync_that_fails_while_it_moves,
            sick::a_crash_while_the_manifest_is_written_again_leaves_one_whole,
            sick::a_tombstone_that_was_acked_and_lost_is_noticed,
            scrub::what_is_intact_is_read_and_left_alone,
            scrub::what_is_damaged_is_dropped_and_written_again_from_memory,
            scrub::what_cannot_be_read_is_tried_twice,
            scrub::what_was_brought_wrong_once_is_looked_at_again,
            scrub::no_faster_than_it_is_told_and_no_longer,
            scrub::in_the_background_while_nothing_is_written,
            sick::a_segment_without_a_footer_is_reclaimed,
            sick_segments::one_whose_first_write_failed_is_used_again,
            sick_segments::one_that_is_used_again_is_nobodys_place_any_more,
            sick_segments::no_checkpoint_is_taken_of_a_tier_that_is_off,
            sick_segments::one_failed_sync_of_a_trial_counts_once,
            sick_segments::what_is_written_while_an_off_tier_is_forgotten_is_whole_or_gone,
            sick_segments::of_one_that_is_emptied_nobody_sees_a_part_of_a_group,
            making_room::what_is_cleared_is_held_by_no_pin,
            making_room::an_index_full_of_pins_is_not_written_again_and_again,
            making_room::removals_one_by_one_do_not_fill_the_log,
            making_room::a_tier_that_can_read_no_victim_stops_writing,
            making_room::copies_of_the_manifest_are_read_block_by_block,
            sick::a_segment_that_fails_too_often_is_quarantined,
            sick::many_quarantined_segments_make_it_read_only,
        }
    };
}

macro_rules! table {
    ($($module:ident :: $name:ident,)+) => {
        /// Every behaviour by name.
        pub const ALL: &[(&str, fn(&world::World))] =
            &[$((concat!(stringify!($module), "::", stringify!($name)), $module::$name),)+];
    };
}
for_all_behaviours!(table);
