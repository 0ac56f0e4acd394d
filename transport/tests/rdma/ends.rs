//! Two ends of a link with an RDMA data plane.

use std::sync::Arc;
use std::time::Duration;

use pagelith_io::buffer::{KeepAlive, Part};
use pagelith_io::clock::Clock;
use pagelith_io::system::SystemEntropy;
use pagelith_io::verbs::{DeviceMemory, HostMemory, Locality, NicWish, RemoteAccess};
use pagelith_layouts::ids::OpId;
use pagelith_transport::capability::Capabilities;
use pagelith_transport::dial::{Dial, DialProgress, SocketDial};
use pagelith_transport::limits::LinkLimits;
use pagelith_transport::link::{Link, LinkEvent, Push};
use pagelith_transport::rdma::counters::RdmaCounts;
use pagelith_transport::rdma::host::{RdmaHost, RdmaSettings};
use pagelith_transport::rdma::rdma_use::RdmaUse;
use pagelith_transport::rdma::region::RdmaRegion;
use pagelith_transport::socket::{AdmissionResult, ListenConfig, Listener, SocketLink};
use rustix::net::{Shutdown, shutdown};

use crate::common::*;
use crate::fake::{Fake, copied, load};

pub const MIB: usize = 1 << 20;

/// Polls of both ends after which a test gives up.
const POLLS_MAX: usize = 200_000;

/// Memory that is registered with a host, or not.
pub struct Memory {
    memory: Arc<HostMemory>,
    pub region: Option<Arc<RdmaRegion>>,
}

impl Memory {
    pub fn new(bytes: usize) -> Memory {
        Memory { memory: Arc::new(HostMemory::new(bytes).expect("memory")), region: None }
    }

    /// Memory that peers may access.
    pub fn registered(bytes: usize, host: &Arc<RdmaHost>) -> Memory {
        let memory = Memory::new(bytes);
        let region = host.register(memory.memory.clone(), RemoteAccess::READ_WRITE);
        Memory { region: Some(region.expect("registered")), ..memory }
    }

    /// Parts of this memory: offsets and lengths.
    pub fn parts(&self, ranges: &[(usize, usize)]) -> Vec<Part> {
        let part = |(offset, length): &(usize, usize)| {
            assert!(offset + length <= self.memory.bytes(), "inside of the memory");
            let keep: KeepAlive = self.memory.clone();
            // SAFETY: the range is inside of the memory, which the part keeps, and tests make no
            // two parts of the same bytes at a time.
            unsafe { Part::exclusive(self.memory.base().add(*offset), *length, Some(keep)) }
        };
        ranges.iter().map(part).collect()
    }

    pub fn fill(&self, offset: usize, bytes: &[u8]) {
        self.memory.copy_in(offset, bytes);
    }

    pub fn bytes(&self, ranges: &[(usize, usize)]) -> Vec<u8> {
        let mut all = Vec::new();
        for (offset, length) in ranges {
            let mut bytes = vec![0; *length];
            self.memory.copy_out(*offset, &mut bytes);
            all.extend(bytes);
        }
        all
    }
}

/// Pieces of these lengths with a gap after each, from an offset on.
pub fn scattered(from: usize, lengths: &[usize]) -> Vec<(usize, usize)> {
    let mut at = from;
    let range = |length: &usize| {
        let range = (at, *length);
        at += length + 100;
        range
    };
    lengths.iter().map(range).collect()
}

pub fn total(ranges: &[(usize, usize)]) -> usize {
    ranges.iter().map(|(_, length)| length).sum()
}

/// Both ends of a link, and their hosts.
pub struct Ends {
    pub client: Box<dyn Link>,
    pub server: Box<SocketLink>,
    pub hosts: [Arc<RdmaHost>; 2],
    pub clock: Arc<ManualClock>,
    pub control: Fake,
    _dir: tempfile::TempDir,
}

impl Ends {
    /// A client's end on a device with the first script, and a server's end on one with the second.
    pub fn new(scripts: [&str; 2]) -> Ends {
        let names = ["fake1", "fake2"].map(|name| NicWish::Device(name.to_owned()));
        Ends::with_nics(&scripts, names)
    }

    /// Ends that both use a device for each script, so that a link has as many rails.
    pub fn with_rails(scripts: &[&str]) -> Ends {
        Ends::with_nics(scripts, [(); 2].map(|()| NicWish::Near(Locality::default())))
    }

    fn with_nics(scripts: &[&str], nics: [NicWish; 2]) -> Ends {
        let (dir, path) = copied();
        let library = load(&path);
        let control = Fake::at(&path);
        for script in scripts {
            control.device(script);
        }
        let hosts = nics.map(|nics| {
            let library = Some(library.clone());
            RdmaHost::open(&RdmaSettings { library, nics, ..RdmaSettings::default() })
                .expect("a host")
        });
        let clock = Arc::new(ManualClock::default());
        let (client, server) = linked(&clock, [Some(&hosts[0]), Some(&hosts[1])]);
        Ends { client, server, hosts, clock, control, _dir: dir }
    }

    /// Another link between the same hosts.
    pub fn reconnect(&mut self) {
        self.reconnect_over("127.0.0.1");
    }

    /// Another link between the same hosts, over TCP at this address.
    pub fn reconnect_over(&mut self, ip: &str) {
        (self.client, self.server) =
            linked_over(ip, &self.clock, [Some(&self.hosts[0]), Some(&self.hosts[1])]);
    }

    pub fn client_memory(&self, bytes: usize) -> Memory {
        Memory::registered(bytes, &self.hosts[0])
    }

