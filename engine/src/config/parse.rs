//! Merges layers of configuration into one [`Config`], and collects every problem.

use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use serde::de::{self, Deserialize, Deserializer};

use super::Config;
use super::depth::nests_too_deep;
use super::error::{ConfigError, Problem, ok_unless_problems};
use super::fields::{ENV_PREFIX, Field, field_at, fields, is_section};
use super::node::{Node, quoted};
use super::removed::{removed_key, removed_variable};
use super::service_link::is_service_link;
use super::unknown::{display_name, unknown_key, unknown_variable};
use super::valid::{MachineLimits, ValidConfig};
use super::validate;

/// Larger than any configuration; a larger file cannot be one.
const TEXT_BYTES_MAX: usize = 1 << 20;

/// The format of a configuration file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConfigFormat {
    /// TOML.
    Toml,
    /// JSON.
    Json,
}

impl ConfigFormat {
    /// The format that a file's extension (`.toml`, `.json`) names.
    pub fn of_path(path: &Path) -> Option<ConfigFormat> {
        match path.extension().and_then(OsStr::to_str) {
            Some("toml") => Some(ConfigFormat::Toml),
            Some("json") => Some(ConfigFormat::Json),
            _ => None,
        }
    }

    fn parse(self, text: &str) -> Result<Node, Problem> {
        let problem = |message| Problem { field: "(file)".to_owned(), message };
        if text.len() > TEXT_BYTES_MAX {
            return Err(problem(format!("must be at most 1MiB of text, got={}B", text.len())));
        }
        let parsed = match self {
            ConfigFormat::Toml => parse_toml(text),
            ConfigFormat::Json => parse_json(text),
        };
        parsed.map_err(problem)
    }
}

fn parse_toml(text: &str) -> Result<Node, String> {
    if nests_too_deep(text) {
        return Err(
            "holds more tables, lists and dotted keys than all settings together".to_owned()
        );
    }
    toml::from_str::<toml::Table>(text).map(Node::from).map_err(|error| {
        let before = error.span().and_then(|span| text.get(..span.start)).unwrap_or("");
        let line = before.matches('\n').count() + 1;
        let column = before.chars().rev().take_while(|c| *c != '\n').count() + 1;
        format!("is not TOML: {} line={line} column={column}", one_line(error.message()))
    })
}

fn parse_json(text: &str) -> Result<Node, String> {
    serde_json::from_str::<Node>(text).map_err(|error| {
        let shown = error.to_string();
        let message = shown.split(" at line ").next().unwrap_or(&shown);
        format!(
            "is not JSON: {} line={} column={}",
            one_line(message),
            error.line(),
            error.column()
        )
    })
}

