//! Puts that a restarted store process has lost, and the flushes of their client.

use super::*;

/// Restarts the process as another instance.
fn restarted(process: Process) -> Process {
    let address = process.address.clone();
    drop(process);
    Process::at(&address, 2)
}

/// The next flush reports the loss, and the one after it does not.
fn assert_loss_is_reported_once(client: &Client) {
    let error = client.flush(Options::default()).expect_err("a put is gone");
    assert_eq!(error.kind, ErrorKind::Unavailable);
    assert!(error.message.contains("the store process was restarted"), "{error}");
    client.flush(Options::default()).expect("it was said");
}

#[test]
fn objects_lost_with_a_server_are_reported_by_the_next_flush_once() {
    let first = Process::at(&anywhere(), 1);
    let client = first.client(Duration::from_secs(30));
    assert_eq!(put(&client, 1), Ok(PutOutcome::Stored));
    client.flush(Options::default()).expect("flushed");
    assert_eq!(put(&client, 2), Ok(PutOutcome::Stored));
    let _second = restarted(first);
    // The request is repeated over a new connection, unnoticed by the caller.
    assert_eq!(get(&client, 2), Ok(GetOutcome::Miss(MissCause::Absent)));
    assert_eq!(put(&client, 3), Ok(PutOutcome::Stored));
    assert_loss_is_reported_once(&client);
    assert_eq!(get(&client, 3), Ok(GetOutcome::Hit { tier: Tier::Memory, bytes: LEN as u64 }));
}

#[test]
fn group_committed_after_a_flush_and_lost_with_its_server_is_reported_once() {
    for outcome in [PutOutcome::Stored, PutOutcome::AlreadyPresent] {
        let process = Process::at(&anywhere(), 1);
        let client = process.client(WAIT_MAX);
        let bytes = vec![7; LEN];
        let object = [PutSlice { key: key(7), pieces: &[&bytes] }];
        let group = client.begin_group(&[key(7)], Options::default()).expect("begun");
        assert_eq!(group.put(&object, Options::default()), [Ok(PutOutcome::Waiting)]);
        if outcome == PutOutcome::AlreadyPresent {
            assert_eq!(put(&process.client(WAIT_MAX), 7), Ok(PutOutcome::Stored));
        }
        // It covers the acknowledged put of the object, but not the group, which is still open.
        client.flush(Options::default()).expect("flushed");
        assert_eq!(group.commit(Options::default()), Ok(outcome));
        let _process = restarted(process);
        assert_loss_is_reported_once(&client);
    }
}

#[test]
fn group_committed_before_a_flush_is_covered_by_it() {
    let process = Process::at(&anywhere(), 1);
    let client = process.client(WAIT_MAX);
    let bytes = vec![7; LEN];
    let object = [PutSlice { key: key(7), pieces: &[&bytes] }];
    let group = client.begin_group(&[key(7)], Options::default()).expect("begun");
    assert_eq!(group.put(&object, Options::default()), [Ok(PutOutcome::Waiting)]);
    assert_eq!(group.commit(Options::default()), Ok(PutOutcome::Stored));
    client.flush(Options::default()).expect("flushed");
    let _process = restarted(process);
    client.flush(Options::default()).expect("nothing is lost");
}
