//! The client against a fake daemon: how calls are sent, and above all what it makes of answers that are not in order.

mod fake;

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use lodge_client::{
    Client, Code, EndReason, Error, Event, IdlePolicy, Limits, ResumeMode, Sandbox, SandboxEvent,
    SandboxRef, SandboxState, StdStream,
};
use tokio::io::{AsyncRead, ReadBuf};

async fn sandbox() -> (fake::Daemon, Sandbox) {
    let daemon = fake::Daemon::start().await;
    let client = Client::connect(daemon.endpoint())
        .await
        .expect("the fake answers");
    let client = client.deadline_margin(Duration::from_millis(50));
    let sandbox = client.sandbox("test").await.expect("the fake has it");
    (daemon, sandbox)
}

/// Gives a few bytes and then fails.
struct FailingReader(bool);

impl AsyncRead for FailingReader {
    fn poll_read(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.0 {
            return Poll::Ready(Err(io::Error::other("the disk is on fire")));
        }
        self.0 = true;
        buffer.put_slice(b"some bytes");
        Poll::Ready(Ok(()))
    }
}

#[tokio::test]
async fn a_missing_daemon_is_a_connect_error_with_a_hint() {
    let error = Client::connect("unix:///nonexistent/lodged.sock")
        .await
        .expect_err("no daemon");
    assert!(matches!(error, Error::Connect { .. }), "{error:?}");
    assert!(error.to_string().contains("/nonexistent/lodged.sock"));
    assert!(error.hint().is_some_and(|hint| hint.contains("lodged")));
}

#[tokio::test]
async fn acquire_gives_a_handle_by_id_and_tells_who_created_it() {
    let daemon = fake::Daemon::start().await;
    let client = Client::connect(daemon.endpoint()).await.unwrap();
    let acquired = client
        .sandbox("mine")
        .image("agent")
        .acquire()
        .await
        .unwrap();
    assert!(acquired.created);
    assert_eq!(
        (acquired.info.name.as_str(), acquired.info.image.as_str()),
        ("mine", "agent")
    );
    assert_eq!(
        acquired.sandbox.reference(),
        &SandboxRef::Id(fake::ID.into())
    );
}

#[tokio::test]
async fn list_reads_every_page() {
    let daemon = fake::Daemon::start().await;
    let client = Client::connect(daemon.endpoint()).await.unwrap();
    let names: Vec<_> = client
        .list()
        .await
        .unwrap()
        .into_iter()
        .map(|s| s.name)
        .collect();
    assert_eq!(names, ["first", "second"]);
}

#[tokio::test]
async fn list_asks_for_the_labels_and_states_of_its_filter_on_every_page() {
    let daemon = fake::Daemon::start().await;
    let client = Client::connect(daemon.endpoint()).await.unwrap();
    let list = client.list().label("team", "a").state(SandboxState::Frozen);
    assert_eq!(list.await.unwrap().len(), 2);
    let asked = daemon.asked().list;
    assert_eq!(
        (asked.page_token.as_str(), asked.labels["team"].as_str()),
        ("more", "a")
    );
    assert_eq!(asked.states, [3]);
}

#[tokio::test]
async fn an_update_says_what_changes_and_nothing_else() {
    let (daemon, sandbox) = sandbox().await;
    let limits = Limits {
        memory_bytes: Some(1 << 30),
        ..Limits::default()
    };
    let idle = IdlePolicy {
        delete_after: Some(Duration::ZERO),
        ..IdlePolicy::default()
    };
    let update = sandbox.update().limits(limits).idle(idle);
    let info = update
        .label("a", "b")
        .remove_label("c")
        .allow_degraded()
        .await
        .unwrap();
    assert_eq!((info.idle, info.labels["a"].as_str()), (idle, "b"));
    let asked = daemon.asked().update;
    let limits = asked.limits.unwrap();
    assert_eq!((limits.memory_bytes, limits.pids), (Some(1 << 30), None));
    let idle = asked.idle.unwrap();
    assert_eq!(
        (idle.freeze_after, idle.delete_after),
        (None, Some(prost_types::Duration::default()))
    );
    assert_eq!(
        (asked.remove_labels, asked.allow_degraded),
        (vec!["c".to_owned()], true)
    );
    sandbox.update().label("a", "b").await.unwrap();
    let asked = daemon.asked().update;
    assert_eq!((asked.limits, asked.idle), (None, None));
}

