//! Keys of links, in a file: who may connect to a store process, and what they may do. A process that connects has a file of its one key.
//!
//! ```toml
//! [[key]]
//! name = "rank-0"
//! secret = "..."                  # 64 hexadecimal digits, random
//! rights = ["read", "write"]      # of read, write, remove, operate; all, if it is left out
//! namespaces = ["..."]            # 32 hexadecimal digits each; all, if it is left out
//! ```

use std::collections::BTreeSet;
use std::path::Path;

use pagelith_io::system::read_secret;
use pagelith_layouts::ids::NamespaceId;
use pagelith_transport::auth::Key;
use pagelith_transport::rights::{Namespaces, Rights};
use serde::Deserialize;

use crate::error::{Error, ErrorKind, Result};

/// Bytes of a secret.
pub const SECRET_BYTES: usize = 32;
/// Longest word that a message repeats: as many digits as a namespace has, and half of a secret's.
const WORD_BYTES_MAX: usize = 32;

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
    fn key(&self) -> Result<Key> {
        let digits = self.secret.as_bytes();
        let byte = |pair: &[u8; 2]| {
            let text = std::str::from_utf8(pair).ok().filter(|t| t.bytes().all(|b| b.is_ascii_hexdigit()))?;
            u8::from_str_radix(text, 16).ok()
        };
        let (pairs, rest) = digits.as_chunks::<2>();
        let secret: Option<Vec<u8>> = pairs.iter().map(byte).collect();
        // Whatever is wrong with it, it is not repeated.
        let secret = secret.filter(|bytes| rest.is_empty() && bytes.len() == SECRET_BYTES);
        let no_secret = || wrong(&format!("secret is not 64 hexadecimal digits key={}", self.name));
        Key::new(&self.name, &secret.ok_or_else(no_secret)?).map_err(|error| wrong(&error.to_string()))
    }

    fn rights(&self) -> Result<Rights> {
        let id = |text: &String| {
            let message = || format!("not a namespace's 32 hexadecimal digits namespace={text}");
            NamespaceId::from_hex(text).ok_or_else(|| wrong(&message()))
        };
        let namespaces = match &self.namespaces {
            None => Namespaces::All,
            Some(these) => Namespaces::These(these.iter().map(id).collect::<Result<BTreeSet<_>>>()?),
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

/// What is wrong in a file, without words that may be a secret: one may stand where something else belongs.
fn wrong(message: &str) -> Error {
    let of_word = |c: char| c.is_ascii_alphanumeric();
    let shown = |piece: &str| match piece.trim_end_matches(|c| !of_word(c)) {
        word if word.len() > WORD_BYTES_MAX => format!("…{}", &piece[word.len()..]),
        _ => piece.to_owned(),
    };
    Error::invalid(message.split_inclusive(|c| !of_word(c)).map(shown).collect::<String>())
}

/// Every key of a server's file, and what it may do.
///
/// # Errors
/// `Denied` if other users can read the file, `Unavailable` if it cannot be read, `Invalid` with what is wrong in it: never with a secret.
pub fn ring(path: &Path) -> Result<Vec<(Key, Rights)>> {
    let of = |entry: &Entry| Ok((entry.key()?, entry.rights()?));
    read(path)?.iter().map(of).collect::<Result<Vec<_>>>().map_err(|error| error.context(path.display()))
}

/// The one key of a client's file. As [`ring`].
pub fn own(path: &Path) -> Result<Key> {
    match &read(path)?[..] {
        [entry] => entry.key().map_err(|error| error.context(path.display())),
        keys => {
            let (count, file) = (keys.len(), path.display());
            Err(Error::invalid(format!("a client's file has one key keys={count} file={file}")))
        }
    }
}

fn read(path: &Path) -> Result<Vec<Entry>> {
    let text = read_secret(path).map_err(|error| {
        let kind = match error.kind() {
            std::io::ErrorKind::PermissionDenied => ErrorKind::Denied,
            _ => ErrorKind::Unavailable,
        };
        Error { errno: error.raw_os_error(), ..Error::new(kind, format!("{error} file={}", path.display())) }
    })?;
    // The parser's message would quote the line, which may be a secret.
    let parsed = toml::from_str::<KeyFile>(&text).map_err(|error| {
        let line = error.span().map_or(0, |span| text[..span.start].lines().count().max(1));
        let error = wrong(error.message());
        Error { message: format!("{} line={line} file={}", error.message, path.display()), ..error }
    })?;
    Ok(parsed.key)
}
