//! Connections from the daemon's socket, bounded, and taken at once: whoever finds no place is told so, and does not wait.
//!
//! A place is one of a fixed number; one process and one user may each have only a part of them, so that no client keeps
//! all others out. Where places are short, the connection that was without a call for the longest time goes. A client
//! without a place gets one of a few seats at which every call is answered with RESOURCE_EXHAUSTED (`busy`); without
//! even that, its connection is closed.

use std::collections::HashMap;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::UnixStream;
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};
use tonic::transport::server::Connected;

/// Connections at once. A client needs one for all of its calls.
const CONNECTIONS_MAX: usize = 1_024;
/// Of those, connections of one process. An agent's process with a client per task stays far below.
const PER_PROCESS_MAX: usize = 256;
/// Of those, connections of one user: the rest is for others, be it only root's `lodge`.
const PER_USER_MAX: usize = 896;
/// Connections whose calls are answered with RESOURCE_EXHAUSTED.
const SEATS_MAX: usize = 64;
/// How long one of those may last. A client that retries gets another seat, or a place by then.
const SEAT_FOR: Duration = Duration::from_secs(2);
/// A connection without a call for this long may have to go where places are short.
const IDLE_AFTER: Duration = Duration::from_secs(30);

/// Who is at the other end, by the kernel's word at the time of the connect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Peer {
    pid: i32,
    uid: u32,
}

/// What a connection may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Admission {
    /// Everything.
    Place,
    /// Be told that there is no place.
    Seat,
}

/// A connection as its calls see it.
#[derive(Debug)]
pub(crate) struct Guest {
    admission: Admission,
    calls: AtomicU32,
    /// Since when there is no call.
    idle_since: Mutex<Instant>,
    leave: CancellationToken,
}

impl Guest {
    fn new(admission: Admission) -> Arc<Self> {
        Arc::new(Self {
            admission,
            calls: AtomicU32::new(0),
            idle_since: Mutex::new(Instant::now()),
            leave: CancellationToken::new(),
        })
    }

    /// What it may do.
    pub(crate) fn admission(&self) -> Admission {
        self.admission
    }

    /// A call begins; it ends with what is returned.
    pub(crate) fn call(self: &Arc<Self>) -> CallOf {
        self.calls.fetch_add(1, Ordering::Relaxed);
        CallOf(Arc::clone(self))
    }

    /// How long it has been without a call.
    fn idle_for(&self) -> Option<Duration> {
        let idle = self.calls.load(Ordering::Relaxed) == 0;
        idle.then(|| lock(&self.idle_since).elapsed())
    }
}

/// A call under way.
#[derive(Debug)]
pub(crate) struct CallOf(Arc<Guest>);

impl Drop for CallOf {
    fn drop(&mut self) {
        // First the time, so that nobody sees it idle since before the call.
        *lock(&self.0.idle_since) = Instant::now();
        self.0.calls.fetch_sub(1, Ordering::Relaxed);
    }
}

/// All connections that there are.
#[derive(Debug, Default)]
pub(crate) struct House {
    taken: Mutex<Taken>,
}

#[derive(Debug, Default)]
struct Taken {
    next: u64,
    places: HashMap<u64, (Peer, Weak<Guest>)>,
    seats: usize,
}

impl Taken {
    fn by(&self, of: impl Fn(&Peer) -> bool) -> usize {
        self.places.values().filter(|(peer, _)| of(peer)).count()
    }

    /// Whether there is a place for one more of this peer.
    fn has_room_for(&self, peer: Peer) -> bool {
        self.places.len() < CONNECTIONS_MAX
            && self.by(|other| other.pid == peer.pid) < PER_PROCESS_MAX
            && self.by(|other| other.uid == peer.uid) < PER_USER_MAX
    }

    /// Lets the connection go that was idle for the longest time, if one was for long enough. Its place is free at once. Where
    /// this peer is at a bound of its own, it is one of its own that goes: another's would give it no room.
    fn make_room(&mut self, peer: Peer) {
        let process_is_full = self.by(|other| other.pid == peer.pid) >= PER_PROCESS_MAX;
        let user_is_full = self.by(|other| other.uid == peer.uid) >= PER_USER_MAX;
        let idle = |(number, (other, guest)): (&u64, &(Peer, Weak<Guest>))| {
            let helps = (!process_is_full || other.pid == peer.pid)
                && (!user_is_full || other.uid == peer.uid);
            let guest = helps.then_some(guest)?;
            let idle_for = guest.upgrade()?.idle_for()?;
            (idle_for >= IDLE_AFTER).then_some((idle_for, *number))
        };
        let Some((_, number)) = self.places.iter().filter_map(idle).max() else {
            return;
        };
        if let Some((_, guest)) = self.places.remove(&number)
            && let Some(guest) = guest.upgrade()
        {
            guest.leave.cancel();
        }
    }
}

impl House {
    /// Takes a connection in, as far as there is room; `None` closes it.
    pub(crate) fn admit(self: &Arc<Self>, stream: UnixStream) -> Option<Connection> {
        let peer = peer_of(&stream)?;
        let (guest, stay) = self.find_room(peer)?;
        Some(Connection {
            stream,
            leave: Box::pin(guest.leave.clone().cancelled_owned()),
            guest,
            _stay: stay,
        })
    }

