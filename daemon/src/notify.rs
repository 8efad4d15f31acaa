//! Tells the service manager how the daemon is, by sd_notify(3)'s protocol: one datagram to the socket that
//! `$NOTIFY_SOCKET` names. Without that variable it does nothing.

use std::io;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// What the service manager is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Notice {
    /// Clients can connect; with a line for `systemctl status`.
    Ready(String),
    /// No more calls are taken.
    Stopping,
}

impl Notice {
    fn text(&self) -> String {
        match self {
            // A line break would begin another assignment.
            Self::Ready(status) => format!("READY=1\nSTATUS={}\n", status.replace('\n', " ")),
            Self::Stopping => "STOPPING=1\nSTATUS=stopping; sandboxes go on\n".to_owned(),
        }
    }
}

/// Sends a notice. A service manager that cannot be told is worth a line in the log and nothing more.
pub fn notify(notice: Notice) {
    let Some(socket) = std::env::var_os("NOTIFY_SOCKET") else {
        return;
    };
    if let Err(error) = send(socket.as_encoded_bytes(), &notice) {
        tracing::warn!(%error, ?notice, "the service manager was not told");
    }
}

fn send(socket: &[u8], notice: &Notice) -> io::Result<()> {
    let address = match socket.strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => {
            use std::os::unix::ffi::OsStrExt as _;
            SocketAddr::from_pathname(std::ffi::OsStr::from_bytes(socket))?
        }
    };
    UnixDatagram::unbound()?
        .send_to_addr(notice.text().as_bytes(), &address)
        .map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_notice_arrives_at_a_path() {
        let temp = tempfile::tempdir().expect("temporary directory");
        let path = temp.path().join("notify");
        let receiver = UnixDatagram::bind(&path).expect("bound");
        let ready = Notice::Ready("took up\nnothing".to_owned());
        send(path.as_os_str().as_encoded_bytes(), &ready).expect("sent");
        let mut buffer = [0; 64];
        let len = receiver.recv(&mut buffer).expect("received");
        assert_eq!(&buffer[..len], b"READY=1\nSTATUS=took up nothing\n");
    }

    #[test]
    fn a_notice_arrives_at_an_abstract_name() {
        let name = format!("lodge-notify-test-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).expect("short");
        let receiver = UnixDatagram::bind_addr(&address).expect("bound");
        send(format!("@{name}").as_bytes(), &Notice::Stopping).expect("sent");
        let mut buffer = [0; 64];
        let len = receiver.recv(&mut buffer).expect("received");
        assert!(buffer[..len].starts_with(b"STOPPING=1\n"));
    }
}
