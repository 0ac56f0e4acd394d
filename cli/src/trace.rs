//! Prefix traces: JSON lines with `timestamp`, `input_length`, `output_length` and `hash_ids` (one
//! id per 512-token block; equal ids mean equal block and equal prefix), plain or gzipped. Read as
//! a stream, since a trace may exceed memory.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context, bail};
use flate2::bufread::MultiGzDecoder;
use serde::Deserialize;

/// First bytes of a gzip member (RFC 1952).
const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];
/// Tokens per block.
const BLOCK_TOKENS: u64 = 512;
/// Maximum line in bytes; a request of a million blocks is shorter. Bounds memory for files that
/// are not traces.
const LINE_BYTES_MAX: u64 = 16 << 20;

/// One request of a trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceRequest {
    /// The blocks of the prompt, in order.
    pub hash_ids: Vec<u64>,
    /// Number of leading blocks that the prompt fills completely; it may fill the last one partly.
    pub whole_blocks: usize,
}

/// A line of the file. All four fields are required; others are ignored.
#[derive(Deserialize)]
struct Line {
    #[serde(rename = "timestamp")]
    _timestamp: serde_json::Number,
    input_length: u64,
    #[serde(rename = "output_length")]
    _output_length: u64,
    hash_ids: Vec<u64>,
}

/// An open trace; iterates over its requests. Errors name the file and the line.
pub struct Trace {
    reader: Box<dyn BufRead>,
    path: PathBuf,
    file_bytes: u64,
    bytes_read: Arc<AtomicU64>,
    line: u64,
    text: Vec<u8>,
}

/// Counts the bytes read of the file itself, compressed or not, for the progress.
struct CountingReader<R> {
    file: R,
    bytes: Arc<AtomicU64>,
}

impl<R: Read> Read for CountingReader<R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let n = self.file.read(buf)?;
        self.bytes.fetch_add(n as u64, Ordering::Relaxed);
        Ok(n)
    }
}

impl Trace {
    /// Open a trace. Its first bytes tell whether it is gzipped, not its name.
    pub fn open(path: &Path) -> anyhow::Result<Trace> {
        let context = || format!("cannot read the trace file={}", path.display());
        let file = File::open(path).with_context(context)?;
        let file_bytes = file.metadata().with_context(context)?.len();
        Trace::read(file, file_bytes, path)
    }

    /// Read a trace of `file_bytes` from any reader; errors name `path`.
    pub fn read(file: impl Read + 'static, file_bytes: u64, path: &Path) -> anyhow::Result<Trace> {
        let context = || format!("cannot read the trace file={}", path.display());
        let bytes_read = Arc::new(AtomicU64::new(0));
        let mut raw = BufReader::new(CountingReader { file, bytes: Arc::clone(&bytes_read) });
        let gzipped = raw.fill_buf().with_context(context)?.starts_with(&GZIP_MAGIC);
        let reader: Box<dyn BufRead> = if gzipped {
            Box::new(BufReader::new(MultiGzDecoder::new(raw)))
        } else {
            Box::new(raw)
        };
        Ok(Trace {
            reader,
            path: path.to_owned(),
            file_bytes,
            bytes_read,
            line: 0,
            text: Vec::new(),
        })
    }

    /// (bytes of the file read so far, its length).
    pub fn progress(&self) -> (u64, u64) {
        (self.bytes_read.load(Ordering::Relaxed), self.file_bytes)
    }

    fn location(&self) -> String {
        format!("file={} line={}", self.path.display(), self.line)
    }

    /// The next line that is not blank; `None` at the end.
    fn next_request(&mut self) -> anyhow::Result<Option<TraceRequest>> {
        loop {
            self.line += 1;
            self.text.clear();
            let read = self.reader.by_ref().take(LINE_BYTES_MAX).read_until(b'\n', &mut self.text);
            let read =
                read.with_context(|| format!("cannot read the trace {}", self.location()))?;
            if read == 0 {
                return Ok(None);
            }
            if read as u64 == LINE_BYTES_MAX {
                bail!("trace line is longer than {LINE_BYTES_MAX} bytes {}", self.location());
            }
            if !self.text.trim_ascii().is_empty() {
                return self.parse().map(Some);
            }
        }
    }