#[tokio::test]
async fn pause_tells_what_was_given_back_and_refusals_keep_their_reason() {
    let (_daemon, sandbox) = sandbox().await;
    let paused = sandbox.pause().await.unwrap();
    assert_eq!(
        (paused.info.state, paused.reclaimed_bytes),
        (SandboxState::Frozen, Some(5 << 20))
    );
    assert_eq!(sandbox.resume().await.unwrap().state, SandboxState::Running);
    let daemon = fake::Daemon::start().await;
    let client = Client::connect(daemon.endpoint()).await.unwrap();
    let refused = client.at("stopped").pause().await.unwrap_err();
    assert_eq!(refused.api().unwrap().reason, "SANDBOX_NOT_RUNNING");
    let acquire = client.sandbox("frozen").resume(ResumeMode::Error);
    let refused = acquire.await.unwrap_err();
    assert_eq!(refused.api().unwrap().reason, "SANDBOX_IS_FROZEN");
}

#[tokio::test]
async fn figures_that_are_not_known_are_none() {
    let (_daemon, sandbox) = sandbox().await;
    let stats = sandbox.stats().await.unwrap();
    assert_eq!(
        (stats.memory_bytes, stats.memory_peak_bytes, stats.pids),
        (Some(3 << 20), None, Some(3))
    );
    assert_eq!(stats.cpu_time, Some(Duration::from_millis(61_500)));
}

/// The fake breaks off after four events. Asked again it tells one sandbox of two: the other one went meanwhile.
#[tokio::test]
async fn a_watch_goes_on_after_a_restart_and_finds_out_what_went_meanwhile() {
    let daemon = fake::Daemon::start().await;
    let client = Client::connect(daemon.endpoint()).await.unwrap();
    let mut events = client.watch().label("team", "a").await.unwrap();
    let mut told = Vec::new();
    for _ in 0..8 {
        let next = tokio::time::timeout(Duration::from_secs(20), events.next());
        told.push(match next.await.unwrap().unwrap().unwrap() {
            SandboxEvent::Changed(info) => format!("{} {}", info.name, info.state),
            SandboxEvent::Deleted { name, .. } => format!("{name} deleted"),
            SandboxEvent::Synced => "synced".to_owned(),
            other => panic!("{other:?}"),
        });
    }
    let expected = [
        "first running",
        "second stopped",
        "synced",
        "first frozen",
        "first running",
        "synced",
        "second deleted",
        "first deleted",
    ];
    assert_eq!(told, expected);
    let asked = daemon.asked().watches;
    assert!(asked.len() == 2 && asked.iter().all(|watch| watch.labels["team"] == "a"));
}

/// As a client's streams of runs it goes on for as long as the client says, here not at all.
#[tokio::test]
async fn a_watch_goes_on_for_no_longer_than_its_client_says() {
    let daemon = fake::Daemon::start().await;
    let client = Client::connect(daemon.endpoint()).await.unwrap();
    let impatient = client.reconnect_within(Duration::ZERO);
    let mut events = impatient.watch().await.unwrap();
    for _ in 0..4 {
        events.next().await.unwrap().unwrap();
    }
    let error = events.next().await.unwrap().expect_err("it breaks off");
    assert_eq!(error.api().expect("its answer").code, Code::Unavailable);
    assert!(events.next().await.is_none(), "the error is the last");
    assert_eq!(daemon.asked().watches.len(), 1);
}

#[tokio::test]
async fn a_watch_that_is_refused_is_not_asked_again() {
    let daemon = fake::Daemon::start().await;
    let client = Client::connect(daemon.endpoint()).await.unwrap();
    let refused = client.watch().label("fake:refuse", "").await.unwrap_err();
    assert_eq!(refused.api().unwrap().reason, "TOO_MUCH");
    assert_eq!(daemon.asked().watches.len(), 1);
}

#[tokio::test]
async fn a_run_gives_its_output_and_its_exit_code() {
    let (_daemon, sandbox) = sandbox().await;
    let out = sandbox
        .run("echo $A $B; pwd; echo oops >&2; cat; exit 3")
        .env("A", "1")
        .secret("B", "secret")
        .cwd("/")
        .stdin("input")
        .await
        .unwrap();
    assert_eq!(out.stdout.text().as_str(), "1 secret\n/\ninput");
    assert_eq!(out.stderr.text().as_str(), "oops\n");
    assert_eq!((out.exit_code(), out.end_reason()), (3, EndReason::Exited));
    assert!(!out.success());
}

