//! What Ctrl-C (or SIGTERM) does to a run: the first one ends it, with all its processes, and its result is waited for;
//! the second one leaves at once.

use std::io;

use lodge_client::Sandbox;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;

use crate::{failure, terminal};

/// 128 + SIGINT.
const INTERRUPTED: i32 = 130;

/// Listens for as long as the program runs.
pub(crate) struct Interrupt {
    run_id: watch::Sender<Option<String>>,
}

impl Interrupt {
    /// Starts to listen.
    pub(crate) fn listen(sandbox: Sandbox) -> io::Result<Self> {
        let (run_id, known) = watch::channel(None);
        let signals = Signals::new()?;
        tokio::spawn(obey(signals, sandbox, known));
        Ok(Self { run_id })
    }

    /// Tells which run it is that is to be ended. A signal that came before takes effect now.
    pub(crate) fn started(&self, run_id: &str) {
        self.run_id.send_replace(Some(run_id.to_owned()));
    }
}

struct Signals {
    interrupt: Signal,
    terminate: Signal,
}

impl Signals {
    fn new() -> io::Result<Self> {
        let interrupt = signal(SignalKind::interrupt())?;
        Ok(Self {
            interrupt,
            terminate: signal(SignalKind::terminate())?,
        })
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}

async fn obey(mut signals: Signals, sandbox: Sandbox, mut run_id: watch::Receiver<Option<String>>) {
    signals.next().await;
    terminal::note("ending the run; once more to leave it");
    tokio::select! {
        () = kill(&sandbox, &mut run_id) => {}
        () = signals.next() => leave(),
    }
    signals.next().await;
    leave();
}

async fn kill(sandbox: &Sandbox, run_id: &mut watch::Receiver<Option<String>>) {
    let id = match run_id.wait_for(Option::is_some).await {
        Ok(id) => id.clone().unwrap_or_default(),
        // The run is over, and so is the program.
        Err(_) => return,
    };
    if let Err(error) = sandbox.kill(id).await {
        failure::tell(&anyhow::Error::new(error).context("cannot end the run"));
    }
}

fn leave() {
    std::process::exit(INTERRUPTED);
}
