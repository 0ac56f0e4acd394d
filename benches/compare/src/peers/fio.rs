//! fio, the limit: one large file, O_DIRECT, io_uring. Writes are of 1 MiB, eight in flight. Reads
//! are of one object each, as many in flight as the batches in flight contain, every place once,
//! into registered memory (fio would fault in unregistered memory during the measurement) of huge
//! pages. Times are of single transfers, CPU is what fio reports for its job, and the bytes are not
//! checked.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};
use serde_json::Value;

use crate::cost::Phase;
use crate::engine::{drop_page_cache, empty};
use crate::peer::{Round, Side, SideProperties};
use crate::work::Work;

pub(super) const NAME: &str = "fio";

pub(super) struct Fio {
    work: Work,
    dir: PathBuf,
    huge: Option<HugePages>,
}

/// Huge pages for fio's memory, reserved during the comparison.
struct HugePages {
    before: u64,
}

/// Number of huge pages that the kernel has reserved.
const RESERVED: &str = "/proc/sys/vm/nr_hugepages";
/// Bytes of a huge page, on x86-64 and most arm64.
const HUGE_PAGE_BYTES: usize = 2 << 20;

impl HugePages {
    /// `None` if the kernel does not provide them.
    fn reserve(bytes: usize) -> Option<HugePages> {
        let reserved = || fs::read_to_string(RESERVED).ok()?.trim().parse::<u64>().ok();
        let before = reserved()?;
        // Two more, because fio rounds up.
        let wanted = before + bytes.div_ceil(HUGE_PAGE_BYTES) as u64 + 2;
        fs::write(RESERVED, wanted.to_string()).ok()?;
        let pages = HugePages { before };
        (reserved()? >= wanted).then_some(pages)
    }
}

impl Drop for HugePages {
    fn drop(&mut self) {
        if let Err(error) = fs::write(RESERVED, self.before.to_string()) {
            eprintln!("huge pages stay reserved: {error} file={RESERVED} before={}", self.before);
        }
    }
}

impl Fio {
    pub(super) fn find(work: &Work, dir: &Path) -> anyhow::Result<Box<dyn Side>> {
        let found = Command::new("fio").arg("--version").output();
        if !found.is_ok_and(|out| out.status.success()) {
            bail!("it is not installed");
        }
        let huge = HugePages::reserve(work.batch * work.depth * work.object_bytes);
        Ok(Box::new(Fio { work: *work, dir: dir.join(NAME), huge }))
    }

    fn job(
        &self,
        direction: &str,
        block: usize,
        in_flight: usize,
        more: &[String],
    ) -> anyhow::Result<Phase> {
        let mut fio = Command::new("fio");
        fio.arg("--name=limit").arg(format!("--filename={}", self.dir.join("data").display()));
        fio.arg(format!("--size={}", self.work.bytes())).arg(format!("--bs={block}"));
        fio.arg(format!("--iodepth={in_flight}")).args([
            "--ioengine=io_uring",
            "--direct=1",
            "--fixedbufs=1",
        ]);
        fio.arg("--output-format=json").args(more);
        let out = fio.output().context("fio does not start")?;
        if !out.status.success() {
            bail!("fio failed: {}", String::from_utf8_lossy(&out.stderr).trim());
        }
        // Notes may precede it.
        let start = out.stdout.iter().position(|b| *b == b'{').context("fio printed no JSON")?;
        let report: Value = serde_json::from_slice(&out.stdout[start..])?;
        phase(&report["jobs"][0], direction).context("fio's output lacks the figures of the job")
    }
}

/// A job's figures. Its bandwidth is in bytes a second, its CPU in percent of its time.
fn phase(job: &Value, direction: &str) -> Option<Phase> {
    let side = &job[direction];
    let bytes_per_s = side["io_bytes"].as_f64()? / (side["runtime"].as_f64()? / 1e3);
    let cpus = (job["usr_cpu"].as_f64()? + job["sys_cpu"].as_f64()?) / 100.0;
    let percentile = |p: &str| Some(side["clat_ns"]["percentile"][p].as_f64()? / 1e3);
    Some(Phase {
        gb_per_s: bytes_per_s / 1e9,
        cpu_s_per_gb: cpus / (bytes_per_s / 1e9),
        p50_us: percentile("50.000000")?,
        p99_us: percentile("99.000000")?,
    })
}

impl Side for Fio {
    fn name(&self) -> &'static str {
        NAME
    }

    fn manner(&self) -> SideProperties {
        let pages = if self.huge.is_some() { "huge pages" } else { "pages of 4 KiB" };
        let in_flight = format!("{} reads into {pages}", self.work.batch * self.work.depth);
        SideProperties { in_flight, verified_by: "not verified".to_owned(), page_cache: false }
    }

    fn round(&mut self, number: u32) -> anyhow::Result<Round> {
        empty(&self.dir)?;
        let sync = ["--rw=write".to_owned(), "--end_fsync=1".to_owned()];
        let put = self.job("write", 1 << 20, 8, &sync)?;
        drop_page_cache()?;
        let seed = [
            format!("--randseed={}", self.work.seed + u64::from(number)),
            "--rw=randread".to_owned(),
        ];
        let in_flight = self.work.batch * self.work.depth;
        let get = self.job("read", self.work.object_bytes, in_flight, &seed)?;
        empty(&self.dir)?;
        Ok(Round { put, get, reopen_s: 0.0, values: 0, wrong: 0, absent: 0 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fio_job_output_is_parsed() {
        let job = r#"{"usr_cpu": 4.0, "sys_cpu": 6.0, "read": {"io_bytes": 3000000000, "runtime": 2000,
            "clat_ns": {"percentile": {"50.000000": 5000, "99.000000": 9000}}}}"#;
        let phase = phase(&serde_json::from_str(job).unwrap(), "read").unwrap();
        assert_eq!((phase.gb_per_s, phase.p50_us, phase.p99_us), (1.5, 5.0, 9.0));
        assert!((phase.cpu_s_per_gb - 0.1 / 1.5).abs() < 1e-12);
    }
}
