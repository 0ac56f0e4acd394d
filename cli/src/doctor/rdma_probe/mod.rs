//! `pagelith doctor rdma`: transfers and revocation of memory on each usable port, over a connection
//! of the port with itself.

mod loopback;
mod revocation;
mod transfer;

use std::sync::Arc;

use pagelith::io::verbs::{Device, GidWish, Library, Port, VerbsError};

use self::loopback::{BYTES, Loopback, pattern};
use self::revocation::Case;
use super::check::Check;

/// Connections that a case of revocation is tried on.
const ROUNDS: u32 = 5;

/// The checks of each port of each device. A machine without a usable port is a problem: nothing
/// was checked.
pub(super) fn checks() -> Vec<Check> {
    let mut checks = Vec::new();
    if let Err(error) = of_all(&mut checks) {
        checks.push(unusable("rdma-devices", &error));
    }
    let tried = |check: &Check| check.name != "rdma-port";
    if !checks.iter().any(tried) {
        let remedy = "see `pagelith doctor` for each port and its GIDs";
        checks.push(Check::problem(
            "rdma-devices",
            "no usable port, so nothing was checked",
            remedy,
        ));
    }
    checks
}

fn of_all(checks: &mut Vec<Check>) -> Result<(), VerbsError> {
    let library = Library::load()?;
    for name in Device::names(&library)? {
        match Device::open(&library, &name) {
            Ok(device) => {
                let ports = 1..=device.limits().ports;
                checks.extend(ports.flat_map(|number| of_port(&device, number)));
            }
            Err(error) => checks.push(unusable("rdma-device", &error)),
        }
    }
    Ok(())
}

fn unusable(name: &'static str, error: &VerbsError) -> Check {
    Check::problem(name, error.to_string(), "see `pagelith doctor`")
}

fn of_port(device: &Arc<Device>, number: u8) -> Vec<Check> {
    let usable = Port::of(device, number).and_then(|port| {
        port.check_active()?;
        port.choose_gid(GidWish::Best)?;
        Ok(port)
    });
    match usable {
        Ok(port) => PortProbe { device, port, pattern: pattern(1), connections: 0 }.checks(),
        Err(error) => {
            let found = format!("skipped: {error}");
            vec![Check::note("rdma-port", found, "nothing to do for an unused port")]
        }
    }
}

/// The probe of a port.
struct PortProbe<'d> {
    device: &'d Arc<Device>,
    port: Port,
    pattern: Vec<u8>,
    /// Connections that were made.
    connections: u32,
}

impl PortProbe<'_> {
    fn checks(mut self) -> Vec<Check> {
        let mut checks = vec![
            self.transfer("rdma-write", transfer::write),
            self.transfer("rdma-read", transfer::read),
        ];
        checks.extend(Case::ALL.map(|case| self.revocation(case)));
        checks
    }

    fn connect(&mut self) -> anyhow::Result<Loopback> {
        self.connections += 1;
        Loopback::new(self.device, &self.port, self.connections, &self.pattern)
    }

    fn name(&self) -> String {
        format!("device={} port={}", self.port.device, self.port.number)
    }

    fn transfer(
        &mut self,
        name: &'static str,
        transfer: impl FnOnce(&mut Loopback) -> anyhow::Result<f64>,
    ) -> Check {
        let port = self.name();
        let mut ends = match self.connect() {
            Ok(ends) => ends,
            Err(error) => return not_tried(name, &error, &port),
        };
        match transfer(&mut ends) {
            Ok(rate) => {
                let rate = rate / 1e9;
                let found = format!("all bytes are right bytes={BYTES} gb_per_s={rate:.3} {port}");
                Check::ok(name, found)
            }
            Err(error) => broken(name, format!("{error:#} {port}")),
        }
    }

    fn revocation(&mut self, case: Case) -> Check {
        let port = self.name();
        let mut counted = 0;
        for round in 1..=ROUNDS {
            let ends = match self.connect() {
                Ok(ends) => ends,
                Err(error) => return not_tried(case.name(), &error, &port),
            };
            match case.run(ends) {
                Ok(under_way) => counted += u32::from(under_way),
                Err(error) => {
                    return broken(case.name(), format!("{error:#} round={round} {port}"));
                }
            }
        }
        let found = format!("rounds={ROUNDS} amid_bytes={counted} {port}");
        match counted {
            0 => Check::note(
                case.name(),
                format!("not shown: all bytes had landed before the end {found}"),
                "run it again while the machine is idle",
            ),
            _ => Check::ok(case.name(), format!("{} {found}", case.rule())),
        }
    }
}

/// Nothing was learned about the device, because of a limit of this process or of the device.
fn not_tried(name: &'static str, error: &anyhow::Error, port: &str) -> Check {
    let found = format!("cannot connect the port with itself: {error:#} {port}");
    Check::problem(name, found, "do what the error says, then run it again")
}

fn broken(name: &'static str, found: String) -> Check {
    let remedy = "do not use this device for RDMA; update its driver and firmware, and report it";
    Check::problem(name, found, remedy)
}
