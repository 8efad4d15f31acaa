//! A command's standard input: bytes into a pipe, then its end.
//!
//! A command that does not read its input, or stops reading, is no error. What is written waits for the command; the
//! caller is held back by that, and nothing is buffered here.

use std::io;
use std::os::fd::OwnedFd;

use tokio::io::AsyncWriteExt;
use tokio::net::unix::pipe::Sender;

/// Whether a command still takes input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Taken {
    /// All of it is in the pipe.
    All,
    /// The command has closed its standard input, or ended.
    Closed,
}

/// The write end of a command's standard input. Dropping it is the end of the input.
pub struct StdinPipe(Sender);

impl StdinPipe {
    /// Takes the write end of a pipe. Needs the runtime's reactor.
    pub(super) fn new(pipe: OwnedFd) -> io::Result<Self> {
        Sender::from_owned_fd(pipe).map(Self)
    }

    /// Writes all of `bytes`, as fast as the command reads.
    pub async fn write(&mut self, bytes: &[u8]) -> io::Result<Taken> {
        match self.0.write_all(bytes).await {
            Ok(()) => Ok(Taken::All),
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(Taken::Closed),
            Err(error) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Read;

    use nix::unistd::pipe;

    use super::*;

    #[tokio::test]
    async fn a_slow_reader_gets_every_byte_and_the_end() {
        let (read, write) = pipe().expect("pipe");
        let mut stdin = StdinPipe::new(write).expect("pipe end");
        let bytes: Vec<u8> = (0..1_000_000u32).map(|i| (i % 251) as u8).collect();
        let reader = tokio::task::spawn_blocking(move || {
            let mut all = Vec::new();
            File::from(read).read_to_end(&mut all).map(|_| all)
        });
        assert_eq!(stdin.write(&bytes).await.expect("writes"), Taken::All);
        drop(stdin);
        assert_eq!(reader.await.expect("no panic").expect("reads"), bytes);
    }

    #[tokio::test]
    async fn a_reader_that_goes_is_no_error() {
        let (read, write) = pipe().expect("pipe");
        let mut stdin = StdinPipe::new(write).expect("pipe end");
        drop(read);
        assert_eq!(stdin.write(b"x").await.expect("no error"), Taken::Closed);
    }
}
