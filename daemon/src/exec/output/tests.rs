//! Tests of the pump against plain pipes.

use std::io::Write;
use std::time::{Duration, Instant};

use nix::unistd::pipe;
use zeroize::Zeroizing;

use super::super::environment::Secret;
use super::super::log::{BUDGET, Budget, Follower, Piece, Stream};
use super::super::mask::Patterns;
use super::*;

struct Fixture {
    dir: tempfile::TempDir,
    log: Arc<StreamLog>,
    write: File,
    control: Arc<Control>,
    task: tokio::task::JoinHandle<()>,
}

fn start_with(budget: Budget, sink: impl FnOnce(&Arc<StreamLog>) -> Sink) -> Fixture {
    let dir = tempfile::tempdir().expect("tempdir");
    let log = Arc::new(StreamLog::new(
        &dir.path().join("run"),
        Stream::Stdout,
        budget,
    ));
    let (read, write) = pipe().expect("pipe");
    let pump = Pump::new(read, Arc::clone(&log), sink(&log), &Turns::default()).expect("pump");
    let control = pump.control();
    Fixture {
        dir,
        log,
        write: File::from(write),
        control,
        task: tokio::spawn(pump.run()),
    }
}

fn start() -> Fixture {
    start_with(BUDGET, |log| Sink::Plain(Arc::clone(log)))
}

fn start_masked(value: &str) -> Fixture {
    let secret = Secret {
        name: "TOKEN".to_owned(),
        value: Zeroizing::new(value.to_owned()),
    };
    let patterns = Arc::new(Patterns::new(&[secret]).expect("small"));
    start_with(BUDGET, |log| {
        Sink::Masked(Box::new(
            Spool::create(Arc::clone(log), patterns).expect("memfd"),
        ))
    })
}

async fn text(log: &Arc<StreamLog>) -> Vec<u8> {
    let mut all = Vec::new();
    while let Piece::Data { bytes, .. } =
        log.read(all.len() as u64, 1 << 20).await.expect("readable")
    {
        all.extend_from_slice(&bytes);
    }
    all
}

#[tokio::test]
async fn a_closed_pipe_without_output_ends_the_pump_without_a_file() {
    let f = start();
    drop(f.write);
    f.task.await.expect("no panic");
    assert!(f.log.is_sealed() && f.log.is_empty());
    assert!(!f.dir.path().join("run").exists());
}

