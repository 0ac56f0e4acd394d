//! How many clients `pagelith serve` takes, and how much of their memory it maps: bounds that no client moves, said at the start.

use std::fmt;

use anyhow::{Context, bail};
use clap::Args;
use pagelith::config::{Facts, Size, SizeError, ValidConfig};
use pagelith::io::facts::MemoryFacts;
use pagelith::io::limits::{Descriptors, open_descriptors, raise_descriptors};
use pagelith::io::shm::PAIR_MEMORY_BYTES;
use pagelith::layouts::align::align_down;
use pagelith::serve::load;
use pagelith::transport::address::Address;
use pagelith::transport::limits::Limits;
use pagelith::transport::shown::REGIONS_MAX;

use crate::output::log;

/// Most clients by default: each has a thread.
const LINKS_DEFAULT_MAX: u64 = 4096;
/// Descriptors of a client: its socket, and of a session two rings and an event.
const DESCRIPTORS: u64 = 4;
/// Of one on this host besides: the memory of its link, and the regions that it shares.
const DESCRIPTORS_SHARED: u64 = 1 + REGIONS_MAX as u64;
/// Of a connection in its greeting: as many as its client may hand over, in the worst case, so each of those counts as a client.
const GREETING: u64 = 2;
/// For everything else: files that are opened meanwhile, HTTP, links to peers.
const SPARE: u64 = 128;
/// Bytes of a mapping that a page of its table is for, as a share.
const TABLE_SHARE: u64 = 512;
const CLIENT_MEMORY_MAX: Size = Size::gib(64 << 10);

/// The bounds that an operator may choose.
#[derive(Args, Debug)]
pub(crate) struct ClientFlags {
    /// Most clients at a time, one more is refused; by default as many as there are descriptors for, and at most 4096
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65_536))]
    links: Option<u32>,
    /// Bytes of clients' own memory that is mapped, of all clients together, half of it of one client's process; what is
    /// beyond is read by calls, slower. By default twice the memory of the machine
    #[arg(long, value_name = "SIZE", value_parser = client_memory)]
    client_memory: Option<Size>,
}

/// The value of `--client-memory`.
fn client_memory(text: &str) -> Result<Size, String> {
    let size: Size = text.parse().map_err(|error: SizeError| error.to_string())?;
    match size <= CLIENT_MEMORY_MAX {
        true => Ok(size),
        false => Err(format!("must be a size up to {CLIENT_MEMORY_MAX}")),
    }
}

impl ClientFlags {
    /// Raise the number of descriptors as far as the system lets it, and say so. Before anything is opened.
    pub(crate) fn descriptors() -> Descriptors {
        let descriptors = raise_descriptors();
        if descriptors.before != descriptors.now {
            log!("raised the limit of descriptors from={} to={}", descriptors.before, descriptors.now);
        }
        descriptors
    }

    /// The bounds. Taken once the store is open: clients share the descriptors that are left.
    pub(crate) fn limits(&self, listen: &Address, descriptors: Descriptors) -> anyhow::Result<Limits> {
        let open = open_descriptors().unwrap_or(SPARE);
        let is_local = matches!(listen, Address::Unix(_));
        let defaults = Limits::default();
        let links_max = links_max(self.links, is_local, descriptors.now, open, defaults.unknown_max)?;
        let machine = || MemoryFacts::read().map(|facts| 2 * facts.total);
        let mapped_max = match self.client_memory {
            Some(size) => size.bytes(),
            None => machine().context("the memory of this machine is not known")?,
        };
        let limits = Limits { links_max, mapped_max, mapped_of_peer_max: mapped_max / 2, ..defaults };
        Ok(limits)
    }
}

/// Memory that all clients together make the process hold beside the store's own plan, in bytes; printed at open. It is exceeded by no more than
/// [`links_bytes_max`], which grows with the number of clients and is printed too.
pub(crate) struct ClientMemory {
    transfer: u64,
}

impl ClientMemory {
    /// Beside the plan of a store.
    ///
    /// # Errors
    /// The machine or its control group has no room for both.
    pub(crate) fn beside(config: &ValidConfig, transfer: Size) -> anyhow::Result<ClientMemory> {
        let clients = ClientMemory { transfer: align_down(transfer.bytes()) };
        let facts = Facts::of_this_machine()?;
        let plan = config.memory_plan();
        let total = plan.total.saturating_add(clients.total());
        if total > facts.memory_bytes {
            let (total, memory) = (Size::from_bytes(total), Size::from_bytes(facts.memory_bytes));
            let source = facts.memory_source;
            bail!(
                "the store and its clients must have at most {memory}: lower dram.bytes or --transfer got={total} {plan} {clients} source={source}"
            );
        }
        Ok(clients)
    }

