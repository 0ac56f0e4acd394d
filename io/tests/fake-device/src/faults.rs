//! The script of the fake driver: how it differs from a good one.

/// Faults and properties. A script is a list of `name=value`, separated by blanks.
#[derive(Clone, Debug)]
pub struct Faults {
    /// `devices=N`: the number of devices.
    pub devices: u32,
    /// `memory=N`: bytes that may be allocated on all devices together.
    pub memory: u64,
    /// `late=N`: each piece of work waits N steps of its stream before it begins.
    pub late: u32,
    /// `hang=1`: no work begins.
    pub hang: bool,
    /// `fail-lock=N`: the Nth registration from now fails.
    pub fail_lock: u32,
    /// `fail-copy=N`: the call that queues the Nth copy from now fails.
    pub fail_copy: u32,
    /// `lose-at-copy=N`: the device is lost when it begins the Nth copy from now.
    pub lose_at_copy: u32,
    /// `lock-limit=N`: bytes that may be registered.
    pub lock_limit: u64,
    /// `seed=N`: the order in which streams advance.
    pub seed: u64,
}

impl Default for Faults {
    fn default() -> Faults {
        Faults {
            devices: 1,
            memory: 1 << 40,
            late: 0,
            hang: false,
            fail_lock: 0,
            fail_copy: 0,
            lose_at_copy: 0,
            lock_limit: u64::MAX,
            seed: 1,
        }
    }
}

impl Faults {
    /// Apply a script; `None` if it is not one.
    pub fn apply(&mut self, script: &str) -> Option<()> {
        for setting in script.split_whitespace() {
            let (name, value) = setting.split_once('=')?;
            let number: u64 = value.parse().ok()?;
            let small = u32::try_from(number).ok();
            match name {
                "devices" => self.devices = small?,
                "memory" => self.memory = number,
                "late" => self.late = small?,
                "hang" => self.hang = number != 0,
                "fail-lock" => self.fail_lock = small?,
                "fail-copy" => self.fail_copy = small?,
                "lose-at-copy" => self.lose_at_copy = small?,
                "lock-limit" => self.lock_limit = number,
                "seed" => self.seed = number,
                _ => return None,
            }
        }
        Some(())
    }
}

/// Count down to a fault, and say whether this is the one.
pub fn strikes(countdown: &mut u32) -> bool {
    let strikes = *countdown == 1;
    *countdown = countdown.saturating_sub(1);
    strikes
}