    fn parse(&self) -> anyhow::Result<TraceRequest> {
        let line: Line = match serde_json::from_slice(&self.text) {
            Ok(line) => line,
            Err(e) => {
                // serde_json counts lines within its input, which is always line 1.
                let error = e.to_string();
                let cause = error.split(" at line ").next().unwrap_or(&error);
                let what = if e.is_data() { "does not fit" } else { "is not JSON" };
                bail!("trace line {what}: {cause} {} column={}", self.location(), e.column());
            }
        };
        let whole = usize::try_from(line.input_length / BLOCK_TOKENS).unwrap_or(usize::MAX);
        Ok(TraceRequest { whole_blocks: whole.min(line.hash_ids.len()), hash_ids: line.hash_ids })
    }
}

impl Iterator for Trace {
    type Item = anyhow::Result<TraceRequest>;

    fn next(&mut self) -> Option<Self::Item> {
        self.next_request().transpose()
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    const GOOD: &str =
        r#"{"timestamp": 0, "input_length": 900, "output_length": 5, "hash_ids": [0, 7]}"#;

    fn read(bytes: &[u8]) -> Result<Vec<Vec<u64>>, String> {
        let dir = tempfile::tempdir().unwrap();
        // The name says nothing about compression.
        let path = dir.path().join("trace.gz");
        std::fs::write(&path, bytes).unwrap();
        let requests: anyhow::Result<Vec<TraceRequest>> =
            Trace::open(&path).and_then(|t| t.collect());
        let shown = |e: anyhow::Error| format!("{e:#}").replace(&*path.to_string_lossy(), "FILE");
        requests.map(|r| r.into_iter().map(|r| r.hash_ids).collect()).map_err(shown)
    }

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut gz = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        gz.write_all(bytes).unwrap();
        gz.finish().unwrap()
    }

    #[test]
    fn plain_and_gzipped_lines_are_read() {
        let text = format!("{GOOD}\n\n{GOOD}");
        assert_eq!(read(text.as_bytes()), Ok(vec![vec![0, 7], vec![0, 7]]));
        assert_eq!(read(&gzip(text.as_bytes())), Ok(vec![vec![0, 7], vec![0, 7]]));
        let members = [gzip(GOOD.as_bytes()), gzip(b"\n"), gzip(GOOD.as_bytes())].concat();
        assert_eq!(read(&members), Ok(vec![vec![0, 7], vec![0, 7]]));
    }

    #[test]
    fn bad_line_is_named_with_file_and_column() {
        let cases = [
            ("not json", "trace line is not JSON: expected ident FILE column=2"),
            (
                "{\"timestamp\": 0",
                "trace line is not JSON: EOF while parsing an object FILE column=15",
            ),
            (
                r#"{"timestamp": 0, "input_length": 1, "output_length": 1}"#,
                "trace line does not fit: missing field `hash_ids` FILE column=55",
            ),
            (
                r#"{"timestamp": 0, "input_length": 1, "output_length": 1, "hash_ids": [1, "2"]}"#,
                "trace line does not fit: invalid type: string \"2\", expected u64 FILE column=75",
            ),
            (
                r#"{"timestamp": 0, "input_length": 1, "output_length": 1, "hash_ids": [1, 2.5]}"#,
                "trace line does not fit: invalid type: floating point `2.5`, expected u64 FILE column=75",
            ),
            (
                r#"{"input_length": 1, "output_length": 1, "hash_ids": [-1]}"#,
                "trace line does not fit: invalid value: integer `-1`, expected u64 FILE column=55",
            ),
        ];
        for (bad, expected) in cases {
            let text = format!("{GOOD}\n{GOOD}\n{bad}");
            let expected = expected.replace("FILE", "file=FILE line=3");
            assert_eq!(read(text.as_bytes()), Err(expected.clone()));
            assert_eq!(read(&gzip(text.as_bytes())), Err(expected));
        }
    }

    #[test]
    fn truncated_archive_is_named() {
        let whole = gzip(format!("{GOOD}\n").repeat(3).as_bytes());
        let error = read(&whole[..whole.len() - 4]).unwrap_err();
        assert!(error.starts_with("cannot read the trace file=FILE line="), "{error}");
    }

    #[test]
    fn file_without_line_ends_uses_bounded_memory() {
        let error = read(&vec![b' '; LINE_BYTES_MAX as usize + 5]).unwrap_err();
        assert_eq!(error, "trace line is longer than 16777216 bytes file=FILE line=1");
    }
}
