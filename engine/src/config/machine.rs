//! Checks that depend on the directories and on the limits of the process, made before any file is
//! created.

use std::path::{Path, PathBuf};

use pagelith_io::file_system::{file_bytes_max, is_memory};

use super::error::{ConfigError, Problem, ok_unless_problems};
use super::size::Size;
use super::valid::{MachineLimits, ValidConfig};

impl ValidConfig {
    /// Checks against this machine, apart from its memory: directories whose files are in memory
    /// (tmpfs), and the longest file that this process may write. Inspects the directories; creates
    /// nothing.
    pub fn check_machine(&self, limits: &MachineLimits) -> Result<(), ConfigError> {
        self.check_with(limits, file_bytes_max(), is_memory)
    }

    /// The directories whose files are in memory (tmpfs).
    pub fn dirs_in_memory(&self) -> impl Iterator<Item = &PathBuf> {
        self.ssd_dirs().iter().filter(|dir| is_memory(dir))
    }

    pub(super) fn check_with(
        &self,
        limits: &MachineLimits,
        file_max: Option<u64>,
        is_memory: impl Fn(&Path) -> bool,
    ) -> Result<(), ConfigError> {
        let size = Size::from_bytes;
        let mut problems = Vec::new();
        let mut problem =
            |field: &str, message| problems.push(Problem { field: field.to_owned(), message });
        let dirs = self.ssd_dirs();
        if let Some(geometry) = self.geometry(dirs.len() as u32) {
            let others =
                geometry.total_bytes() - u64::from(geometry.segment_count) * geometry.segment_bytes;
            let in_memory: Vec<(usize, &PathBuf)> =
                dirs.iter().enumerate().filter(|(_, dir)| is_memory(dir)).collect();
            let segments: u64 =
                in_memory.iter().map(|(number, _)| geometry.dir_bytes(*number as u32)).sum();
            // Manifests and checkpoints are in the first directory, except for a copy of the
            // manifest.
            let files = segments
                + if in_memory.iter().any(|(number, _)| *number == 0) { others } else { 0 };
            let needed = self
                .memory_plan()
                .total
                .saturating_add(self.memory_reserve())
                .saturating_add(files);
            if let [(_, dir), ..] = in_memory[..]
                && needed > limits.memory_bytes
            {
                let message = format!(
                    "must be on a drive, or ssd.bytes lower: the files of dir={} are memory, and they, the memory plan and \
                     memory.reserve must be at most {}, got={} files={} plan={} memory.reserve={} source={}",
                    dir.display(),
                    size(limits.memory_bytes),
                    size(needed),
                    size(files),
                    size(self.memory_plan().total),
                    size(self.memory_reserve()),
                    limits.memory_source
                );
                problem("ssd.dirs", message);
            }
            let longest = geometry
                .dir_bytes(0)
                .max(geometry.checkpoint_bytes())
                .max(geometry.manifest_bytes());
            if let Some(most) = file_max.filter(|most| *most < longest) {
                let message = format!(
                    "needs a file of {}, and this process may write {} to one: raise RLIMIT_FSIZE (`ulimit -f`), got={}",
                    size(longest),
                    size(most),
                    size(self.ssd_bytes())
                );
                problem("ssd.bytes", message);
            }
        }
        if let Some(most) = file_max.filter(|most| self.dram_shared() && *most < self.arena_bytes())
        {
            let message = format!(
                "is a file of memory with dram.shared=true, and this process may write {} to one: raise RLIMIT_FSIZE \
                 (`ulimit -f`), got={}",
                size(most),
                size(self.arena_bytes())
            );
            problem("dram.bytes", message);
        }
        ok_unless_problems(problems, ())
    }
}

#[cfg(test)]
mod tests {
    use super::super::Config;
    use super::*;

    fn valid(dirs: &[&str]) -> ValidConfig {
        let mut config = Config::default();
        config.ssd.bytes = Size::gib(1);
        config.ssd.dirs = dirs.iter().map(PathBuf::from).collect();
        config.dram.shared = true;
        config.validate(&limits(8 << 30)).expect("valid")
    }

    fn limits(memory_bytes: u64) -> MachineLimits {
        MachineLimits::new(memory_bytes, "test".into())
    }

    fn fields(checked: Result<(), ConfigError>) -> Vec<String> {
        checked.err().into_iter().flat_map(|e| e.problems).map(|problem| problem.field).collect()
    }

    #[test]
    fn files_in_memory_count_in_addition_to_the_memory_plan() {
        let config = valid(&["/memory/a", "/drive/b"]);
        let without = config.memory_plan().total + config.memory_reserve();
        let on_memory = |dir: &Path| dir.starts_with("/memory");
        let check = |memory: u64| config.check_with(&limits(memory), None, on_memory);
        assert!(
            check(without + (544 << 20)).is_ok(),
            "half of the segments, and manifests and checkpoints"
        );
        let refused = check(without + (512 << 20) - (16 << 20)).expect_err("refused").to_string();
        assert!(
            refused.starts_with("ssd.dirs: ") && refused.contains("dir=/memory/a"),
            "{refused}"
        );
        assert_eq!(
            fields(config.check_with(&limits(without), None, |_| false)),
            Vec::<String>::new()
        );
    }

    #[test]
    fn longest_file_is_checked_against_the_file_size_limit() {
        let config = valid(&["/a"]);
        let check = |most| fields(config.check_with(&limits(8 << 30), most, |_| false));
        assert_eq!(check(None), Vec::<String>::new());
        assert_eq!(check(Some(1 << 30)), Vec::<String>::new());
        assert_eq!(check(Some(512 << 20)), ["ssd.bytes"]);
        assert_eq!(check(Some(1 << 20)), ["ssd.bytes", "dram.bytes"]);
    }
}
