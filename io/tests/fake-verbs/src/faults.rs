//! The script of a device: how it differs from a good one.

use std::net::IpAddr;

use rustix::io::Errno;

/// Faults and properties of a device. A script is a list of `name=value`, separated by blanks.
#[derive(Clone, Debug)]
pub struct Faults {
    /// `delay=N`: each request waits N steps before it begins.
    pub delay: u32,
    /// `late-bytes=N`: bytes and notices arrive N steps after the sender's completion.
    pub late_bytes: u32,
    /// `late-completions=N`: each completion is delivered N steps late.
    pub late_completions: u32,
    /// `lose-completion=N`: the Nth completion is never delivered.
    pub lose_completion: u32,
    /// `double-completion=N`: the Nth completion is delivered twice.
    pub double_completion: u32,
    /// `swap-completion=N`: the Nth completion is delivered after the next one.
    pub swap_completion: u32,
    /// `notice-first=1`: notices arrive before the bytes in front of them.
    pub notice_first: bool,
    /// `corrupt=1`: one bit of each transfer is wrong.
    pub corrupt: bool,
    /// `lands-after-error=1`: bytes under way land although the receiver is in the error state.
    pub lands_after_error: bool,
    /// `lands-after-destroy=1`: bytes under way land although the receiver was destroyed.
    pub lands_after_destroy: bool,
    /// `lands-after-deregister=1`: bytes under way land although their region was deregistered.
    pub lands_after_deregister: bool,
    /// `stuck=1`: requests never begin.
    pub stuck: bool,
    /// `fail-requests=1`: requests fail, as if the peer did not acknowledge them.
    pub fail_requests: bool,
    /// `refuse-posts=1`: of a list of several requests only the first is posted.
    pub refuse_posts: bool,
    /// `never-drain=1`: requests are not flushed in the error state.
    pub never_drain: bool,
    /// `fail-destroy=N`: the first N attempts to destroy a queue pair fail.
    pub fail_destroy: u32,
    /// `stuck-destroy=1`: the destruction of a queue pair waits until the script changes.
    pub stuck_destroy: bool,
    /// `fail-registration=N`: the Nth registration fails with ENOMEM.
    pub fail_registration: u32,
    /// `max-mr-size=N`: bytes of a memory region.
    pub max_mr_size: u64,
    /// `port=down` or `port=active`.
    pub port_down: bool,
    /// `gids=ADDRESS/TYPE+...`: the GID table; `gids=` empties it.
    pub gids: Vec<([u8; 16], u32)>,
}

impl Faults {
    /// A device without faults, at 192.0.2.N. Its table begins as those of Linux do.
    pub fn none(number: u32) -> Faults {
        let mut faults = Faults {
            delay: 0,
            late_bytes: 0,
            late_completions: 0,
            lose_completion: 0,
            double_completion: 0,
            swap_completion: 0,
            notice_first: false,
            corrupt: false,
            lands_after_error: false,
            lands_after_destroy: false,
            lands_after_deregister: false,
            stuck: false,
            fail_requests: false,
            refuse_posts: false,
            never_drain: false,
            fail_destroy: 0,
            stuck_destroy: false,
            fail_registration: 0,
            max_mr_size: 1 << 40,
            port_down: false,
            gids: Vec::new(),
        };
        let last = number % 255;
        let table = format!("fe80::{number:x}/1+fe80::{number:x}/2+192.0.2.{last}/2");
        faults.gids = gids(&table).unwrap_or_default();
        faults
    }

    /// Apply a script.
    pub fn apply(&mut self, script: &str) -> Result<(), Errno> {
        for setting in script.split_whitespace() {
            let (name, value) = setting.split_once('=').ok_or(Errno::INVAL)?;
            let number = || value.parse::<u32>().map_err(|_| Errno::INVAL);
            match name {
                "delay" => self.delay = number()?,
                "late-bytes" => self.late_bytes = number()?,
                "late-completions" => self.late_completions = number()?,
                "lose-completion" => self.lose_completion = number()?,
                "double-completion" => self.double_completion = number()?,
                "swap-completion" => self.swap_completion = number()?,
                "notice-first" => self.notice_first = number()? != 0,
                "corrupt" => self.corrupt = number()? != 0,
                "lands-after-error" => self.lands_after_error = number()? != 0,
                "lands-after-destroy" => self.lands_after_destroy = number()? != 0,
                "lands-after-deregister" => self.lands_after_deregister = number()? != 0,
                "stuck" => self.stuck = number()? != 0,
                "fail-requests" => self.fail_requests = number()? != 0,
                "refuse-posts" => self.refuse_posts = number()? != 0,
                "never-drain" => self.never_drain = number()? != 0,
                "fail-destroy" => self.fail_destroy = number()?,
                "stuck-destroy" => self.stuck_destroy = number()? != 0,
                "fail-registration" => self.fail_registration = number()?,
                "max-mr-size" => self.max_mr_size = u64::from(number()?),
                "port" => self.port_down = value == "down",
                "gids" => self.gids = gids(value).ok_or(Errno::INVAL)?,
                _ => return Err(Errno::INVAL),
            }
        }
        Ok(())
    }
}

fn gids(text: &str) -> Option<Vec<([u8; 16], u32)>> {
    let entries = text.split('+').filter(|entry| !entry.is_empty());
    let entry = |entry: &str| {
        let (address, kind) = entry.split_once('/')?;
        let gid = match address.parse().ok()? {
            IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
            IpAddr::V6(v6) => v6.octets(),
        };
        Some((gid, kind.parse().ok()?))
    };
    entries.map(entry).collect()
}
