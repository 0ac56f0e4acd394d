//! Bounds of `pagelith serve` on the number of clients and on their mapped memory. No client can
//! change them. They are logged at start.

use std::fmt;

use anyhow::{Context, bail};
use clap::Args;
use pagelith::config::{MachineLimits, Size, SizeError, ValidConfig};
use pagelith::io::limits::{DescriptorLimits, open_descriptors, raise_descriptors};
use pagelith::io::shm::PAIR_MEMORY_BYTES;
use pagelith::layouts::align::align_down;
use pagelith::server::{load, mapped_max_default};
use pagelith::transport::address::Address;
use pagelith::transport::limits::LinkLimits;
use pagelith::transport::shown::REGIONS_MAX;

use crate::output::log;

/// Default maximum of clients: each has a thread.
const LINKS_DEFAULT_MAX: u64 = 4096;
/// Descriptors of a client: its socket, and two io_urings and an eventfd of its session.
const DESCRIPTORS: u64 = 4;
/// Further descriptors of a local client: its link's memory, its shared
/// regions.
const DESCRIPTORS_SHARED: u64 = 1 + REGIONS_MAX as u64;
/// Descriptors of a connection in its handshake, apart from those that its client may pass. In the
/// worst case a client passes as many as a link has, so each such connection also counts as a
/// client.
const GREETING: u64 = 2;
/// Descriptors for everything else: files opened later, HTTP, links to peers.
const OTHER_DESCRIPTORS: u64 = 128;
/// Bytes of mapped memory per byte of its page table.
const BYTES_PER_TABLE_BYTE: u64 = 512;
const CLIENT_MEMORY_MAX: Size = Size::gib(64 << 10);

/// The bounds that an operator can set.
#[derive(Args, Debug)]
pub(crate) struct ClientFlags {
    /// Maximum number of clients, more are refused; by default as many as the descriptor limit
    /// allows, at most 4096
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65_536))]
    links: Option<u32>,
    /// Maximum mapped bytes of memory that clients share, of all clients together, half of it for
    /// one client process; memory beyond that is read by system calls, which is slower. By default
    /// twice the memory of the machine
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
    /// Raise the descriptor limit to the hard limit, and log it. Called before anything is opened.
    pub(crate) fn descriptors() -> DescriptorLimits {
        let descriptors = raise_descriptors();
        if descriptors.before != descriptors.now {
            log!("raised the descriptor limit from={} to={}", descriptors.before, descriptors.now);
        }
        descriptors
    }

    /// The bounds. Called after the store is open, since clients share the remaining descriptors.
    pub(crate) fn limits(
        &self,
        listen: &Address,
        descriptors: DescriptorLimits,
    ) -> anyhow::Result<LinkLimits> {
        let open = open_descriptors().unwrap_or(OTHER_DESCRIPTORS);
        let is_local = matches!(listen, Address::Unix(_));
        let defaults = LinkLimits::default();
        let links_max =
            links_max(self.links, is_local, descriptors.now, open, defaults.unauthenticated_max)?;
        let mapped_max = match self.client_memory {
            Some(size) => size.bytes(),
            None => mapped_max_default()
                .context("cannot read the memory size of this machine, set --client-memory")?,
        };
        let limits =
            LinkLimits { links_max, mapped_max, mapped_of_peer_max: mapped_max / 2, ..defaults };
        Ok(limits)
    }
}

/// Memory of the process for all clients together, in addition to the store's memory plan. Printed
/// at open. Links may exceed it by at most [`links_bytes_max`], which grows with the number of
/// clients and is printed too.
pub(crate) struct ClientMemory {
    transfer: u64,
}

