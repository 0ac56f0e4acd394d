//! A small ext4 on a loop device, optionally with slow writes. Everything is undone on drop, also
//! when the test fails. Needs root; [`LoopFs::new`] returns what is missing, for the message of a
//! skipped test.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

/// Mount point of the block I/O controller of cgroup v1.
const BLKIO: &str = "/sys/fs/cgroup/blkio";
const WRITES: &str = "blkio.throttle.write_bps_device";
const READS: &str = "blkio.throttle.read_bps_device";

/// A mounted ext4.
pub struct LoopFs {
    // In the order in which they are undone.
    mount: Mount,
    device: Device,
    home: TempDir,
}

struct Device(String);

struct Mount(PathBuf);

impl LoopFs {
    /// An empty file system of `mib` MiB; `Err` gives the reason if there can be none on this
    /// machine.
    pub fn new(mib: u64) -> Result<LoopFs, String> {
        LoopFs::made_with(mib, &[])
    }

    /// As [`LoopFs::new`], with more arguments for mkfs.ext4.
    pub fn made_with(mib: u64, options: &[&str]) -> Result<LoopFs, String> {
        LoopFs::made_by(mib, "mkfs.ext4", &[&["-q", "-F", "-m", "0"], options].concat())
    }

    /// A btrfs, which needs at least 128 MiB.
    pub fn btrfs(mib: u64) -> Result<LoopFs, String> {
        LoopFs::made_by(mib, "mkfs.btrfs", &["-q", "-f"])
    }

    fn made_by(mib: u64, mkfs: &str, options: &[&str]) -> Result<LoopFs, String> {
        if fs::metadata("/proc/self").map_err(|e| e.to_string())?.uid() != 0 {
            return Err("not root".into());
        }
        let home = tempfile::tempdir().map_err(|e| e.to_string())?;
        let image = home.path().join("image");
        let file = fs::File::create(&image).map_err(|e| e.to_string())?;
        file.set_len(mib << 20).map_err(|e| e.to_string())?;
        let device = run("losetup", &["--find", "--show", text(&image)])?;
        let device = Device(device.trim().to_owned());
        run(mkfs, &[options, &[&device.0]].concat())?;
        let at = home.path().join("mount");
        fs::create_dir(&at).map_err(|e| e.to_string())?;
        run("mount", &[&device.0, text(&at)])?;
        Ok(LoopFs { mount: Mount(at), device, home })
    }

    /// Its mount point.
    pub fn path(&self) -> &Path {
        debug_assert!(self.mount.0.starts_with(self.home.path()));
        &self.mount.0
    }

    /// The backing file of the loop device.
    pub fn image(&self) -> PathBuf {
        self.home.path().join("image")
    }

    /// Extents of a file in [`LoopFs::image`]: (offset in the file, in the image, length), in
    /// order.
    pub fn extents(&self, file: &Path) -> Vec<(u64, u64, u64)> {
        // In bytes: a small ext4 has blocks of 1024, and larger units would be rounded.
        let said = run("filefrag", &["-v", "-b1", text(file)]).expect("filefrag");
        // "   0:        0..    8191:      34816..     43007:   8192:  ..."
        let piece = |line: &str| {
            let (number, rest) = line.trim_start().split_once(':')?;
            number.parse::<u64>().ok()?;
            let words: Vec<&str> = rest.split(['.', ':', ' ']).filter(|w| !w.is_empty()).collect();
            let number = |i: usize| words.get(i)?.parse::<u64>().ok();
            Some((number(0)?, number(2)?, number(4)?))
        };
        said.lines().filter_map(piece).collect()
    }

    /// Make it read-only.
    pub fn make_read_only(&self) {
        run("mount", &["-o", "remount,ro", text(self.path())]).expect("remount");
    }