#[tokio::test]
async fn an_argv_run_passes_its_arguments_as_they_are() {
    let (_daemon, sandbox) = sandbox().await;
    let out = sandbox
        .run_argv(["printf", "%s|", "a b", "$HOME", ""])
        .await
        .unwrap();
    assert_eq!(&out.stdout.bytes()[..], b"a b|$HOME||");
}

#[tokio::test]
async fn a_refusal_has_its_code_reason_message_and_hint() {
    let (_daemon, sandbox) = sandbox().await;
    let unary = sandbox.run("fake:refuse").await.expect_err("it is refused");
    let streamed = sandbox
        .run("fake:refuse")
        .stream()
        .await
        .expect_err("it is refused");
    let mut events = sandbox.run("fake:broken").stream().await.unwrap();
    events.next().await.unwrap().unwrap();
    let late = events
        .next()
        .await
        .unwrap()
        .expect_err("it fails after its start");
    assert!(events.next().await.is_none());
    for error in [unary, streamed, late] {
        let api = error.api().expect("it is the daemon's answer");
        assert_eq!(api.code, Code::ResourceExhausted);
        assert_eq!(
            (api.reason.as_str(), api.hint.as_str()),
            ("TOO_MUCH", "ask for less")
        );
        assert_eq!(error.to_string(), "that is too much");
    }
}

#[tokio::test]
async fn a_stream_gives_events_in_order_and_ends_with_the_exit() {
    let (_daemon, sandbox) = sandbox().await;
    let mut events = sandbox.run("printf ab; exit 4").stream().await.unwrap();
    assert_eq!(
        events.next().await.unwrap().unwrap(),
        Event::Started {
            run_id: fake::ID.into()
        }
    );
    let output = events.next().await.unwrap().unwrap();
    let expected = Event::Output {
        stream: StdStream::Stdout,
        offset: 0,
        data: "ab".into(),
    };
    assert_eq!(output, expected);
    let Event::Exited(end) = events.next().await.unwrap().unwrap() else {
        panic!("no exit")
    };
    assert_eq!((end.exit_code, end.stdout_bytes), (4, 2));
    assert!(events.next().await.is_none());
}

#[tokio::test]
async fn a_stream_without_its_end_is_an_error() {
    let (daemon, sandbox) = sandbox().await;
    let mut events = sandbox.run("fake:cut").stream().await.unwrap();
    for _ in ["started", "output"] {
        events.next().await.unwrap().unwrap();
    }
    // The run cannot be attached to again.
    let error = events.next().await.unwrap().expect_err("it was cut");
    assert!(error.is_not_found(), "{error:?}");
    assert!(events.next().await.is_none());
    // Nor is it tried where the client does not want that.
    let impatient = Client::connect(daemon.endpoint())
        .await
        .unwrap()
        .reconnect_within(Duration::ZERO);
    let mut events = impatient.at("x").run("fake:cut").stream().await.unwrap();
    for _ in ["started", "output"] {
        events.next().await.unwrap().unwrap();
    }
    let error = events.next().await.unwrap().expect_err("it was cut");
    assert!(matches!(error, Error::StreamCut { .. }), "{error:?}");
}

#[tokio::test]
async fn a_stream_that_is_cut_goes_on_where_it_was() {
    let (_daemon, sandbox) = sandbox().await;
    let stream = sandbox.run("fake:cut-once").stream().await.unwrap();
    assert_eq!(stream.run_id(), fake::CUT_ONCE);
    let out = stream.collect(100).await.unwrap();
    assert_eq!(out.stdout.text().as_str(), "partrest\n");
    assert_eq!(out.exit_code(), 3);
}

#[tokio::test]
async fn a_stream_that_comes_twice_is_an_error() {
    let (_daemon, sandbox) = sandbox().await;
    let stream = sandbox.run("fake:doubles").stream().await.unwrap();
    let error = stream.collect(100).await.expect_err("bytes came twice");
    assert!(matches!(error, Error::Protocol { .. }), "{error:?}");
}

