//! Client for Lodge: one persistent Linux sandbox per agent, and one verb, `run`.
//!
//! ```
//! # mod fake { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fake/mod.rs")); }
//! # #[tokio::main]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let daemon = fake::Daemon::start().await;
//! # let endpoint = daemon.endpoint();
//! # let token = String::from("s3cr3t-t0ken");
//! use std::time::Duration;
//! use lodge_client::{Client, EndReason, Event};
//!
//! // `Client::from_env()` takes LODGE_ENDPOINT, else unix:///run/lodge/lodged.sock.
//! let client = Client::connect(endpoint).await?;
//! // Gets the sandbox of this name, or creates it. Its files stay until it is deleted.
//! let sandbox = client.sandbox("agent-7").await?;
//!
//! let out = sandbox
//!     .run("echo \"hello $NAME\"; exit 3")
//!     .env("NAME", "lodge")
//!     .secret("TOKEN", token)
//!     .cwd("/tmp")
//!     .timeout(Duration::from_secs(120))
//!     .await?;
//! assert_eq!(out.exit_code(), 3); // a non-zero exit is a result, not an error
//! assert_eq!(out.end_reason(), EndReason::Exited);
//! assert_eq!(out.stdout.text().as_str(), "hello lodge\n");
//!
//! // The same as a stream of events; one that ends without `Exited` is an error.
//! let mut events = sandbox.run("seq 3 | wc -l").stream().await?;
//! while let Some(event) = events.next().await {
//!     match event? {
//!         Event::Output { data, .. } => assert_eq!(data, "3\n"),
//!         Event::Exited(end) => assert!(end.success()),
//!         Event::Started { .. } | Event::Gap { .. } => {}
//!     }
//! }
//! # Ok(())
//! # }
//! ```
//!
//! Every call needs a tokio runtime. Handles ([`Client`], [`Sandbox`]) are cheap to clone and share one connection,
//! which is made again by itself after the daemon was restarted. So a run and its stream outlive a restart of the daemon: they
//! go on where they were, with no byte lost or doubled; what cannot go on is an error, never a success.
#![forbid(unsafe_code)]

mod endpoint; // where a daemon listens, and connecting to it
mod error; // what can go wrong with a call
mod reconnect; // going on after the connection broke
mod wire; // times, durations and deadlines on their way to and from the wire

mod client; // the connection, and calls that concern no one sandbox
mod sandbox; // the handle of one sandbox

mod acquire; // get-or-create, and what a new sandbox is made of
mod idle; // what becomes of a sandbox that nobody uses
mod info; // what the daemon tells about a sandbox
mod limits; // what a sandbox may use
mod list; // all sandboxes, or those of a filter
mod stats; // what a sandbox uses
mod update; // changing limits, idle policy or labels
mod watch; // changes of sandboxes as they happen
mod process; // the processes of a sandbox

mod run; // a command on its way: what to run, and how
mod secret; // values that are not shown and are wiped
mod upload; // request streams that send a reader's bytes

mod capture; // one output stream, cut to a budget
mod collect; // cutting a stream to the budget here
mod outcome; // how a run ended, with its output
mod stream; // a run as it happens

mod attach; // getting back to a run
mod logs; // parts of a run's log
mod runs; // the runs of a sandbox

mod image; // importing, listing and removing images
mod node; // the daemon and its host
mod disk; // what is stored there

pub use acquire::{Acquire, Acquired};
pub use attach::Attach;
pub use capture::{Captured, Text};
pub use client::Client;
pub use collect::MAX_OUTPUT_BYTES;
pub use disk::{HostDisk, NodeDisk, SandboxDisk, StorageAbility};
pub use endpoint::{DEFAULT_ENDPOINT, ENDPOINT_VARIABLE};
pub use error::{ApiError, Broken, Error, Result};
pub use idle::{IdlePolicy, ResumeMode};
pub use image::{Image, Images, Import, Progress, Pruned, PrunedImage};
pub use info::{Enforcement, LimitStatus, SandboxInfo, SandboxState};
pub use limits::Limits;
pub use list::List;
pub use logs::{LogLine, LogMatches, LogPart, Search};
pub use node::{Check, CheckStatus, DoctorReport, NodeInfo};
pub use outcome::{DiskFullPlace, EndReason, Outcome, Output};
pub use process::Process;
pub use run::Run;
pub use runs::{LogExtent, RunFilter, RunInfo};
pub use sandbox::{Paused, Sandbox, SandboxRef};
pub use secret::Secret;
pub use stats::SandboxStats;
pub use stream::{Event, RunStream, StdStream};
/// The gRPC status code in [`ApiError`].
pub use tonic::Code;
pub use update::Update;
pub use watch::{SandboxEvent, SandboxEvents, Watch};
