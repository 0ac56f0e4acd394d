//! A recorded conversation of protocol version 1, with proofs and MACs, in `golden/session1/`. It
//! is a function of the key, the nonces and the frames.
//! `TEST_PAGELITH_BLESS=1 cargo test -p pagelith-transport --test links recorded` rewrites it,
//! which is valid only as long as no version was released with the old one.

use std::path::PathBuf;

use pagelith_layouts::ids::OpId;
use pagelith_transport::link::Link;

use crate::common::*;

#[test]
#[expect(
    clippy::disallowed_methods,
    reason = "a test reads its golden files itself; nothing here ships"
)]
fn conversation_matches_the_recorded_bytes() {
    let mut pair = pair(usize::MAX, true);
    let Pair { client, server, ways, .. } = &mut pair;
    client.expose(OpId(1), 0, 0, scatter(&[0; 100], &[])).expect("room");
    client.send(request(1, b"a get")).expect("room");
    settle(client, server);
    server.push(push(1, 0, 0, &bytes(1, 100))).expect("room");
    server.send(outcome(1, b"a hit")).expect("room");
    settle(client, server);
    client.close();
    for (name, way) in [("client.bin", &ways.0), ("server.bin", &ways.1)] {
        let path =
            PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden/session1").join(name);
        if std::env::var_os("TEST_PAGELITH_BLESS").is_some_and(|v| v == "1") {
            std::fs::write(&path, &lock(way).record).expect("the golden folder can be written");
        }
        let kept = std::fs::read(&path).unwrap_or_else(|e| panic!("golden file {name}: {e}"));
        let record = &lock(way).record;
        let differs = kept.iter().zip(record).position(|(a, b)| a != b);
        assert!(
            kept == *record,
            "{name} differs: kept={} now={} first={differs:?}",
            kept.len(),
            record.len()
        );
    }
}