#[tokio::test]
async fn output_that_cannot_be_read_is_no_complete_log() {
    let dir = tempfile::tempdir().expect("tempdir");
    let log = Arc::new(StreamLog::new(dir.path(), Stream::Stdout, BUDGET));
    let (socket, mut other) = std::os::unix::net::UnixStream::pair().expect("sockets");
    other
        .write_all(b"splice takes pipes only")
        .expect("written");
    let sink = Sink::Plain(Arc::clone(&log));
    let pump = Pump::new(socket.into(), Arc::clone(&log), sink, &Turns::default()).expect("pump");
    pump.run().await;
    assert!(log.is_sealed());
    assert_eq!(log.loss(), Some((0, Errno::EINVAL)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_byte_of_a_large_output_is_in_the_log_in_order() {
    let mut f = start();
    let bytes: Vec<u8> = (0..5_000_000u32).map(|i| (i % 251) as u8).collect();
    let sent = bytes.clone();
    let writer = tokio::task::spawn_blocking(move || {
        sent.chunks(777)
            .for_each(|part| f.write.write_all(part).expect("written"));
    });
    writer.await.expect("no panic");
    f.task.await.expect("no panic");
    assert!(text(&f.log).await == bytes);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_the_command_had_written_is_drained_though_the_pipe_stays_open() {
    let mut f = start();
    f.write.write_all(b"done\n").expect("written");
    f.control.command_ended();
    tokio::time::timeout(Duration::from_secs(10), f.control.drained())
        .await
        .expect("drained");
    assert_eq!(text(&f.log).await, b"done\n");
    f.write.write_all(b"later\n").expect("written");
    drop(f.write);
    f.task.await.expect("no panic");
    assert_eq!(text(&f.log).await, b"done\nlater\n");
}

#[tokio::test]
async fn an_empty_open_pipe_is_drained_at_once() {
    let f = start();
    tokio::task::yield_now().await;
    f.control.command_ended();
    tokio::time::timeout(Duration::from_secs(10), f.control.drained())
        .await
        .expect("drained");
    drop(f.write);
    f.task.await.expect("no panic");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flooding_survivor_does_not_keep_the_drain_from_ending() {
    let mut f = start();
    let flood = std::thread::spawn(move || {
        let line = vec![b'x'; 32 << 10];
        let mut count = 0;
        while count < 400 << 20 && f.write.write_all(&line).is_ok() {
            count += line.len();
        }
    });
    f.control.command_ended();
    tokio::time::timeout(Duration::from_secs(30), f.control.drained())
        .await
        .expect("drained");
    flood.join().expect("no panic");
    f.task.await.expect("no panic");
    assert_eq!(f.log.len(), 400 << 20);
}

#[tokio::test]
async fn a_burst_ends_in_time_though_more_comes_and_its_budget_is_not_used_up() {
    let dir = tempfile::tempdir().expect("tempdir");
    let log = Arc::new(StreamLog::new(dir.path(), Stream::Stdout, BUDGET));
    let (read, write) = pipe().expect("pipe");
    let pipe = reactor::register(read, Interest::READABLE).expect("registered");
    // Two, so that one goes on where the other is kept waiting.
    let writers = [(); 2].map(|()| {
        let (start, mut write) = (Instant::now(), File::from(write.try_clone().expect("dup")));
        std::thread::spawn(move || {
            while start.elapsed() < Duration::from_secs(2) && write.write_all(&[b'x'; 4096]).is_ok()
            {
            }
        })
    });
    drop(write);
    let (start, mut longest) = (Instant::now(), Duration::ZERO);
    let (mut sink, mut size) = (Sink::Plain(log), PipeSize::Default);
    while start.elapsed() < Duration::from_secs(1) {
        let burst = Instant::now();
        sink.burst(&pipe, u64::MAX, &mut size).expect("moved");
        longest = longest.max(burst.elapsed());
    }
    assert!(longest < Duration::from_millis(300), "it took {longest:?}");
    drop(pipe);
    writers
        .into_iter()
        .for_each(|writer| writer.join().expect("no panic"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_follower_holds_the_command_and_its_end_lets_go() {
    let mut f = start();
    let mut follower = Follower::new(Arc::clone(&f.log), 0);
    let writer = std::thread::spawn(move || {
        f.write.write_all(&vec![b'x'; 20 << 20]).expect("written");
    });
    let mut seen = 0;
    while seen < 6 << 20 {
        follower.ready().await;
        let Piece::Data { bytes, .. } = follower.next(64 << 10).await.expect("readable") else {
            panic!("data expected")
        };
        seen += bytes.len() as u64;
        follower.advance(seen);
        assert!(f.log.len() <= seen + (5 << 20), "the pump ran ahead");
    }
    assert!(!writer.is_finished());
    drop(follower);
    f.task.await.expect("no panic");
    writer.join().expect("no panic");
    assert_eq!(f.log.len(), 20 << 20);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_secret_split_over_writes_never_reaches_the_log() {
    let mut f = start_masked("hunter2!");
    for part in [
        "a hun",
        "ter",
        "2! b ",
        "hunter2",
        "\nhunter2!hunter2!",
        "hunte",
    ] {
        f.write.write_all(part.as_bytes()).expect("written");
        tokio::task::yield_now().await;
    }
    drop(f.write);
    f.task.await.expect("no panic");
    let text = String::from_utf8(text(&f.log).await).expect("text");
    assert_eq!(text, "a «TOKEN» b hunter2\n«TOKEN»«TOKEN»hunte");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_masked_output_is_exact() {
    let mut f = start_masked("hunter2!");
    let line = "some text with hunter2! in it, and a hunter\n";
    let sent = line.repeat(100_000);
    std::thread::spawn(move || f.write.write_all(sent.as_bytes()).expect("written"));
    f.task.await.expect("no panic");
    let want = line.replace("hunter2!", "«TOKEN»").repeat(100_000);
    assert!(text(&f.log).await == want.as_bytes());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_in_the_pipe_when_it_is_given_up_is_taken_though_somebody_holds_it() {
    let mut f = start();
    let _held = f.write.try_clone().expect("dup");
    f.control.command_ended();
    f.control.drained().await;
    f.write.write_all(b"last words").expect("written");
    f.control.close();
    f.task.await.expect("no panic");
    assert_eq!(text(&f.log).await, b"last words");
    assert!(f.log.is_sealed());
}
