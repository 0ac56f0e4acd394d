//! The simulated implementations of Pagelith's interfaces: a disk that loses power, a clock that
//! only tests advance, seeded randomness, and a scheduler for background tasks. One seed replays a
//! whole run.
//!
//! No shipped crate depends on this crate. `README.md` describes the model and how to replay a
//! seed.
//!
//! ```
//! use std::time::Duration;
//! use pagelith_sim::disk::CrashMode;
//! use pagelith_sim::env::SimWorld;
//!
//! let world = SimWorld::new(7);
//! let env = world.env(); // what a store is opened with: one simulated process
//! let disk = env.disk.clone().expect("a simulated world has a disk");
//! disk.create(0, "segment", 8192).expect("room for two blocks");
//! drop((env, disk));
//! world.crash(CrashMode::DropAll); // power cut; the next `env()` is the machine after the reboot
//! assert_eq!(world.disk.names(0), ["segment"]);
//! world.clock.advance(Duration::from_secs(1));
//! ```
#![deny(unsafe_code)]

pub mod clock;
pub mod disk;
pub mod entropy;
pub mod env;
pub mod explore;
pub mod link;
pub mod links;
pub mod model;
pub mod program;
pub mod runtime;