/// A parser's message may quote the parsed text; a problem must be one line.
fn one_line(message: &str) -> String {
    message.chars().take(200).map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// A [`Config`] under construction, with the problems so far.
pub(super) struct Draft {
    pub(super) config: Config,
    pub(super) problems: Vec<Problem>,
    /// Settings whose value is not the intended one (wrong, or set under a misspelled name).
    /// Relations that depend on them are not checked: such problems would disappear with the
    /// correction.
    pub(super) wrong_settings: Vec<&'static str>,
}

impl Draft {
    pub(super) fn of(config: Config) -> Draft {
        Draft { config, problems: Vec::new(), wrong_settings: Vec::new() }
    }

    fn apply_file(&mut self, format: ConfigFormat, text: &str) {
        match format.parse(text) {
            Ok(tree) => self.apply_tree(&tree),
            Err(problem) => {
                self.problems.push(problem);
                // Any setting may have been intended.
                self.wrong_settings = fields().iter().map(Field::path).collect();
            }
        }
    }

    fn apply_tree(&mut self, tree: &Node) {
        let Node::Table(entries) = tree else {
            let message = format!("must be a table of settings, got={tree}");
            self.problems.push(Problem { field: "(file)".to_owned(), message });
            return;
        };
        for (key, node) in entries {
            self.apply_node(&mut vec![key.as_str()], node);
        }
    }

    /// The caller bounded the depth (serde_json stops at 128, and [`nests_too_deep`] refuses more
    /// too).
    fn apply_node<'a>(&mut self, keys: &mut Vec<&'a str>, node: &'a Node) {
        // A key that itself contains a dot is no path.
        let plain = keys.iter().all(|key| !key.contains('.'));
        let path = keys.join(".");
        if let Some(field) = field_at(&path).filter(|_| plain) {
            self.put(field, node, "");
            return;
        }
        if let Some(problem) = removed_key(&path).filter(|_| plain) {
            self.problems.push(problem);
            return;
        }
        match node {
            Node::Table(entries) if !entries.is_empty() => {
                for (key, node) in entries {
                    keys.push(key.as_str());
                    self.apply_node(keys, node);
                    keys.pop();
                }
            }
            Node::Table(_) if is_section(&path) => {}
            _ if is_section(&path) => {
                let message = format!("must be a table of settings, got={node}");
                self.problems.push(Problem { field: path, message });
            }
            _ => {
                let shown: Vec<String> = keys.iter().map(|key| display_name(key)).collect();
                let (problem, meant) = unknown_key(&shown.join("."), keys);
                self.problems.push(problem);
                self.wrong_settings.extend(meant.map(Field::path));
            }
        }
    }

    fn apply_env(&mut self, variables: &[(OsString, OsString)]) {
        let mut seen = HashSet::new();
        let mut links = Vec::new();
        for (name, text) in variables {
            let shown = name.to_string_lossy();
            let Some(rest) = shown.strip_prefix(ENV_PREFIX) else { continue };
            let Some(field) = fields().iter().find(|field| name == field.env_name().as_str())
            else {
                if let Some(problem) = removed_variable(&shown) {
                    self.problems.push(problem);
                    continue;
                }
                if is_service_link(rest, &text.to_string_lossy()) {
                    links.push(display_name(&shown));
                    continue;
                }
                let (problem, meant) = unknown_variable(&shown);
                self.problems.push(problem);
                self.wrong_settings.extend(meant.map(Field::path));
                continue;
            };
            let origin = format!(" env={}", field.env_name());
            if !seen.insert(field.path()) {
                self.fault(
                    field,
                    format!("must be set once in the environment, got=twice{origin}"),
                );
                continue;
            }
            match text.to_str() {
                Some(text) => self.put(field, &field.node_of_text(text), &origin),
                None => {
                    let lossy = quoted(&text.to_string_lossy());
                    self.fault(
                        field,
                        format!("must be {}: not UTF-8, got={lossy}{origin}", field.expects()),
                    );
                }
            }
        }
        if !links.is_empty() {
            tracing::debug!(
                variables = links.join(","),
                "variables of a Kubernetes service are not settings"
            );
        }
    }

    fn put(&mut self, field: &'static Field, node: &Node, origin: &str) {
        let put = field.put(&mut self.config, node).and_then(|()| field.check(&self.config));
        if let Err(message) = put {
            self.fault(field, message + origin);
        }
    }

    fn fault(&mut self, field: &'static Field, message: String) {
        self.problems.push(Problem { field: field.path().to_owned(), message });
        self.wrong_settings.push(field.path());
    }

    /// Check every setting's own range; those already suspect are not reported twice.
    pub(super) fn check_ranges(&mut self) {
        for field in fields() {
            if self.wrong_settings.contains(&field.path()) {
                continue;
            }
            if let Err(message) = field.check(&self.config) {
                self.fault(field, message);
            }
        }
    }
}

type Override<'a> = Box<dyn FnOnce(&mut Config) + 'a>;

