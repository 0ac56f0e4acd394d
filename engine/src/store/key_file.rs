//! Key files. A server's file lists the keys that may connect and their rights; a client's file
//! holds its one key.
//!
//! ```toml
//! [[key]]
//! name = "rank-0"
//! secret = "..."                  # 64 hexadecimal digits, random
//! rights = ["read", "write"]      # of read, write, remove, operate; default: all (with
//!                                 # `namespaces`: all but operate)
//! namespaces = ["..."]            # 32 hexadecimal digits each; default: all
//! ```

use std::collections::BTreeSet;
use std::path::Path;

use pagelith_io::regular_file::read_secret;
use pagelith_layouts::ids::NamespaceId;
use pagelith_transport::auth::Key;
use pagelith_transport::rights::{Namespaces, Rights};
use serde::Deserialize;
use toml::{Spanned, Table, Value};

use crate::api::error::{Error, ErrorKind, Result};

/// Bytes of a secret.
pub const SECRET_BYTES: usize = 32;
/// A path with this many consecutive hexadecimal digits is not display_path in messages.
const HIDDEN_DIGITS_MIN: usize = 16;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct KeyFile {
    #[serde(default)]
    key: Vec<Spanned<Table>>,
}

/// A description of an error in an entry. Always a constant: nothing from a key file is repeated,
/// since a secret may be anywhere in it.
type EntryError = &'static str;

/// The key and rights of an entry.
fn parse_entry(entry: &Table) -> std::result::Result<(Key, Rights), EntryError> {
    if entry.keys().any(|name| !["name", "secret", "rights", "namespaces"].contains(&name.as_str()))
    {
        return Err("an entry has name, secret, rights and namespaces, and nothing else");
    }
    let text = |name| entry.get(name).and_then(Value::as_str);
    let name = text("name").ok_or("name is missing, or is not a string")?;
    let secret = text("secret")
        .and_then(parse_secret)
        .ok_or("secret is not 64 hexadecimal digits in quotes")?;
    let key = Key::new(name, &secret).map_err(|_| "name must be 1 to 31 of A-Z a-z 0-9 _ - .")?;
    Ok((key, parse_rights(entry)?))
}

fn is_secret(text: &str) -> bool {
    text.len() == 2 * SECRET_BYTES && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

fn parse_secret(text: &str) -> Option<Vec<u8>> {
    let (pairs, _) = text.as_bytes().as_chunks::<2>();
    let byte = |pair: &[u8; 2]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    if is_secret(text) { pairs.iter().map(byte).collect() } else { None }
}

/// The strings of a list; `None` if the setting is absent.
fn string_list<'a>(
    entry: &'a Table,
    name: &str,
    wrong: EntryError,
) -> std::result::Result<Option<Vec<&'a str>>, EntryError> {
    let Some(value) = entry.get(name) else { return Ok(None) };
    let all = value.as_array().and_then(|all| all.iter().map(Value::as_str).collect());
    all.map(Some).ok_or(wrong)
}

fn parse_rights(entry: &Table) -> std::result::Result<Rights, EntryError> {
    let wrong = "rights must be a list of \"read\", \"write\", \"remove\" and \"operate\"";
    let rights = string_list(entry, "rights", wrong)?;
    if rights.iter().flatten().any(|right| !["read", "write", "remove", "operate"].contains(right))
    {
        return Err(wrong);
    }
    let wrong = "namespaces must be a list of strings of 32 hexadecimal digits";
    let namespaces = match string_list(entry, "namespaces", wrong)? {
        None => Namespaces::All,
        Some(these) => {
            let these = these
                .iter()
                .map(|text| NamespaceId::from_hex(text))
                .collect::<Option<BTreeSet<_>>>();
            Namespaces::Listed(these.ok_or(wrong)?)
        }
    };
    let has = |right| rights.as_ref().is_none_or(|rights| rights.contains(&right));
    // `operate` gives access to all namespaces, so an entry with `namespaces` must name it.
    let operates = rights.is_some() || matches!(namespaces, Namespaces::All);
    Ok(Rights {
        namespaces,
        read: has("read"),
        write: has("write"),
        remove: has("remove"),
        operate: has("operate") && operates,
    })
}

/// Every key of a server's file, with its rights.
///
/// # Errors
/// `Denied` if the file belongs to another user or others can read it, `Unavailable` if it cannot
/// be read, `Invalid` if its contents are wrong. Messages never quote the contents.
pub fn ring(path: &Path) -> Result<Vec<(Key, Rights)>> {
    let keys = read(path)?;
    let mut names = BTreeSet::new();
    match keys.iter().position(|(key, _)| !names.insert(key.name())) {
        Some(twice) => {
            let (number, file) = (twice + 1, display_path(path));
            Err(Error::invalid(format!("two entries have this name entry={number} file={file}")))
        }
        None => Ok(keys),
    }
}

/// The single key of a client's file. Errors as for [`ring`].
pub fn own(path: &Path) -> Result<Key> {
    let mut keys = read(path)?;
    if keys.len() != 1 {
        let (count, file) = (keys.len(), display_path(path));
        return Err(Error::invalid(format!(
            "a client's file must have exactly one key keys={count} file={file}"
        )));
    }
    Ok(keys.remove(0).0)
}

/// A path for messages, unless it may be a secret, or a part of one, given in place of a file name.
fn display_path(path: &Path) -> String {
    let text = path.display().to_string();
    let has_digits = text
        .split(|c: char| !c.is_ascii_hexdigit())
        .any(|digits| digits.len() >= HIDDEN_DIGITS_MIN);
    match has_digits && !text.contains('/') {
        true => "(hexadecimal digits in place of a file's name)".to_owned(),
        false => text,
    }
}

fn read(path: &Path) -> Result<Vec<(Key, Rights)>> {
    let file = display_path(path);
    let text = read_secret(path).map_err(|error| {
        let kind = match error.kind() {
            std::io::ErrorKind::PermissionDenied => ErrorKind::Denied,
            std::io::ErrorKind::InvalidInput | std::io::ErrorKind::InvalidData => {
                ErrorKind::Invalid
            }
            _ => ErrorKind::Unavailable,
        };
        let mut refused = Error::new(kind, format!("{error} file={file}"));
        refused.errno = error.raw_os_error();
        refused
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
        parse_entry(entry.get_ref()).map_err(wrong)
    });
    read.collect()
}