impl ClientMemory {
    /// The memory for clients of a store with this configuration.
    ///
    /// # Errors
    /// If the store's plan and this memory exceed the machine's memory or its cgroup limit.
    pub(crate) fn for_store(config: &ValidConfig, transfer: Size) -> anyhow::Result<ClientMemory> {
        let clients = ClientMemory { transfer: align_down(transfer.bytes()) };
        let facts = MachineLimits::of_this_machine()?;
        let plan = config.memory_plan();
        let total = plan.total.saturating_add(clients.total());
        if total > facts.memory_bytes {
            let (total, memory) = (Size::from_bytes(total), Size::from_bytes(facts.memory_bytes));
            let source = facts.memory_source;
            bail!(
                "the store and its clients must use at most {memory}: lower dram.bytes or --transfer got={total} {plan} {clients} source={source}"
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

/// Maximum memory of `links_max` links that counts neither as transfer memory nor as memory of
/// operations, in bytes. Reached if each client sends as much as possible and reads nothing.
fn links_bytes_max(links_max: usize) -> u64 {
    (links_max as u64).saturating_mul(load::OUTSIDE_BYTES_MAX)
}

/// Log the bounds of clients.
pub(crate) fn log_bounds(
    limits: &LinkLimits,
    listen: &Address,
    descriptors: DescriptorLimits,
    memory: &ClientMemory,
) {
    let LinkLimits { links_max, mapped_max, mapped_of_peer_max, .. } = limits;
    let (descriptors, links_bytes) =
        (descriptors.now, Size::from_bytes(links_bytes_max(*links_max)));
    if matches!(listen, Address::Tcp(_)) {
        return log!(
            "clients {memory} links_max={links_max} links_bytes_max={links_bytes} descriptors={descriptors}"
        );
    }
    log!(
        "clients {memory} links_max={links_max} links_bytes_max={links_bytes} descriptors={descriptors} link_memory_bytes_max={} client_memory_bytes_max={mapped_max} \
         client_memory_of_one_bytes_max={mapped_of_peer_max} client_page_table_bytes_max={}",
        *links_max as u64 * PAIR_MEMORY_BYTES as u64,
        mapped_max.div_ceil(BYTES_PER_TABLE_BYTE),
    );
}

/// The maximum of clients with `most` descriptors allowed and `open` in use: `requested`, if the
/// remaining descriptors suffice for that. `unknown` is the maximum of unauthenticated connections.
fn links_max(
    requested: Option<u32>,
    is_local: bool,
    most: u64,
    open: u64,
    unknown: usize,
) -> anyhow::Result<usize> {
    let of_link = DESCRIPTORS + if is_local { DESCRIPTORS_SHARED } else { 0 };
    let fixed = open + OTHER_DESCRIPTORS + GREETING * unknown as u64;
    let fits = most.saturating_sub(fixed) / of_link;
    let remedy = "raise the hard limit (ulimit -Hn, LimitNOFILE=, --ulimit nofile=)";
    if fits == 0 {
        bail!(
            "the descriptor limit leaves none for clients: {remedy} descriptors={most} needed={}",
            fixed + of_link
        );
    }
    match requested.map(u64::from) {
        Some(links) if links > fits => {
            let needed = fixed + links * of_link;
            bail!(
                "too few descriptors for that many clients: {remedy}, or lower --links links={links} descriptors={most} needed={needed}"
            )
        }
        links => Ok(usize::try_from(links.unwrap_or(fits.min(LINKS_DEFAULT_MAX)))?),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn number_of_clients_follows_the_descriptor_limit() {
        let of = |links, is_local, most| links_max(links, is_local, most, 72, 64).ok();
        // 72 open, 128 for other uses, 128 in handshakes.
        assert_eq!(of(None, false, 328 + 400), Some(100));
        assert_eq!(of(None, true, 328 + 37 * 7), Some(7));
        assert_eq!(of(None, false, u64::MAX), Some(4096));
        assert_eq!((of(Some(100), false, 728), of(Some(101), false, 728)), (Some(100), None));
        assert_eq!((of(None, false, 331), of(None, false, 0)), (None, None));
    }

    #[test]
    fn memory_of_links_outside_of_the_plan_is_proportional_to_their_number() {
        // 2 MiB and 64 KiB of input, 4 MiB and 64 KiB of output, 256 KiB of operations that may
        // always start.
        assert_eq!(links_bytes_max(1), 6_684_672);
        assert_eq!(links_bytes_max(4096), 4096 * 6_684_672);
    }

    #[test]
    fn invalid_bounds_are_refused_with_their_names() {
        let why = links_max(Some(9), true, 400, 10, 64).expect_err("too many").to_string();
        assert!(
            why.contains("links=9") && why.contains("needed=599") && why.contains("--links"),
            "{why}"
        );
        assert!(
            client_memory("65TiB").is_err()
                && client_memory("0B").is_ok()
                && client_memory("x").is_err()
        );
    }
}
