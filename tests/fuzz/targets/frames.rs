//! Packets of the holder protocol, from whoever has the other end: each is a message, or an error, whatever its bytes are.
#![no_main]

use std::os::fd::{AsFd as _, AsRawFd as _};

use libfuzzer_sys::fuzz_target;
use lodge_holder::protocol::{self, Fds, MAX_PACKET};
use lodge_kernel::sys::packet::Wait;
use lodge_proto::holder::{ExecSpec, FromHolder, Launch, Launched, RunState, ToHolder};
use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockType, send, socketpair};
use prost::Message;

fuzz_target!(|data: &[u8]| {
    let Some((kind, packet)) = data.split_first() else {
        return;
    };
    match kind % 6 {
        0 => each::<ToHolder>(packet),
        1 => each::<FromHolder>(packet),
        2 => each::<Launch>(packet),
        3 => each::<Launched>(packet),
        4 => each::<RunState>(packet),
        _ => each::<ExecSpec>(packet),
    }
});

/// Through a socket, as it comes; what could be read is written and read again as the same.
fn each<M: Message + Default + PartialEq>(packet: &[u8]) {
    let (ours, theirs) = socketpair(
        AddressFamily::Unix,
        SockType::SeqPacket,
        None,
        SockFlag::SOCK_CLOEXEC,
    )
    .expect("a pair of sockets");
    if packet.len() > MAX_PACKET || send(ours.as_raw_fd(), packet, MsgFlags::empty()).is_err() {
        return;
    }
    let mut buffer = vec![0; MAX_PACKET];
    let received = protocol::receive::<M>(theirs.as_fd(), &mut buffer, Wait::No);
    if let Ok((message, fds)) = received {
        assert!(fds.is_empty());
        // Roles without descriptors are an error, none of a panic.
        let _ = Fds::pair(&[1], fds);
        let again = M::decode(message.encode_to_vec().as_slice());
        assert!(again.is_ok_and(|again| again == message), "{packet:?}");
    }
}