    pub fn server_memory(&self, bytes: usize) -> Memory {
        Memory::registered(bytes, &self.hosts[1])
    }

    /// Poll both ends until `done` is true of the events of client and server.
    pub fn until(
        &mut self,
        mut done: impl FnMut(&[LinkEvent], &[LinkEvent]) -> bool,
    ) -> (Vec<LinkEvent>, Vec<LinkEvent>) {
        let (mut at_client, mut at_server) = (Vec::new(), Vec::new());
        for _ in 0..POLLS_MAX {
            self.client.poll(&mut at_client);
            self.server.poll(&mut at_server);
            if done(&at_client, &at_server) {
                return (at_client, at_server);
            }
        }
        panic!("client {:?} server {:?}", event_lines(&at_client), event_lines(&at_server));
    }

    /// Poll both ends until the client has this many events.
    pub fn until_client_has(&mut self, events: usize) -> (Vec<LinkEvent>, Vec<LinkEvent>) {
        self.until(|at_client, _| at_client.len() >= events)
    }

    /// Poll both ends for a while.
    pub fn poll(&mut self, times: usize) -> (Vec<LinkEvent>, Vec<LinkEvent>) {
        let (mut at_client, mut at_server) = (Vec::new(), Vec::new());
        for _ in 0..times {
            self.client.poll(&mut at_client);
            self.server.poll(&mut at_server);
        }
        (at_client, at_server)
    }

    /// Wait for the end of the server's link.
    pub fn until_ended(&mut self, at_server: &mut Vec<LinkEvent>) {
        for _ in 0..1000 {
            self.server.wait(at_server, Duration::from_secs(10));
            if matches!(at_server.last(), Some(LinkEvent::Ended(_))) {
                return;
            }
        }
        panic!("no end: {:?}", event_lines(at_server));
    }

    /// End the connection of the byte stream, as if the server's process had ended. Its device
    /// still delivers posted requests.
    pub fn cut_stream(&self) {
        let stream = self.server.stream().expect("an open link");
        shutdown(stream, Shutdown::Both).expect("a connected socket");
    }

    /// Expose memory of the client for items of a get, from 0 on, and send its request. Returns
    /// the client's events, once the server has it.
    pub fn request(&mut self, op: u64, items: Vec<Vec<Part>>) -> Vec<LinkEvent> {
        for (item, parts) in (0..).zip(items) {
            self.client.expose(OpId(op), item, 0, parts).expect("room");
        }
        self.client.send(request(op, b"get")).expect("room");
        let asked = |events: &[LinkEvent]| {
            events.iter().any(|event| matches!(event, LinkEvent::Frame(frame) if frame.op.0 == op))
        };
        self.until(|_, at_server| asked(at_server)).0
    }

    /// Send memory of the server as an item.
    pub fn push(&mut self, op: u64, item: u32, parts: Vec<Part>) {
        let (offset, token) = (0, op * 100 + u64::from(item));
        let push = Push { op: OpId(op), item, offset, parts, token, allow_ref: true };
        self.server.push(push).expect("room");
    }

    pub fn counts(&self) -> [RdmaCounts; 2] {
        [0, 1].map(|end: usize| self.hosts[end].counts())
    }

    /// Bulk bytes that the stream has carried, as each end has counted them.
    pub fn stream_bytes(&self) -> [u64; 2] {
        let (client, server) = (self.client.counts(), self.server.counts());
        [client, server].map(|counts| counts.bytes_in + counts.bytes_out - counts.bytes_by_rdma)
    }
}

/// A link over TCP between ends with these hosts.
pub fn linked(
    clock: &Arc<ManualClock>,
    hosts: [Option<&Arc<RdmaHost>>; 2],
) -> (Box<dyn Link>, Box<SocketLink>) {
    linked_over("127.0.0.1", clock, hosts)
}

/// The same, at this IP address.
fn linked_over(
    ip: &str,
    clock: &Arc<ManualClock>,
    hosts: [Option<&Arc<RdmaHost>>; 2],
) -> (Box<dyn Link>, Box<SocketLink>) {
    let [at_client, at_server] = hosts;
    let clock: Arc<dyn Clock> = clock.clone();
    let listen = ListenConfig {
        address: format!("tcp:{ip}:0").parse().expect("an address"),
        admission: keys(1),
        allow_remote: false,
    };
    let (offer, limits) = (Capabilities::of_this_build([5; 16]), LinkLimits::default());
    let entropy = Arc::new(SystemEntropy);
    let listener = Listener::new(&listen, offer, entropy, clock.clone(), limits).expect("loopback");
    let mut listener = match at_server {
        Some(host) => listener.with_rdma(host.clone()),
        None => listener,
    };
    let mut dial = SocketDial::new(listener.address().clone(), Some(key(1)), offer, clock);
    dial.rdma = at_client.map_or(RdmaUse::Off, |host| RdmaUse::Offered(host.clone()));
    let mut dialing = dial.begin().expect("begun");
    let (mut client, mut arrivals) = (None, Vec::new());
    for _ in 0..POLLS_MAX {
        dialing = match dialing.poll() {
            DialProgress::Waiting(dialing) => dialing,
            DialProgress::Failed(why) => panic!("{why}"),
            DialProgress::Ready(link) => {
                client = Some(link);
                break;
            }
        };
        listener.poll(&mut arrivals);
    }
    while arrivals.is_empty() {
        listener.poll(&mut arrivals);
    }
    match arrivals.pop() {
        Some(AdmissionResult::Link(server)) => (client.expect("a link"), server),
        Some(AdmissionResult::Refused { why, .. }) => panic!("{why}"),
        None => panic!("no link"),
    }
}
