//! `pagelith key`: a new key for links, as an entry of a key file ([`pagelith::key_file`]).

use clap::Args;
use pagelith::io::entropy::Entropy;
use pagelith::io::system::SystemEntropy;
use pagelith::key_file::SECRET_BYTES;
use pagelith::transport::auth::Key;

use crate::exit::RunStatus;
use crate::output::out;

/// Generate a key for links to `pagelith serve`: an entry of a key file, on stdout.
///
/// The server's file has an entry for each client, a client's file only its own.
#[derive(Args, Debug)]
#[command(after_help = "Example: pagelith key engine-0 >> /etc/pagelith/keys.toml")]
pub(crate) struct KeyArgs {
    /// Name of the key: 1 to 31 characters of A-Z a-z 0-9 _ - .
    name: String,
}

pub(crate) fn run(args: &KeyArgs) -> anyhow::Result<RunStatus> {
    let mut secret = [0; SECRET_BYTES];
    SystemEntropy.fill(&mut secret);
    Key::new(&args.name, &secret)?;
    let hex: String = secret.iter().map(|byte| format!("{byte:02x}")).collect();
    out!("[[key]]\nname = \"{}\"\nsecret = \"{hex}\"", args.name)?;
    Ok(RunStatus::Clean)
}
