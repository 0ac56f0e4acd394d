//! The table of results for people.

use comfy_table::{CellAlignment, Table, presets};

use super::cell::CellReport;

const HEADER: [&str; 9] =
    ["trace", "policy", "DRAM", "SSD", "hits %", "DRAM %", "SSD %", "writes/request", "speedup"];

/// A row for each result.
pub(super) fn table(reports: &[CellReport]) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(HEADER);
    for report in reports {
        let percent = |ratio: f64| format!("{:.2}", 100.0 * ratio);
        table.add_row([
            report.trace.clone(),
            report.policy.clone(),
            report.dram_blocks.to_string(),
            report.ssd_blocks.to_string(),
            percent(report.hit_ratio),
            percent(report.hit_ratio_dram),
            percent(report.hit_ratio_ssd),
            format!("{:.3}", report.writes_per_block()),
            format!("{:.3}", report.speedup),
        ]);
    }
    for column in 2..HEADER.len() {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table.to_string()
}
