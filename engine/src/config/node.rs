//! One layer of configuration as parsed from text, before settings are known: a tree of plain
//! values.
//!
//! `serde_json::Value` does not suffice: it silently keeps the last of two equal keys, and has no
//! value for TOML's `nan` and dates, which messages must show as written.

use std::fmt;

use serde::de::{self, Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};

/// Longest part of a user's text that a message repeats, in characters.
const DISPLAY_CHARS_MAX: usize = 64;

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Node {
    Null,
    Bool(bool),
    Integer(i128),
    Float(f64),
    Text(String),
    /// TOML only; no setting has this type.
    Date(String),
    List(Vec<Node>),
    /// In the order of the text; keys are unique.
    Table(Vec<(String, Node)>),
}

/// `text` quoted, with control characters escaped, cut to [`DISPLAY_CHARS_MAX`]: always one line.
pub(super) fn quoted(text: &str) -> String {
    let mut shown: String = text.chars().take(DISPLAY_CHARS_MAX).collect();
    if shown.len() < text.len() {
        shown.push('…');
    }
    format!("{shown:?}")
}

impl fmt::Display for Node {
    /// The text after `got=` in a message.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Node::Null => f.write_str("null"),
            Node::Bool(value) => write!(f, "{value} type=boolean"),
            Node::Integer(value) => write!(f, "{value} type=integer"),
            Node::Float(value) => write!(f, "{value} type=float"),
            Node::Text(value) => write!(f, "{} type=string", quoted(value)),
            Node::Date(value) => write!(f, "{value} type=date"),
            Node::List(entries) => write!(f, "[..] type=list entries={}", entries.len()),
            Node::Table(entries) => write!(f, "{{..}} type=table entries={}", entries.len()),
        }
    }
}

impl From<toml::Value> for Node {
    fn from(value: toml::Value) -> Node {
        match value {
            toml::Value::Boolean(value) => Node::Bool(value),
            toml::Value::Integer(value) => Node::Integer(i128::from(value)),
            toml::Value::Float(value) => Node::Float(value),
            toml::Value::String(value) => Node::Text(value),
            toml::Value::Datetime(value) => Node::Date(value.to_string()),
            toml::Value::Array(entries) => {
                Node::List(entries.into_iter().map(Node::from).collect())
            }
            toml::Value::Table(table) => Node::from(table),
        }
    }
}

impl From<toml::Table> for Node {
    fn from(table: toml::Table) -> Node {
        Node::Table(table.into_iter().map(|(key, value)| (key, Node::from(value))).collect())
    }
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Node, D::Error> {
        deserializer.deserialize_any(NodeVisitor)
    }
}

struct NodeVisitor;

impl<'de> Visitor<'de> for NodeVisitor {
    type Value = Node;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a configuration value")
    }

    fn visit_unit<E>(self) -> Result<Node, E> {
        Ok(Node::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Node, E> {
        Ok(Node::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Node, E> {
        Ok(Node::Integer(i128::from(value)))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Node, E> {
        Ok(Node::Integer(i128::from(value)))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Node, E> {
        Ok(Node::Float(value))
    }

    fn visit_str<E>(self, value: &str) -> Result<Node, E> {
        Ok(Node::Text(value.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut entries: A) -> Result<Node, A::Error> {
        let mut list = Vec::new();
        while let Some(entry) = entries.next_element()? {
            list.push(entry);
        }
        Ok(Node::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Node, A::Error> {
        let mut table = Vec::new();
        let mut seen = std::collections::HashSet::new();
        while let Some((key, value)) = entries.next_entry::<String, Node>()? {
            if !seen.insert(key.clone()) {
                return Err(de::Error::custom(format_args!("duplicate key {}", quoted(&key))));
            }
            table.push((key, value));
        }
        Ok(Node::Table(table))
    }
}
