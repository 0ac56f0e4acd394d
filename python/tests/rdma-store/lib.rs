//! A store process inside of a test's process: the devices of the fake verbs library live in one
//! process, so a client in Python and its store must share it.

use std::error::Error;

use pagelith::server::Serving;
use pagelith::transport::address::{Address, Endpoint};
use pagelith::{Config, MachineLimits, Size, Store};

const STAGING: Size = Size::mib(16);

/// Open a store with an arena of `arena_mib` MiB and no SSD, and serve it over RDMA, with the
/// devices of the process's verbs library, at a port of 127.0.0.1 until the process ends. Returns
/// the port; 0 after an error, which it prints.
#[unsafe(no_mangle)]
pub extern "C" fn rdma_store_serve(arena_mib: u32) -> u16 {
    serve(arena_mib).unwrap_or_else(|error| {
        eprintln!("no store over RDMA: {error}");
        0
    })
}

fn serve(arena_mib: u32) -> Result<u16, Box<dyn Error>> {
    let mut config = Config::default();
    config.dram.bytes = Size::mib(arena_mib);
    config.rdma.serve = true;
    let store = Store::open(config.validate(&MachineLimits::of_this_machine()?)?)?;
    store.rdma().ok_or("the store has no devices")?;
    let serving = Serving::builder(&store, "tcp:127.0.0.1:0".parse()?).staging(STAGING).start()?;
    let Address::Tcp(Endpoint::Ip(at)) = serving.address().clone() else {
        return Err("no port".into());
    };
    // Until the process ends.
    std::mem::forget(serving);
    Ok(at.port())
}