    /// Free bytes, once all writes in flight are on the device.
    pub fn free_bytes(&self) -> u64 {
        run("sync", &["-f", text(self.path())]).expect("sync");
        let said = run("stat", &["-f", "-c", "%f %S", text(self.path())]).expect("stat");
        let numbers: Vec<u64> =
            said.split_whitespace().map(|n| n.parse().expect("a number")).collect();
        numbers[0] * numbers[1]
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        // Lazily if necessary: writes of a killed process may hold it for another moment.
        if run("umount", &[text(&self.0)]).is_err() {
            let _ = run("umount", &["--lazy", text(&self.0)]);
        }
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        let _ = run("losetup", &["--detach", &self.0]);
    }
}

/// A cgroup whose writes to one device are slow.
pub struct Throttle(PathBuf);

impl Throttle {
    /// Writes of its processes to `fs` are limited to `bytes_per_s`; `Err` gives the reason if that
    /// is impossible.
    pub fn new(fs: &LoopFs, bytes_per_s: u64) -> Result<Throttle, String> {
        if !Path::new(BLKIO).join(WRITES).exists() {
            return Err(format!("no cgroup v1 blkio throttle at {BLKIO}"));
        }
        let name = fs.device.0.trim_start_matches("/dev/");
        let group = Path::new(BLKIO).join(format!("pagelith-test-{}-{name}", std::process::id()));
        fs::create_dir(&group).map_err(|e| format!("{}: {e}", group.display()))?;
        let throttle = Throttle(group);
        throttle.limit(WRITES, fs, bytes_per_s)?;
        Ok(throttle)
    }

    /// Limit reads of its processes to this rate too.
    pub fn read_too(&self, fs: &LoopFs, bytes_per_s: u64) -> Result<(), String> {
        self.limit(READS, fs, bytes_per_s)
    }

    fn limit(&self, control: &str, fs: &LoopFs, bytes_per_s: u64) -> Result<(), String> {
        let name = fs.device.0.trim_start_matches("/dev/");
        let number =
            fs::read_to_string(format!("/sys/block/{name}/dev")).map_err(|e| e.to_string())?;
        fs::write(self.0.join(control), format!("{} {bytes_per_s}", number.trim()))
            .map_err(|e| format!("{control}: {e}"))
    }

    /// Put this process into the group, with all of its threads.
    pub fn take_in_this_process(&self) -> Result<(), String> {
        enter(&self.0)
    }

    /// Remove this process from the group.
    pub fn let_this_process_go(&self) -> Result<(), String> {
        enter(Path::new(BLKIO))
    }

    /// A command whose process is in the group from its first instruction on.
    pub fn command(&self, program: &Path) -> Command {
        let mut command = Command::new("sh");
        command
            .args(["-c", r#"echo $$ > "$0/cgroup.procs" && exec "$@""#])
            .arg(&self.0)
            .arg(program);
        command
    }

    /// Wait for every write that the group has submitted to `fs`. The throttle lets a group's
    /// writes to a device through in order, so a write submitted now is done after all of them.
    pub fn drain(&self, fs: &LoopFs) {
        let file = format!("of={}", text(&fs.path().join("drain")));
        let mut dd = self.command(Path::new("dd"));
        let done = dd.args(["if=/dev/zero", &file, "bs=4096", "count=1", "oflag=direct"]).output();
        let done = done.expect("dd");
        assert!(done.status.success(), "{done:?}");
    }
}

fn enter(group: &Path) -> Result<(), String> {
    let procs = group.join("cgroup.procs");
    fs::write(&procs, std::process::id().to_string())
        .map_err(|e| format!("{}: {e}", procs.display()))
}

impl Drop for Throttle {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}

/// Run a tool to its end; returns its output, or its errors.
pub fn run(program: &str, args: &[&str]) -> Result<String, String> {
    let done = Command::new(program).args(args).output().map_err(|e| format!("{program}: {e}"))?;
    if done.status.success() {
        return Ok(String::from_utf8_lossy(&done.stdout).into_owned());
    }
    Err(format!("{program}: {}", String::from_utf8_lossy(&done.stderr).trim()))
}

/// A path as an argument.
pub fn text(path: &Path) -> &str {
    path.to_str().expect("a path that is text")
}