/// Collects the layers of a configuration. The order of the calls does not matter: the precedence
/// is always defaults < file < environment < code.
#[derive(Default)]
pub struct ConfigBuilder<'a> {
    file: Option<(ConfigFormat, &'a str)>,
    variables: Vec<(OsString, OsString)>,
    code: Vec<Override<'a>>,
}

impl<'a> ConfigBuilder<'a> {
    /// The text of the configuration file. A second call replaces the first.
    pub fn file(mut self, format: ConfigFormat, text: &'a str) -> Self {
        self.file = Some((format, text));
        self
    }

    /// Environment variables; those without [`ENV_PREFIX`] are ignored. Pass `std::env::vars_os()`:
    /// `vars()` panics on any variable that is not UTF-8.
    pub fn env<K: Into<OsString>, V: Into<OsString>>(
        mut self,
        variables: impl IntoIterator<Item = (K, V)>,
    ) -> Self {
        self.variables.extend(variables.into_iter().map(|(name, text)| (name.into(), text.into())));
        self
    }

    /// Settings from code, after all other layers and in the order of the calls.
    pub fn set(mut self, set: impl FnOnce(&mut Config) + 'a) -> Self {
        self.code.push(Box::new(set));
        self
    }

    /// The configuration, with each setting within its own range. Relations between settings and to
    /// the machine are checked by [`Config::validate`], so that code may complete it first.
    pub fn build(self) -> Result<Config, ConfigError> {
        let draft = self.draft();
        ok_unless_problems(draft.problems, draft.config)
    }

    /// The configuration ready to open a store: one error for all problems of all layers and
    /// relations.
    pub fn validate(self, limits: &MachineLimits) -> Result<ValidConfig, ConfigError> {
        validate::resolve(self.draft(), limits)
    }

    fn draft(self) -> Draft {
        let mut draft = Draft::of(Config::default());
        if let Some((format, text)) = self.file {
            draft.apply_file(format, text);
        }
        draft.apply_env(&self.variables);
        for set in self.code {
            set(&mut draft.config);
        }
        draft.check_ranges();
        draft
    }
}

impl Config {
    /// Collect layers; see [`ConfigBuilder`].
    pub fn builder<'a>() -> ConfigBuilder<'a> {
        ConfigBuilder::default()
    }

    /// The defaults overlaid with a TOML text. The error contains all problems.
    pub fn from_toml_str(text: &str) -> Result<Config, ConfigError> {
        Config::from_text(ConfigFormat::Toml, text)
    }

    /// The defaults overlaid with a JSON text. The error contains all problems.
    pub fn from_json_str(text: &str) -> Result<Config, ConfigError> {
        Config::from_text(ConfigFormat::Json, text)
    }

    /// The defaults overlaid with a text of that format. The error contains all problems.
    pub fn from_text(format: ConfigFormat, text: &str) -> Result<Config, ConfigError> {
        Config::builder().file(format, text).build()
    }

    /// Every setting with its value, as JSON that [`Config::from_json_str`] reads back.
    pub fn to_json_string(&self) -> String {
        // Only a path that is not UTF-8 has no JSON form; it is shown lossily (and refused by
        // `validate`).
        serde_json::to_string_pretty(self).unwrap_or_else(|error| {
            let mut shown = self.clone();
            let lossy = |path: &PathBuf| path.to_string_lossy().into_owned().into();
            shown.ssd.dirs = self.ssd.dirs.iter().map(lossy).collect();
            shown.remote.key = self.remote.key.as_ref().map(lossy);
            serde_json::to_string_pretty(&shown).unwrap_or_else(|_| error.to_string())
        })
    }
}

impl<'de> Deserialize<'de> for Config {
    /// As [`Config::from_json_str`], for a configuration inside another document: the error's text
    /// contains all problems, one per line.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Config, D::Error> {
        let tree = Node::deserialize(deserializer)?;
        let mut draft = Draft::of(Config::default());
        draft.apply_tree(&tree);
        ok_unless_problems(draft.problems, draft.config).map_err(de::Error::custom)
    }
}
