//! Keys of links, in a file: who may connect to `pagelith serve`, and what they may do.
//!
//! ```toml
//! [[key]]
//! name = "rank-0"
//! secret = "..."                  # 64 hexadecimal digits, random
//! rights = ["read", "write"]      # of read, write, remove, operate; all, if it is left out
//! namespaces = ["..."]            # 32 hexadecimal digits each; all, if it is left out
//! ```

use std::collections::BTreeSet;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, bail};
use clap::Args;
use pagelith::io::entropy::Entropy;
use pagelith::io::system::SystemEntropy;
use pagelith::layouts::ids::NamespaceId;
use pagelith::transport::auth::{Key, KeyRing};
use pagelith::transport::rights::{Namespaces, Rights};
use serde::Deserialize;

use crate::exit::Verdict;

/// Bytes of a secret.
const SECRET_BYTES: usize = 32;

/// Make a key for links to `pagelith serve`: an entry of a key file, on stdout.
///
/// The server's file has an entry for each client, a client's file its own.
#[derive(Args, Debug)]
pub(crate) struct KeyArgs {
    /// What the key is called: 1 to 31 of A-Z a-z 0-9 _ - .
    name: String,
}

pub(crate) fn run(args: &KeyArgs) -> anyhow::Result<Verdict> {
    let mut secret = [0; SECRET_BYTES];
    SystemEntropy.fill(&mut secret);
    Key::new(&args.name, &secret)?;
    let hex: String = secret.iter().map(|byte| format!("{byte:02x}")).collect();
    println!("[[key]]\nname = \"{}\"\nsecret = \"{hex}\"", args.name);
    Ok(Verdict::Fine)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct KeyFile {
    #[serde(default)]
    key: Vec<Entry>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    name: String,
    secret: String,
    rights: Option<Vec<Right>>,
    namespaces: Option<Vec<String>>,
}

#[derive(Clone, Copy, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
enum Right {
    Read,
    Write,
    Remove,
    Operate,
}

impl Entry {
    fn key(&self) -> anyhow::Result<Key> {
        let digits = self.secret.as_bytes();
        let byte = |pair: &[u8; 2]| {
            let text = std::str::from_utf8(pair).ok().filter(|t| t.bytes().all(|b| b.is_ascii_hexdigit()))?;
            u8::from_str_radix(text, 16).ok()
        };
        let (pairs, rest) = digits.as_chunks::<2>();
        let secret: Option<Vec<u8>> = pairs.iter().map(byte).collect();
        // Whatever is wrong with it, it is not repeated.
        let secret = secret.filter(|bytes| rest.is_empty() && bytes.len() == SECRET_BYTES);
        let secret =
            secret.with_context(|| format!("secret is not 64 hexadecimal digits key={}", self.name))?;
        Ok(Key::new(&self.name, &secret)?)
    }

    fn rights(&self) -> anyhow::Result<Rights> {
        let id = |text: &String| {
            NamespaceId::from_hex(text)
                .with_context(|| format!("not a namespace's 32 hexadecimal digits namespace={text}"))
        };
        let namespaces = match &self.namespaces {
            None => Namespaces::All,
            Some(these) => Namespaces::These(these.iter().map(id).collect::<anyhow::Result<BTreeSet<_>>>()?),
        };
        let has = |right| self.rights.as_ref().is_none_or(|rights| rights.contains(&right));
        Ok(Rights {
            namespaces,
            read: has(Right::Read),
            write: has(Right::Write),
            remove: has(Right::Remove),
            operate: has(Right::Operate),
        })
    }
}

/// Every key of a server's file, and what it may do.
pub(crate) fn ring(path: &Path) -> anyhow::Result<Arc<KeyRing>> {
    let of = |entry: &Entry| Ok((entry.key()?, entry.rights()?));
    let keys = read(path)?.iter().map(of).collect::<anyhow::Result<Vec<_>>>();
    let keys = keys.with_context(|| path.display().to_string())?;
    Ok(Arc::new(KeyRing::new(keys, &SystemEntropy)?))
}

/// The one key of a client's file.
pub(crate) fn own(path: &Path) -> anyhow::Result<Key> {
    match &read(path)?[..] {
        [entry] => entry.key().with_context(|| path.display().to_string()),
        keys => bail!("a client's file has one key keys={} file={}", keys.len(), path.display()),
    }
}

fn read(path: &Path) -> anyhow::Result<Vec<Entry>> {
    let name = || path.display().to_string();
    let mut file = File::open(path).with_context(name)?;
    let mode = file.metadata().with_context(name)?.permissions().mode();
    if mode & 0o077 != 0 {
        bail!("other users can read the keys (chmod 600) mode={:o} file={}", mode & 0o777, name());
    }
    let mut text = String::new();
    file.read_to_string(&mut text).with_context(name)?;
    // The parser's message would quote the line, which may be a secret.
    let parsed = toml::from_str::<KeyFile>(&text);
    let keys = parsed.map_err(|error| {
        let line = error.span().map_or(0, |span| text[..span.start].lines().count().max(1));
        anyhow::anyhow!("{} line={line} file={}", error.message(), name())
    })?;
    Ok(keys.key)
}
