//! Keys of links, in a file: who may connect to a store process, and what they may do. A process that connects has a file of its one key.
//!
//! ```toml
//! [[key]]
//! name = "rank-0"
//! secret = "..."                  # 64 hexadecimal digits, random
//! rights = ["read", "write"]      # of read, write, remove, operate; if it is left out, all but operate where namespaces are said
//! namespaces = ["..."]            # 32 hexadecimal digits each; all, if it is left out
//! ```

use std::collections::BTreeSet;
use std::path::Path;

use pagelith_io::regular_file::read_secret;
use pagelith_layouts::ids::NamespaceId;
use pagelith_transport::auth::Key;
use pagelith_transport::rights::{Namespaces, Rights};
use serde::Deserialize;
use toml::{Spanned, Table, Value};

use crate::error::{Error, ErrorKind, Result};

/// Bytes of a secret.
pub const SECRET_BYTES: usize = 32;
/// A name of a file that has so many hexadecimal digits on end is not shown.
const DIGITS_SHOWN: usize = 16;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct KeyFile {
    #[serde(default)]
    key: Vec<Spanned<Table>>,
}

/// What is wrong in an entry. A sentence of this file: nothing that stands in a key file is repeated, since a secret may stand anywhere.
type Wrong = &'static str;

/// A key of these settings, and what it may do.
fn key_of(entry: &Table) -> std::result::Result<(Key, Rights), Wrong> {
    if entry.keys().any(|name| !["name", "secret", "rights", "namespaces"].contains(&name.as_str())) {
        return Err("an entry has name, secret, rights and namespaces, and nothing else");
    }
    let text = |name| entry.get(name).and_then(Value::as_str);
    let name = text("name").ok_or("name is missing, or no text")?;
    let secret = text("secret").and_then(secret_of).ok_or("secret is not 64 hexadecimal digits in quotes")?;
    let key = Key::new(name, &secret).map_err(|_| "name must be 1 to 31 of A-Z a-z 0-9 _ - .")?;
    Ok((key, rights_of(entry)?))
}

fn is_secret(text: &str) -> bool {
    text.len() == 2 * SECRET_BYTES && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

fn secret_of(text: &str) -> Option<Vec<u8>> {
    let (pairs, _) = text.as_bytes().as_chunks::<2>();
    let byte = |pair: &[u8; 2]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    if is_secret(text) { pairs.iter().map(byte).collect() } else { None }
}

/// The texts of a list; `None` if the setting is not there.
fn texts<'a>(entry: &'a Table, name: &str, wrong: Wrong) -> std::result::Result<Option<Vec<&'a str>>, Wrong> {
    let Some(value) = entry.get(name) else { return Ok(None) };
    let all = value.as_array().and_then(|all| all.iter().map(Value::as_str).collect());
    all.map(Some).ok_or(wrong)
}

fn rights_of(entry: &Table) -> std::result::Result<Rights, Wrong> {
    let wrong = "rights must be a list of \"read\", \"write\", \"remove\" and \"operate\"";
    let rights = texts(entry, "rights", wrong)?;
    if rights.iter().flatten().any(|right| !["read", "write", "remove", "operate"].contains(right)) {
        return Err(wrong);
    }
    let wrong = "namespaces must be a list of texts of 32 hexadecimal digits";
    let namespaces = match texts(entry, "namespaces", wrong)? {
        None => Namespaces::All,
        Some(these) => {
            let these = these.iter().map(|text| NamespaceId::from_hex(text)).collect::<Option<BTreeSet<_>>>();
            Namespaces::These(these.ok_or(wrong)?)
        }
    };
    let has = |right| rights.as_ref().is_none_or(|rights| rights.contains(&right));
    // It tells of every namespace: where some are said it has to be said too.
    let operates = rights.is_some() || matches!(namespaces, Namespaces::All);
    Ok(Rights {
        namespaces,
        read: has("read"),
        write: has("write"),
        remove: has("remove"),
        operate: has("operate") && operates,
    })
}

/// Every key of a server's file, and what it may do.
///
/// # Errors
/// `Denied` if the file is another user's or other users can read it, `Unavailable` if it cannot be read, `Invalid` with what is wrong
/// in it: never with a word of it.
pub fn ring(path: &Path) -> Result<Vec<(Key, Rights)>> {
    let keys = read(path)?;
    let mut names = BTreeSet::new();
    match keys.iter().position(|(key, _)| !names.insert(key.name())) {
        Some(twice) => {
            let (number, file) = (twice + 1, shown(path));
            Err(Error::invalid(format!("the name is another entry's as well entry={number} file={file}")))
        }
        None => Ok(keys),
    }
}

/// The one key of a client's file. As [`ring`].
pub fn own(path: &Path) -> Result<Key> {
    let mut keys = read(path)?;
    if keys.len() != 1 {
        let (count, file) = (keys.len(), shown(path));
        return Err(Error::invalid(format!("a client's file has one key keys={count} file={file}")));
    }
    Ok(keys.remove(0).0)
}

/// A path as messages show it: not if it may be a secret, or a part of one, that was given in place of a file's name.
fn shown(path: &Path) -> String {
    let text = path.display().to_string();
    let has_digits = text.split(|c: char| !c.is_ascii_hexdigit()).any(|digits| digits.len() >= DIGITS_SHOWN);
    match has_digits && !text.contains('/') {
        true => "(hexadecimal digits in place of a file's name)".to_owned(),
        false => text,
    }
}

fn read(path: &Path) -> Result<Vec<(Key, Rights)>> {
    let file = shown(path);
    let text = read_secret(path).map_err(|error| {
        let kind = match error.kind() {
            std::io::ErrorKind::PermissionDenied => ErrorKind::Denied,
            std::io::ErrorKind::InvalidInput | std::io::ErrorKind::InvalidData => ErrorKind::Invalid,
            _ => ErrorKind::Unavailable,
        };
        Error { errno: error.raw_os_error(), ..Error::new(kind, format!("{error} file={file}")) }
    })?;
    let line = |at: usize| text[..at].matches('\n').count() + 1;
    // The parser's own message may quote the file.
    let parsed = toml::from_str::<KeyFile>(&text).map_err(|error| {
        let line = error.span().map_or(1, |span| line(span.start));
        let why = "not TOML of [[key]] entries whose texts are in quotes";
        Error::invalid(format!("{why} line={line} file={file}"))
    })?;
    let read = parsed.key.iter().zip(1..).map(|(entry, number)| {
        let line = line(entry.span().start);
        let wrong = |why| Error::invalid(format!("{why} entry={number} line={line} file={file}"));
        key_of(entry.get_ref()).map_err(wrong)
    });
    read.collect()
}