    fn find_room(self: &Arc<Self>, peer: Peer) -> Option<(Arc<Guest>, Stay)> {
        let mut taken = lock(&self.taken);
        if !taken.has_room_for(peer) {
            taken.make_room(peer);
        }
        let house = Arc::clone(self);
        if taken.has_room_for(peer) {
            let guest = Guest::new(Admission::Place);
            let number = taken.next;
            taken.next += 1;
            taken.places.insert(number, (peer, Arc::downgrade(&guest)));
            return Some((guest, Stay::Place(house, number)));
        }
        if taken.seats >= SEATS_MAX {
            return None;
        }
        taken.seats += 1;
        let guest = Guest::new(Admission::Seat);
        let leave = guest.leave.clone();
        tokio::spawn(async move {
            tokio::time::sleep(SEAT_FOR).await;
            leave.cancel();
        });
        Some((guest, Stay::Seat(house)))
    }
}

/// What a connection takes up; given back when it ends.
#[derive(Debug)]
enum Stay {
    Place(Arc<House>, u64),
    Seat(Arc<House>),
}

impl Drop for Stay {
    fn drop(&mut self) {
        match self {
            Self::Place(house, number) => drop(lock(&house.taken).places.remove(number)),
            Self::Seat(house) => lock(&house.taken).seats -= 1,
        }
    }
}

fn peer_of(stream: &UnixStream) -> Option<Peer> {
    let peer = stream.peer_cred().ok()?;
    Some(Peer {
        // None and zero: a process of a pid namespace that is not below ours. They are one to us.
        pid: peer.pid().unwrap_or_default(),
        uid: peer.uid(),
    })
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Each change is whole before its guard drops.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A connection that takes up its place or seat while it lives.
pub(crate) struct Connection {
    stream: UnixStream,
    guest: Arc<Guest>,
    leave: Pin<Box<WaitForCancellationFutureOwned>>,
    _stay: Stay,
}

impl Connected for Connection {
    type ConnectInfo = Arc<Guest>;

    fn connect_info(&self) -> Self::ConnectInfo {
        Arc::clone(&self.guest)
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.leave.as_mut().poll(cx).is_ready() {
            // As if the client had hung up. It has no call under way, or was told all that it will be told.
            return Poll::Ready(Ok(()));
        }
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(pid: i32, uid: u32) -> Peer {
        Peer { pid, uid }
    }

    fn places(house: &Arc<House>, peer: Peer, count: usize) -> Vec<(Arc<Guest>, Stay)> {
        let found = (0..count).filter_map(|_| house.find_room(peer));
        found
            .filter(|(guest, _)| guest.admission() == Admission::Place)
            .collect()
    }

    #[tokio::test]
    async fn one_process_and_one_user_leave_room_for_others() {
        let house = Arc::new(House::default());
        let greedy = places(&house, peer(1, 1000), 2 * PER_PROCESS_MAX);
        assert_eq!(greedy.len(), PER_PROCESS_MAX);
        let mut same_user = Vec::new();
        for pid in 2..10 {
            same_user.extend(places(&house, peer(pid, 1000), PER_PROCESS_MAX));
        }
        assert_eq!(greedy.len() + same_user.len(), PER_USER_MAX);
        assert_eq!(places(&house, peer(77, 0), 1).len(), 1);
        drop(greedy);
        assert_eq!(places(&house, peer(1, 1000), 1).len(), 1);
    }

    #[tokio::test]
    async fn without_a_place_there_is_a_seat_and_then_nothing() {
        let house = Arc::new(House::default());
        let me = peer(1, 0);
        let _places = places(&house, me, PER_PROCESS_MAX);
        let mut seats: Vec<_> = (0..SEATS_MAX)
            .map(|_| house.find_room(me).expect("a seat"))
            .collect();
        assert!(
            seats
                .iter()
                .all(|(guest, _)| guest.admission() == Admission::Seat)
        );
        assert!(house.find_room(me).is_none());
        seats.pop();
        assert!(house.find_room(me).is_some());
    }

    #[tokio::test]
    async fn the_longest_idle_connection_makes_room_and_one_with_a_call_never() {
        let house = Arc::new(House::default());
        let me = peer(1, 0);
        let guests = places(&house, me, PER_PROCESS_MAX);
        let long_ago = Instant::now()
            .checked_sub(2 * IDLE_AFTER)
            .expect("the clock is older than a minute");
        let (busy, idle) = (&guests[0].0, &guests[1].0);
        let call = busy.call();
        for guest in [busy, idle] {
            *lock(&guest.idle_since) = long_ago;
        }
        let found = house.find_room(me).expect("room");
        assert_eq!(found.0.admission(), Admission::Place);
        assert!(idle.leave.is_cancelled() && !busy.leave.is_cancelled());
        drop(call);
        let next = house.find_room(me).expect("a seat");
        assert_eq!(
            next.0.admission(),
            Admission::Seat,
            "its call has only just ended"
        );
    }
}
