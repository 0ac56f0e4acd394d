//! The terminal while `top` runs: the alternate screen, single keys, and signals that end it.

use std::fmt::Write as _;
use std::io::{Write as _, stdin, stdout};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use anyhow::Context;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::termios::{
    InputModes, LocalModes, OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr,
};
use signal_hook::SigId;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::low_level::{pipe, unregister};

/// The alternate screen without a cursor.
const ENTER: &str = "\x1b[?1049h\x1b[?25l";
/// The screen as it was.
const LEAVE: &str = "\x1b[?25h\x1b[?1049l";
/// Size if the terminal does not report one.
const SIZE: (usize, usize) = (80, 24);
/// `q`, Ctrl-C and Ctrl-D.
const END_KEYS: [u8; 4] = [b'q', b'Q', 0x03, 0x04];

/// A terminal that is restored when this is dropped.
pub(super) struct Terminal {
    saved: Termios,
    /// Readable once a signal has arrived.
    signals: UnixStream,
    registered: Vec<SigId>,
}

impl Terminal {
    pub(super) fn open() -> anyhow::Result<Terminal> {
        let (signals, notify) = UnixStream::pair().context("cannot take signals")?;
        let saved = tcgetattr(stdin()).context("cannot read the state of the terminal")?;
        let mut terminal = Terminal { saved, signals, registered: Vec::new() };
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            let id = notify.try_clone().and_then(|notify| pipe::register(signal, notify));
            terminal.registered.push(id.context("cannot take signals")?);
        }
        let mut keys = terminal.saved.clone();
        keys.local_modes.remove(LocalModes::ICANON | LocalModes::ECHO | LocalModes::ISIG);
        // Ctrl-S would block the next write, and with it all signals.
        keys.input_modes.remove(InputModes::IXON);
        tcsetattr(stdin(), OptionalActions::Now, &keys).context("cannot set up the terminal")?;
        terminal.write(ENTER)?;
        Ok(terminal)
    }

    /// Columns and rows now.
    pub(super) fn size(&self) -> (usize, usize) {
        let size = tcgetwinsize(stdout()).ok().filter(|size| size.ws_col > 0 && size.ws_row > 0);
        size.map_or(SIZE, |size| (size.ws_col.into(), size.ws_row.into()))
    }

    /// Replace the screen. Lines are overwritten and not cleared first, so that nothing flickers.
    pub(super) fn draw(&mut self, lines: &[String]) -> anyhow::Result<()> {
        let mut text = "\x1b[H".to_owned();
        for (number, line) in lines.iter().enumerate() {
            let end = if number == 0 { "" } else { "\r\n" };
            // Writing to a string cannot fail.
            let _ = write!(text, "{end}{line}\x1b[K");
        }
        self.write(&(text + "\x1b[J"))
    }

    fn write(&mut self, text: &str) -> anyhow::Result<()> {
        let mut screen = stdout().lock();
        screen
            .write_all(text.as_bytes())
            .and_then(|()| screen.flush())
            .context("cannot write to the terminal")
    }

    /// Wait for `interval`, or until a key, a signal or the end of input ends the program.
    pub(super) fn ends_within(&mut self, interval: Duration) -> anyhow::Result<bool> {
        let until = Instant::now() + interval;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let keys = stdin();
            let mut fds =
                [PollFd::new(&keys, PollFlags::IN), PollFd::new(&self.signals, PollFlags::IN)];
            match poll(&mut fds, Some(&Timespec::try_from(left).unwrap_or_default())) {
                Ok(0) => return Ok(false),
                Ok(_) if !fds[1].revents().is_empty() => return Ok(true),
                Ok(_) => {}
                Err(Errno::INTR) => continue,
                Err(error) => return Err(error).context("cannot wait for a key"),
            }
            let mut typed = [0; 64];
            match rustix::io::read(&keys, &mut typed) {
                Ok(0) => return Ok(true),
                Ok(length) if typed[..length].iter().any(|key| END_KEYS.contains(key)) => {
                    return Ok(true);
                }
                Ok(_) | Err(Errno::INTR | Errno::AGAIN) => {}
                Err(error) => return Err(error).context("cannot read a key"),
            }
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.write(LEAVE);
        let _ = tcsetattr(stdin(), OptionalActions::Now, &self.saved);
        self.registered.drain(..).for_each(|id| {
            unregister(id);
        });
    }
}