#[tokio::test]
async fn a_run_is_attached_to_from_the_bytes_that_are_there() {
    let (_daemon, sandbox) = sandbox().await;
    let attach = sandbox.attach(fake::CUT_ONCE).stdout_offset(20);
    let mut events = attach.await.unwrap();
    let mut offsets = Vec::new();
    while let Some(event) = events.next().await {
        if let Event::Output { offset, .. } = event.unwrap() {
            offsets.push(offset);
        }
    }
    assert_eq!(offsets, [20]);
    let error = sandbox.attach("other").await.expect_err("no such run");
    assert!(error.is_not_found(), "{error:?}");
}

#[tokio::test]
async fn input_that_did_not_all_come_is_an_error_and_other_input_is_not() {
    let (_daemon, sandbox) = sandbox().await;
    let cut = sandbox.run("fake:cut").stdin_reader(tokio::io::empty());
    let error = cut.await.expect_err("nobody said that it was taken");
    assert!(matches!(error, Error::InputCut { .. }), "{error:?}");
    assert!(error.hint().is_some());
    let out = sandbox.run("fake:input").stdin_reader(&b"all of it"[..]);
    assert_eq!(out.await.unwrap().stdout.text().as_str(), "partrest\n");
}

#[tokio::test]
async fn a_run_that_finds_no_daemon_is_sent_again_as_the_same_one() {
    let (daemon, sandbox) = sandbox().await;
    // Answered only if the second call has the request id of the first.
    assert!(
        sandbox
            .run("fake:unavailable-once")
            .await
            .unwrap()
            .success()
    );
    let client = Client::connect(daemon.endpoint()).await.unwrap();
    let impatient = client.reconnect_within(Duration::from_millis(200));
    let error = impatient.at("x").run("fake:unavailable").await;
    let error = error.expect_err("it never comes back");
    assert_eq!(error.api().expect("its answer").code, Code::Unavailable);
}

#[tokio::test]
async fn a_connection_that_breaks_is_a_transport_error() {
    let daemon = fake::Daemon::start().await;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("proxy");
    let proxy = tokio::net::UnixListener::bind(&path).unwrap();
    let upstream = daemon.endpoint().replace("unix://", "");
    let forwarding = tokio::spawn(async move {
        let (mut near, _) = proxy.accept().await.unwrap();
        let mut far = tokio::net::UnixStream::connect(upstream).await.unwrap();
        let _ = tokio::io::copy_bidirectional(&mut near, &mut far).await;
    });
    let client = Client::connect(format!("unix://{}", path.display()))
        .await
        .unwrap()
        .reconnect_within(Duration::from_millis(200));
    let mut events = client.at("x").run("echo; sleep 60").stream().await.unwrap();
    for _ in ["started", "output"] {
        events.next().await.unwrap().unwrap();
    }
    forwarding.abort();
    let error = events
        .next()
        .await
        .unwrap()
        .expect_err("the connection is gone");
    assert!(matches!(error, Error::Transport(_)), "{error:?}");
}

#[tokio::test]
async fn an_end_that_is_not_known_is_an_error() {
    let (_daemon, sandbox) = sandbox().await;
    let error = sandbox
        .run("fake:unknown-end")
        .await
        .expect_err("what end is that?");
    assert!(matches!(error, Error::Protocol { .. }), "{error:?}");
}

#[tokio::test]
async fn a_daemon_that_hangs_is_a_deadline_error_after_timeout_and_margin() {
    let (_daemon, sandbox) = sandbox().await;
    let run = || sandbox.run("fake:hang").timeout(Duration::from_millis(100));
    let expected = Duration::from_millis(150);
    let error = run().await.expect_err("nobody answers");
    assert!(
        matches!(error, Error::Deadline { after } if after == expected),
        "{error:?}"
    );

    let mut events = run().stream().await.unwrap();
    events.next().await.unwrap().unwrap();
    let error = events.next().await.unwrap().expect_err("nobody answers");
    assert!(
        matches!(error, Error::Deadline { after } if after == expected),
        "{error:?}"
    );
}

#[tokio::test]
async fn a_run_without_limit_has_no_deadline() {
    let (_daemon, sandbox) = sandbox().await;
    // Longer than the margin of 50 ms, which would be the deadline if zero were taken for a time.
    let out = sandbox
        .run("sleep 0.3; echo done")
        .timeout(Duration::ZERO)
        .await
        .unwrap();
    assert_eq!(out.stdout.text().as_str(), "done\n");
}

