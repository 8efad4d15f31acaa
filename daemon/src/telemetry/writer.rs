//! Where log lines go: to a thread of their own that writes them, so that a full disk, a closed standard error or a pipe that nobody
//! reads holds nothing else up. Lines that find no room are dropped and counted, and the count is written once there is room.

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use tracing_subscriber::fmt::MakeWriter;

/// Lines that may wait to be written.
const LINES_MAX: usize = 4_096;
/// Longest line, in bytes; a longer one is cut.
const LINE_MAX: usize = 16 << 10;

/// What the writing thread is asked for.
enum Task {
    Write(Vec<u8>),
    /// To say when all that came before is written.
    Flush(SyncSender<()>),
}

/// Takes log lines. Cheap to clone; never waits.
#[derive(Clone)]
pub(super) struct Lines {
    tasks: SyncSender<Task>,
    dropped: Arc<AtomicU64>,
}

impl Lines {
    /// Starts the thread that writes to `out`.
    ///
    /// # Errors
    /// Where there can be no thread.
    pub(super) fn to(out: impl Write + Send + 'static) -> io::Result<Self> {
        let (tasks, receiver) = sync_channel(LINES_MAX);
        let dropped = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&dropped);
        std::thread::Builder::new()
            .name("lodged-log".to_owned())
            .spawn(move || write_all(&receiver, out, &counted))?;
        Ok(Self { tasks, dropped })
    }

    /// Waits until what was logged before is written, at most for `patience`.
    pub(super) fn flush(&self, patience: Duration) {
        let (done, written) = sync_channel(1);
        if self.tasks.try_send(Task::Flush(done)).is_ok() {
            // Late or never: then there is nobody to tell.
            let _ = written.recv_timeout(patience);
        }
    }
}

fn write_all(tasks: &Receiver<Task>, mut out: impl Write, dropped: &AtomicU64) {
    while let Ok(task) = tasks.recv() {
        match task {
            Task::Write(line) => {
                let lost = dropped.swap(0, Ordering::Relaxed);
                let told = lost == 0
                    || writeln!(
                        out,
                        "{lost} line(s) of the log were dropped before this one"
                    )
                    .is_ok();
                if !told {
                    dropped.fetch_add(lost, Ordering::Relaxed);
                }
                if !told || out.write_all(&line).is_err() {
                    dropped.fetch_add(1, Ordering::Relaxed);
                }
            }
            Task::Flush(done) => {
                let _ = out.flush();
                let _ = done.try_send(());
            }
        }
    }
}

/// One line, sent on its way when it is whole.
pub(super) struct Line<'a> {
    lines: &'a Lines,
    text: Vec<u8>,
}

impl Write for Line<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let room = LINE_MAX.saturating_sub(self.text.len());
        self.text.extend(&bytes[..bytes.len().min(room)]);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for Line<'_> {
    fn drop(&mut self) {
        let mut text = std::mem::take(&mut self.text);
        if text.len() >= LINE_MAX {
            text.truncate(LINE_MAX - 1);
            text.push(b'\n');
        }
        if !text.is_empty() && self.lines.tasks.try_send(Task::Write(text)).is_err() {
            self.lines.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl<'a> MakeWriter<'a> for Lines {
    type Writer = Line<'a>;

    fn make_writer(&'a self) -> Line<'a> {
        Line {
            lines: self,
            text: Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    /// Fails until it is mended, and keeps what it is given.
    #[derive(Clone, Default)]
    struct Sink(Arc<Mutex<(bool, Vec<u8>)>>);

    impl Write for Sink {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let mut inner = self.0.lock().expect("unpoisoned");
            if !inner.0 {
                return Err(io::ErrorKind::StorageFull.into());
            }
            inner.1.extend(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn what_cannot_be_written_is_counted_and_told_later() {
        let sink = Sink::default();
        let lines = Lines::to(sink.clone()).expect("a thread");
        for _ in 0..3 {
            lines.make_writer().write_all(b"lost\n").expect("taken");
        }
        lines.flush(Duration::from_secs(10));
        sink.0.lock().expect("unpoisoned").0 = true;
        lines.make_writer().write_all(b"there\n").expect("taken");
        lines.flush(Duration::from_secs(10));
        let text = String::from_utf8(sink.0.lock().expect("unpoisoned").1.clone());
        assert_eq!(
            text.expect("text"),
            "3 line(s) of the log were dropped before this one\nthere\n"
        );
    }

    #[test]
    fn a_writer_that_never_returns_holds_nobody_up() {
        struct Stuck(SyncSender<()>);
        impl Write for Stuck {
            fn write(&mut self, _: &[u8]) -> io::Result<usize> {
                self.0.try_send(()).expect("it is called once");
                // A thread may be unparked for no reason.
                loop {
                    std::thread::park();
                }
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let (told, stuck) = sync_channel(1);
        let lines = Lines::to(Stuck(told)).expect("a thread");
        lines.make_writer().write_all(b"line\n").expect("taken");
        // Or what is dropped before it begins would be counted by it.
        stuck.recv().expect("it writes");
        for _ in 0..2 * LINES_MAX {
            lines.make_writer().write_all(b"line\n").expect("taken");
        }
        assert_eq!(lines.dropped.load(Ordering::Relaxed), LINES_MAX as u64);
        lines.flush(Duration::from_millis(1));
    }
}
