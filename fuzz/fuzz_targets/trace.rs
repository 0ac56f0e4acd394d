//! A trace is read to its end or to its first bad line, which is named.
#![no_main]

use std::io::Cursor;
use std::path::Path;

use libfuzzer_sys::fuzz_target;
use pagelith_cli::trace::Trace;

/// A compressed input may have any number of lines.
const REQUESTS: usize = 1000;

fuzz_target!(|data: &[u8]| {
    let length = data.len() as u64;
    let Ok(mut trace) = Trace::read(Cursor::new(data.to_vec()), length, Path::new("fuzz")) else {
        return;
    };
    for request in trace.by_ref().take(REQUESTS) {
        match request {
            Ok(request) => assert!(request.whole_blocks <= request.hash_ids.len()),
            Err(error) => {
                let text = format!("{error:#}");
                assert!(text.contains("file=fuzz line="), "{text}");
                break;
            }
        }
    }
    let (read, of) = trace.progress();
    assert!(read <= of);
});