#[tokio::test]
async fn stdin_of_any_size_arrives_whole() {
    let (_daemon, sandbox) = sandbox().await;
    for size in [0, 1, 4 << 20, (4 << 20) + 1, 20 << 20] {
        let out = sandbox.run("wc -c").stdin(vec![b'x'; size]).await.unwrap();
        assert_eq!(out.stdout.text().as_str().trim(), size.to_string());
        let reader = io::Cursor::new(vec![b'x'; size]);
        let out = sandbox.run("wc -c").stdin_reader(reader).await.unwrap();
        assert_eq!(out.stdout.text().as_str().trim(), size.to_string());
    }
}

#[tokio::test]
async fn output_of_a_run_with_large_stdin_is_cut_to_the_budget_as_well() {
    let (_daemon, sandbox) = sandbox().await;
    let input = vec![b'x'; 5 << 20];
    let out = sandbox
        .run("cat; printf end")
        .stdin(input)
        .max_output(1000)
        .await
        .unwrap();
    assert_eq!(out.stdout.total_bytes, (5 << 20) + 3);
    assert_eq!(out.stdout.head.len() + out.stdout.tail.len(), 1000);
    assert!(out.stdout.tail.ends_with(b"xend"));
}

#[tokio::test]
async fn a_command_that_reads_little_ends_the_run_although_stdin_goes_on() {
    let (_daemon, sandbox) = sandbox().await;
    let out = sandbox
        .run("head -c 1")
        .stdin_reader(tokio::io::repeat(b'x'))
        .await
        .unwrap();
    assert_eq!(out.stdout.text().as_str(), "x");
}

#[tokio::test]
async fn a_stdin_that_fails_is_an_error_and_not_the_end_of_input() {
    let (_daemon, sandbox) = sandbox().await;
    let error = sandbox
        .run("cat")
        .stdin_reader(FailingReader(false))
        .await
        .expect_err("no input");
    assert!(matches!(error, Error::Upload(_)), "{error:?}");
}

#[tokio::test]
async fn a_gap_is_told_and_counts_as_dropped() {
    let (_daemon, sandbox) = sandbox().await;
    // A reader makes it a streaming call, which is where gaps can be.
    let out = sandbox
        .run("fake:gap")
        .stdin_reader(tokio::io::empty())
        .await
        .unwrap();
    assert_eq!(
        (&out.stdout.head[..], out.stdout.dropped_bytes),
        (&b"part"[..], 6)
    );
    assert_eq!(out.stdout.text().as_str(), "part\n[… 6 bytes dropped …]\n");
}

#[tokio::test]
async fn an_import_sends_the_archive_and_reports_progress() {
    let daemon = fake::Daemon::start().await;
    let images = Client::connect(daemon.endpoint()).await.unwrap().images();
    let (sender, mut stages) = tokio::sync::mpsc::unbounded_channel();
    let image = images
        .import("mine", io::Cursor::new(vec![0; 3 << 20]))
        .on_progress(move |progress| sender.send(progress.stage).unwrap())
        .await
        .unwrap();
    assert_eq!(
        (image.names, image.size_bytes),
        (vec!["mine".to_owned()], 3 << 20)
    );
    assert_eq!(stages.recv().await.as_deref(), Some("unpacking"));
}

#[tokio::test]
async fn an_archive_that_cannot_be_read_is_not_imported() {
    let daemon = fake::Daemon::start().await;
    let images = Client::connect(daemon.endpoint()).await.unwrap().images();
    let error = images
        .import("mine", FailingReader(false))
        .await
        .expect_err("no archive");
    assert!(matches!(error, Error::Upload(_)), "{error:?}");
}

#[test]
fn secrets_and_values_are_not_in_debug_output() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let (_daemon, sandbox) = runtime.block_on(sandbox());
    let run = sandbox
        .run("true")
        .env("A", "plain-value")
        .secret("B", "secret-value");
    let text = format!("{run:?}");
    assert!(text.contains("\"A\"") && text.contains("\"B\""), "{text}");
    assert!(
        !text.contains("plain-value") && !text.contains("secret-value"),
        "{text}"
    );
}
