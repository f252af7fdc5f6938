//! Standard output for whoever typed the command.

use std::io::{self, Write};

/// Prints a line. A reader that has gone (`| head`) ends the command without a fuss, as it does every Unix tool.
pub(crate) fn line(text: &str) -> io::Result<()> {
    let outcome = writeln!(io::stdout().lock(), "{text}");
    match outcome {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => std::process::exit(0),
        other => other,
    }
}