    fn total(&self) -> u64 {
        self.transfer.saturating_add(load::ALL_BYTES_MAX)
    }
}

impl fmt::Display for ClientMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let size = Size::from_bytes;
        let (transfer, operations) = (size(self.transfer), size(load::ALL_BYTES_MAX));
        let total = size(self.total());
        write!(f, "transfer={transfer} operations={operations} clients_total={total}")
    }
}

/// Most memory of links that counts neither for the transfer nor for the operations, in bytes: reached if each of so many clients sends as much as it
/// can and reads nothing.
fn links_bytes_max(links_max: usize) -> u64 {
    (links_max as u64).saturating_mul(load::OUTSIDE_BYTES_MAX)
}

/// Say what bounds the clients.
pub(crate) fn said(limits: &Limits, listen: &Address, descriptors: Descriptors, memory: &ClientMemory) {
    let Limits { links_max, mapped_max, mapped_of_peer_max, .. } = limits;
    let (descriptors, links_bytes) = (descriptors.now, Size::from_bytes(links_bytes_max(*links_max)));
    if matches!(listen, Address::Tcp(_)) {
        return log!(
            "clients {memory} links_max={links_max} links_bytes_max={links_bytes} descriptors={descriptors}"
        );
    }
    log!(
        "clients {memory} links_max={links_max} links_bytes_max={links_bytes} descriptors={descriptors} link_memory_bytes_max={} client_memory_bytes_max={mapped_max} \
         client_memory_of_one_bytes_max={mapped_of_peer_max} client_page_table_bytes_max={}",
        *links_max as u64 * PAIR_MEMORY_BYTES as u64,
        mapped_max.div_ceil(TABLE_SHARE),
    );
}

/// How many clients there are descriptors for: of so many that the process may have, and has open; as many as `asked` if that is not more.
fn links_max(
    asked: Option<u32>,
    is_local: bool,
    most: u64,
    open: u64,
    unknown: usize,
) -> anyhow::Result<usize> {
    let of_link = DESCRIPTORS + if is_local { DESCRIPTORS_SHARED } else { 0 };
    let fixed = open + SPARE + GREETING * unknown as u64;
    let fits = most.saturating_sub(fixed) / of_link;
    let remedy = "raise the hard limit (ulimit -Hn, LimitNOFILE=, --ulimit nofile=)";
    if fits == 0 {
        bail!("no descriptors are left for clients: {remedy} descriptors={most} needed={}", fixed + of_link);
    }
    match asked.map(u64::from) {
        Some(asked) if asked > fits => {
            let needed = fixed + asked * of_link;
            bail!(
                "there are not descriptors for so many clients: {remedy}, or lower --links links={asked} descriptors={most} needed={needed}"
            )
        }
        asked => Ok(usize::try_from(asked.unwrap_or(fits.min(LINKS_DEFAULT_MAX)))?),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_are_as_many_as_there_are_descriptors_for() {
        let of = |asked, is_local, most| links_max(asked, is_local, most, 72, 64).ok();
        // 72 open, 128 to spare, 128 in greetings.
        assert_eq!(of(None, false, 328 + 400), Some(100));
        assert_eq!(of(None, true, 328 + 37 * 7), Some(7));
        assert_eq!(of(None, false, u64::MAX), Some(4096));
        assert_eq!((of(Some(100), false, 728), of(Some(101), false, 728)), (Some(100), None));
        assert_eq!((of(None, false, 331), of(None, false, 0)), (None, None));
    }

    #[test]
    fn memory_of_links_outside_of_the_plan_grows_with_their_number() {
        // 2 MiB and 64 KiB that arrive, 4 MiB and 64 KiB that are written, 256 KiB that may always be begun.
        assert_eq!(links_bytes_max(1), 6_684_672);
        assert_eq!(links_bytes_max(4096), 4096 * 6_684_672);
    }

    #[test]
    fn limits_are_refused_by_name() {
        let why = links_max(Some(9), true, 400, 10, 64).expect_err("too many").to_string();
        assert!(why.contains("links=9") && why.contains("needed=599") && why.contains("--links"), "{why}");
        assert!(
            client_memory("65TiB").is_err() && client_memory("0B").is_ok() && client_memory("x").is_err()
        );
    }
}
