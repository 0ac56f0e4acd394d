//! The task in which the devices of a connection work.

use std::time::Duration;

use pagelith_io::clock::Clock;
use pagelith_io::runtime::{Step, Task};

use crate::link::net::SimNet;

/// Longest sleep; a work request ends it.
const SLEEP: Duration = Duration::from_secs(1);

/// Lets everything happen that is due on a connection, until both queue pairs are down.
pub(in crate::link) struct DeviceTask(pub SimNet);

impl Task for DeviceTask {
    fn step(&mut self) -> Step {
        let mut wire = self.0.wire();
        let now = wire.clock.now();
        match wire.with_fabric(|fabric, _| (fabric.is_over(), fabric.next())) {
            None | Some((true, _)) => Step::Done,
            Some((false, next)) => Step::Idle(next.map_or(SLEEP, |next| next.since(now))),
        }
    }
}
